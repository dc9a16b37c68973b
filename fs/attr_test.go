package fs

import (
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestGone shows that attributes of a file that was given up are not told, so that the kernel
// looks up again what it took for the file of some name, once in a call; those of one that is open are.
func TestGone(t *testing.T) {
	s, _ := mountHere(t)
	by := state.Caller{Thread: 1, Process: 1}
	a, h, err := s.files.engine.Create(t.Context(), openfile.CreateOptions{Parent: index.Root, Name: "block", Mode: 0o600, By: by, Exclusive: true})
	must(t, err)
	in := &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: uint64(a.ID), Caller: fuse.Caller{Pid: 1}}}
	var out fuse.AttrOut
	must(t, s.files.engine.Unlink(index.Root, "block", by))
	if st := s.files.GetAttr(nil, in, &out); st != fuse.OK || out.Nlink != 0 {
		t.Errorf("open, without a name: got %v, %d names", st, out.Nlink)
	}
	s.files.engine.Release(h)
	if st := s.files.GetAttr(nil, in, &out); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("given up: got %v, want ESTALE", st)
	}
	if st := s.files.GetAttr(nil, in, &out); st != fuse.OK || out.Nlink != 0 {
		t.Errorf("given up, asked again: got %v, %d names", st, out.Nlink)
	}
	s.files.engine.Forget(a.ID, 1)
}
