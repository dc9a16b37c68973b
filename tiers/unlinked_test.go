package tiers_test

import (
	"context"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestRemovedDir: a kernel that has not heard yet that a directory was removed may use it: it finds nothing there, and
// makes nothing.
func TestRemovedDir(t *testing.T) {
	for _, several := range []bool{false, true} {
		w := open(t, shmDir(t), state.Options{Kernels: several})
		ctx := context.Background()
		must(t, w.mkdir("g"), w.mkdir("g/d"), w.put(10, "g/a", []byte("x")))
		g, err := w.lookup(20, "g")
		must(t, err)
		d, err := w.lookup(20, "g/d")
		must(t, err, w.rmdir("g/d"))
		absent := "ErrNotFound"
		if several {
			absent = "ErrStale"
		}
		for what, row := range map[string]struct {
			do   func() error
			want string
		}{
			"look-up": {func() error { _, err := w.e.Lookup(d.ID, "x", by(20)); return err }, absent},
			"create": {func() error {
				_, _, err := w.e.Create(ctx, openfile.CreateOptions{Parent: d.ID, Name: "x", Mode: 0o644, By: by(20)})
				return err
			}, "ErrNotFound"},
			"mkdir":  {func() error { _, err := w.e.Mkdir(d.ID, "x", 0o755, 0, 0, by(20).Proc()); return err }, "ErrNotFound"},
			"unlink": {func() error { return w.e.Unlink(d.ID, "x", by(20)) }, "ErrNotFound"},
			"rmdir":  {func() error { return w.e.Rmdir(ctx, d.ID, "x", by(20)) }, "ErrNotFound"},
			"rename into it": {func() error {
				return w.e.Rename(ctx, openfile.RenameOptions{Parent: g.ID, Name: "a", NewParent: d.ID, NewName: "x", By: by(20)})
			}, "ErrNotFound"},
			"rename out of it": {func() error {
				return w.e.Rename(ctx, openfile.RenameOptions{Parent: d.ID, Name: "x", NewParent: index.Root, NewName: "y", By: by(20)})
			}, "ErrNotFound"},
			"list": {func() error {
				if len(w.e.ReadDir(d.ID, 0, 0, by(20), nil)) != 0 {
					return block.ErrExist
				}
				return nil
			}, "ok"},
		} {
			if err := row.do(); kind(err) != row.want {
				t.Errorf("%s, several %t: %v, want %s", what, several, err, row.want)
			}
		}
		w.forget(d.ID)
		w.forget(g.ID)
		w.close(false)
	}
}
