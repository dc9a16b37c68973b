package store

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMovedDirectory shows that the rename of a directory through one mount holds in the other one when the call has
// returned: nothing that is made there by the old name lands in the renamed directory, and no call gets ESTALE.
func TestMovedDirectory(t *testing.T) {
	o := serve(t)
	a, b := o.mount(), o.mount()
	again := func(fn func() error) (err error) {
		for {
			if err = fn(); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	for i := range 200 {
		old, now := fmt.Sprintf("old%d", i), fmt.Sprintf("new%d", i)
		if err := os.MkdirAll(a.Path(old, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{old, old + "/sub"} { // now the other kernel knows them
			if err := os.WriteFile(b.Path(dir, "before"), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := again(func() error { return unix.Rename(a.Path(old), a.Path(now)) }); err != nil {
			t.Fatalf("rename %d: %v", i, err)
		}
		for what, err := range map[string]error{
			"create":       again(func() error { return os.WriteFile(b.Path(old, "create"), []byte("x"), 0o644) }),
			"create below": again(func() error { return os.WriteFile(b.Path(old, "sub", "create"), []byte("x"), 0o644) }),
			"mkdir":        again(func() error { return unix.Mkdir(b.Path(old, "mkdir"), 0o755) }),
			"rename":       again(func() error { return unix.Rename(b.Path(old, "before"), b.Path(old, "renamed")) }),
			"rename to":    again(func() error { return unix.Rename(b.Path(now, "before"), b.Path(old, "to")) }),
			"unlink":       again(func() error { return unix.Unlink(b.Path(old, "before")) }),
		} {
			if !errors.Is(err, unix.ENOENT) {
				t.Errorf("%d: %s by the old name: %v, want ENOENT", i, what, err)
			}
		}
		entries, err := os.ReadDir(a.Path(now))
		if err != nil || len(entries) != 2 {
			t.Errorf("%d: the renamed directory has %v, %v", i, entries, err)
		}
		if err := again(func() error { return unix.Rename(b.Path(now), b.Path(old)) }); err != nil { // and back, by the other one
			t.Fatalf("rename %d back: %v", i, err)
		}
		if _, err := os.Stat(a.Path(now)); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%d: the other mount still has the name: %v", i, err)
		}
		if t.Failed() {
			return
		}
	}
}
