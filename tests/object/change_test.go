package object

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestChange shows that a block which only the bucket has keeps its bytes when its attributes or its name change, and that
// a later daemon finds it so (A1, G6).
func TestChange(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "chown needs root")
	}
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	names := []string{"chmod", "chown", "touch", "ttl", "pin", "rename", "dir/below", "moved/below"}
	bs := blocks{}
	for _, name := range names {
		bs["g/"+name] = pattern(name, 50_000)
	}
	storeAll(t, d, bs)
	waitStored(t, d, bs)
	evict(t, d, "memory")
	for name := range bs {
		if got := tiersOf(d, name); !slices.Equal(got, []string{"object"}) {
			t.Errorf("tiers of %s: got %q, want object", name, got)
		}
	}
	set := func(attr, value string) func(string) error {
		return func(path string) error { return unix.Setxattr(path, attr, []byte(value), 0) }
	}
	move := func(path string) error { // the bucket cannot rename: mv copies
		if err := unix.Rename(path, path+"-new"); !errors.Is(err, unix.EXDEV) {
			return fmt.Errorf("rename: %v, want EXDEV", err)
		}
		text, err := exec.CommandContext(t.Context(), "mv", path, path+"-new").CombinedOutput()
		if err != nil {
			return fmt.Errorf("mv: %w: %s", err, text)
		}
		return nil
	}
	for name, change := range map[string]func(path string) error{
		"chmod":  func(path string) error { return unix.Chmod(path, 0o600) },
		"chown":  func(path string) error { return unix.Chown(path, 17, 18) },
		"touch":  func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) },
		"ttl":    set("user.kvfs.ttl", "1h"),
		"pin":    set("user.kvfs.pinned", "1"),
		"rename": move,
		"dir":    func(path string) error { return unix.Chmod(path, 0o700) },
		"moved":  move,
	} {
		must(t, "change "+name, again(func() error { return change(d.Path("g/" + name)) }))
	}
	for from, to := range map[string]string{"g/rename": "g/rename-new", "g/moved/below": "g/moved-new/below"} {
		bs[to] = bs[from]
		delete(bs, from)
	}
	for range 3 {
		wantBlocks(t, d, bs)
		waitStored(t, d, bs)
		for _, name := range []string{"g/rename", "g/moved/below"} {
			wantAbsent(t, d, name)
		}
		if st := stat(t, d, "g/chmod"); st.Mode&0o777 != 0o600 {
			t.Errorf("mode after chmod: %#o, want 0600", st.Mode&0o777)
		}
		if st := stat(t, d, "g/chown"); st.Uid != 17 || st.Gid != 18 {
			t.Errorf("owner after chown: %d:%d, want 17:18", st.Uid, st.Gid)
		}
		d.Stop()
		d = mount(t, s.URL, "", harness.Options{})
		waitListed(t, d)
	}
}
