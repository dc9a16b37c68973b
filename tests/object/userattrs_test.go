package object

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// crc is the attribute in which vLLM keeps a checksum.
const crc = "user.vllm.kv_crc32c"

// wantAttr checks the attribute of a block: "" if it is to have none.
func wantAttr(t testing.TB, d *harness.Daemon, name, want string) {
	t.Helper()
	buf := make([]byte, 64)
	n := 0
	err := again(func() (err error) { n, err = unix.Getxattr(d.Path(name), crc, buf); return err })
	if err != nil && err != unix.ENODATA || string(buf[:max(n, 0)]) != want {
		t.Errorf("%s: got %q, %v, want %q", name, buf[:max(n, 0)], err, want)
	}
}

// TestUserAttrs shows that another daemon finds a block in the bucket with its attributes of processes, in a pack with others
// and alone in one, also when it asks for them first; and that they come back to this one (H2).
func TestUserAttrs(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	a := mount(t, s.URL, "", harness.Options{})
	all := blocks{"a/small": pattern("small", 30_000), "a/other": pattern("other", 30_000), "a/large": pattern("large", 9*mib)}
	for name, value := range map[string]string{"a/small": "small", "a/large": "large"} {
		tmp := a.Path(name) + ".tmp"
		storeAll(t, a, blocks{name + ".tmp": all[name]})
		must(t, "setxattr", unix.Setxattr(tmp, crc, []byte(value), 0))
		must(t, "rename", unix.Rename(tmp, a.Path(name)))
	}
	storeAll(t, a, blocks{"a/other": all["a/other"]})
	waitStored(t, a, all)
	check := func(d *harness.Daemon) {
		t.Helper()
		wantAttr(t, d, "a/small", "small")
		wantBlocks(t, d, all)
		wantAttr(t, d, "a/large", "large")
		wantAttr(t, d, "a/other", "")
	}
	b := mount(t, s.URL, "", harness.Options{})
	waitFound(t, b, all)
	check(b)
	evict(t, a, "memory")
	check(a)
	must(t, "setxattr", unix.Setxattr(a.Path("a/small"), crc, []byte("changed"), 0))
	waitStored(t, a, all)
	a.Kill()
	a.DropMemory()
	a.Restart()
	waitListed(t, a)
	wantAttr(t, a, "a/small", "changed")
	wantBlocks(t, a, all)
	wantAttr(t, a, "a/large", "large")
}
