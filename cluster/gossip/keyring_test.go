package gossip

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func keyOf(b byte, n int) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, n))
}

// TestLoadKeyring shows which files are taken, and that errors tell the line and never
// a key.
func TestLoadKeyring(t *testing.T) {
	t.Parallel()
	k16, k24, k32 := keyOf(1, 16), keyOf(2, 24), keyOf(3, 32)
	for _, c := range []struct {
		name string
		text string
		mode os.FileMode
		keys int
		bad  string
	}{
		{name: "one", text: k32, keys: 1},
		{name: "all lengths and comments", text: "# first\n" + k16 + "\n\n  " + k24 + " \r\n#" + k16 + "\n" + k32 + "\n", keys: 3},
		{name: "readable by group root", text: k32, mode: 0o640, keys: 1},
		{name: "read-only", text: k32, mode: 0o400, keys: 1},
		{name: "empty", text: "", bad: "no key"},
		{name: "comments only", text: "# a\n\n", bad: "no key"},
		{name: "not base64", text: k32 + "\n" + k16[:10] + "!" + "\n", bad: "line 2: not base64"},
		{name: "length", text: "\n\n" + keyOf(1, 20), bad: "line 3: key of 20 bytes"},
		{name: "two on a line", text: k16 + " " + k32, bad: "line 1: not base64"},
		{name: "twice", text: k16 + "\n" + k16, bad: "line 2: key "},
		{name: "for the world", text: k32, mode: 0o644, bad: "0644"},
		{name: "for the group to write", text: k32, mode: 0o660, bad: "0660"},
		{name: "to execute", text: k32, mode: 0o700, bad: "0700"},
		{name: "too large", text: strings.Repeat("#", maxKeyFile+1), bad: "larger than"},
		{name: "too many", text: manyKeys(maxKeys + 1), bad: "65 keys"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			must(t, os.WriteFile(path, []byte(c.text), 0o600))
			if c.mode != 0 {
				must(t, os.Chmod(path, c.mode))
			}
			if c.mode&0o040 != 0 && c.bad == "" && os.Getgid() != 0 {
				t.Skip("needs group root")
			}
			k, err := LoadKeyring(path)
			if c.bad == "" {
				if err != nil || len(k.Fingerprints()) != c.keys {
					t.Fatalf("%v, %v", k, err)
				}
				return
			}
			if err == nil {
				t.Fatal("was taken")
			}
			text := err.Error()
			if !strings.Contains(text, c.bad) || strings.Contains(text, k16[:10]) {
				t.Errorf("error is %q, want %q in it and no key", text, c.bad)
			}
		})
	}
	if foreign := keyFile(t, 1); os.Getuid() == 0 { // else it cannot be given away
		must(t, errors.Join(os.Chown(foreign, 0, 1234), os.Chmod(foreign, 0o640)))
		if _, err := LoadKeyring(foreign); err == nil {
			t.Error("a file that group 1234 can read was taken")
		}
	}
	if _, err := LoadKeyring(t.TempDir()); err == nil {
		t.Error("a directory was taken")
	}
	if _, err := LoadKeyring(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("an absent file was taken")
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(keyOf(byte(i), 32) + "\n")
	}
	return b.String()
}

