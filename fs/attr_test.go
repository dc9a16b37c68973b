package fs

import (
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// TestGone shows that attributes of a file that was given up are not told, so that the kernel
// looks up again what it took for the file of some name; those of one that is open are.
func TestGone(t *testing.T) {
	s, _ := mountHere(t)
	a, h, err := s.engine.Create(t.Context(), tiers.CreateOptions{Parent: index.Root, Name: "block", Mode: 0o600, TID: 1, Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	in := &fuse.GetAttrIn{InHeader: fuse.InHeader{NodeId: uint64(a.ID)}}
	var out fuse.AttrOut
	if err := s.engine.Unlink(index.Root, "block", 1); err != nil {
		t.Fatal(err)
	}
	if st := s.GetAttr(nil, in, &out); st != fuse.OK || out.Nlink != 0 {
		t.Errorf("open, without a name: got %v, %d names", st, out.Nlink)
	}
	s.engine.Release(h)
	if st := s.GetAttr(nil, in, &out); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("given up: got %v, want ESTALE", st)
	}
	s.engine.Forget(a.ID, 1)
}