// TestEditKeyring shows the changes of a file and what is refused.
func TestEditKeyring(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	a, b, c := keyOf(1, 16), keyOf(2, 24), keyOf(3, 32)
	fa, fb, fc := printOf(a), printOf(b), printOf(c)
	must(t, os.WriteFile(path, []byte("# keys of the cluster\n"+a+"\n# next\n"+b+"\n"), 0o400))
	if os.Getuid() == 0 {
		must(t, os.Chown(path, 1234, 0))
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(path, link))
	before, err := os.Stat(path)
	must(t, err)
	checkKeys(t, "add c", path, AddKey(link, " "+c+"\n"), []string{fa, fb, fc})
	checkKeys(t, "add c again", path, AddKey(path, c), []string{fa, fb, fc})
	checkKeys(t, "add nonsense", path, refused(t, AddKey(path, "x")), []string{fa, fb, fc})
	checkKeys(t, "add a fingerprint", path, refused(t, AddKey(path, fb)), []string{fa, fb, fc})
	checkKeys(t, "use c", path, UseKey(path, strings.ToUpper(fc)), []string{fc, fa, fb})
	checkKeys(t, "use c again", path, UseKey(path, c), []string{fc, fa, fb})
	checkKeys(t, "use an absent one", path, refused(t, UseKey(path, "00000000")), []string{fc, fa, fb})
	checkKeys(t, "remove the first", path, refused(t, RemoveKey(path, fc)), []string{fc, fa, fb})
	checkKeys(t, "remove a", path, RemoveKey(link, fa), []string{fc, fb})
	checkKeys(t, "remove a again", path, refused(t, RemoveKey(path, a)), []string{fc, fb})
	checkKeys(t, "remove b", path, RemoveKey(path, b), []string{fc})
	after, err := os.Stat(path)
	must(t, err)
	x, y := stat(before), stat(after)
	if before.Mode() != after.Mode() || x.Uid != y.Uid || x.Gid != y.Gid {
		t.Errorf("mode and owner were %v %d:%d and are %v %d:%d", before.Mode(), x.Uid, x.Gid, after.Mode(), y.Uid, y.Gid)
	}
	text, err := os.ReadFile(path)
	must(t, err)
	if !strings.Contains(string(text), "# keys of the cluster\n") || !strings.Contains(string(text), "# next\n") {
		t.Errorf("comments are gone: %q", text)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is no more: %v, %v", info, err)
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := CreateKeyring(path); err == nil {
		t.Error("a file was created over another")
	}
}

func refused(t *testing.T, err error) error {
	t.Helper()
	if err == nil {
		t.Error("was not refused")
	}
	return nil
}

func checkKeys(t *testing.T, what, path string, err error, want []string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if got := load(t, path).Fingerprints(); !slices.Equal(got, want) {
		t.Fatalf("%s: keys are %v, want %v", what, got, want)
	}
}

// TestEditsAtATime shows that changes made at the same time all count, and that a reader
// always finds a whole file.
func TestEditsAtATime(t *testing.T) {
	t.Parallel()
	path := keyFile(t, 1)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 4 {
				check(t, AddKey(path, keyOf(byte(i*16+j+1), 32)))
				if _, err := LoadKeyring(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(load(t, path).Fingerprints()); n != 33 {
		t.Errorf("%d keys, want 33", n)
	}
}

// replace puts a file in the place of another, so that nobody sees it half written.
func replace(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(t, os.Rename(path+".new", path))
}

// TestWatch shows that changes of the file are taken over, one in place too, and that a
// bad file is logged once and changes nothing.
func TestWatch(t *testing.T) {
	t.Parallel()
	path := keyFile(t, 1)
	k := load(t, path)
	core, logs := observer.New(zap.DebugLevel)
	k.log.Store(zap.New(core))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Watch(ctx) }() // ends with ctx; waited for below
	has := func(want ...string) func() bool {
		return func() bool { return slices.Equal(k.Fingerprints(), want) }
	}
	first := k.Fingerprints()[0]
	second := newKey(t)
	must(t, AddKey(path, second))
	eventually(t, "the second key is taken over", has(first, printOf(second)))
	third := newKey(t)
	must(t, os.WriteFile(path, []byte(second+"\n"+third+"\n"), 0o600))
	eventually(t, "a change in place is taken over", has(printOf(second), printOf(third)))
	errs := func() int { return logs.FilterMessageSnippet("keyring not loaded").Len() }
	before := errs() // one if the file was looked at while it was empty
	replace(t, path, "nonsense\n")
	eventually(t, "the bad file is logged", func() bool { return errs() == before+1 })
	must(t, os.Remove(path))
	eventually(t, "the loss of the file is logged", func() bool { return errs() == before+2 })
	if !has(printOf(second), printOf(third))() {
		t.Errorf("keys are %v", k.Fingerprints())
	}
	replace(t, path, third+"\n")
	eventually(t, "the good file is taken over", has(printOf(third)))
	if n := errs() - before; n != 2 {
		t.Errorf("%d errors were logged, want 2", n)
	}
	if ring := k.ring.GetKeys(); len(ring) > 3 {
		t.Errorf("memberlist holds %d keys", len(ring))
	}
	cancel()
	<-done
}
