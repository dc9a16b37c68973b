package peer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// fullNode is a node as the program builds it, without the mount.
type fullNode struct {
	t      *testing.T
	engine *tiers.Engine
	tier   *Tier
	node   *cluster.Node
	mem    *mem.Store
}

func startFull(t *testing.T, name string, edit func(o *Options), join ...*cluster.Node) *fullNode {
	t.Helper()
	ctx := context.Background()
	dir, err := os.MkdirTemp("/dev/shm", "kvfs.test.")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fullNode{t: t}
	if f.mem, err = mem.Open(ctx, mem.Options{Dir: dir + "/m", SizeBytes: 64 << 20, NoMount: true}); err != nil {
		t.Fatal(err)
	}
	lost := NewLost()
	f.node = openNode(t, name, lost, join...)
	o := Options{Node: f.node, Lost: lost, Accept: true, Timeout: patience, Silence: patience}
	if edit != nil {
		edit(&o)
	}
	if f.tier, err = Open(o); err != nil {
		t.Fatal(err)
	}
	cascade := state.CascadeOff
	if o.Replicas > 0 {
		cascade = state.CascadeAsync
	}
	f.engine, err = tiers.Open(ctx, state.Options{
		Primary: f.mem, CapacityBytes: 32 << 20, HeadroomBytes: 16 << 20,
		Secondaries: []state.SecondaryOptions{{Name: "peer", Tier: f.tier, Cascade: cascade}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.engine.Close(ctx, false); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
	})
	if err := f.tier.Start(f.engine); err != nil {
		t.Fatal(err)
	}
	return f
}

// self is the writing and reading process.
var self = state.Caller{Thread: 1, Process: 1}

type closer struct{}

func (closer) Killed() bool            { return false }
func (closer) StillOpen(index.ID) bool { return false }

// write makes a file in the root.
func (f *fullNode) write(name string, data []byte) {
	f.t.Helper()
	ctx := context.Background()
	a, h, err := f.engine.Create(ctx, openfile.CreateOptions{Parent: index.Root, Name: name, Mode: 0o640, UID: 11, GID: 12, By: self})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err = h.WriteAt(ctx, data, 0); err == nil {
		err = f.engine.Flush(ctx, h, self, closer{})
	}
	f.engine.Release(h)
	f.engine.Forget(a.ID, 1)
	if err != nil {
		f.t.Fatal(err)
	}
}

// read looks up a file in the root and reads it.
func (f *fullNode) read(name string) ([]byte, error) {
	a, err := f.engine.Lookup(index.Root, name, self)
	if err != nil {
		return nil, err
	}
	defer f.engine.Forget(a.ID, 1)
	o, err := f.engine.OpenRead(context.Background(), a.ID, self, false)
	if err != nil {
		return nil, err
	}
	defer f.engine.CloseRead(o.ID)
	file, err := f.mem.Open(o.Blob)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return content(file), nil
}

// TestEngines shows the life of blocks between three engines: the others read what one writes, a
// removal reaches all, a new version is read anew, and required copies are made.
func TestEngines(t *testing.T) {
	a := startFull(t, "a", func(o *Options) { o.Replicas = 1; o.PreferredSegment = "c" })
	b := startFull(t, "b", nil, a.node)
	c := startFull(t, "c", nil, a.node)
	nodes := []*fullNode{a, b, c}
	eventually(t, "the nodes know each other", func() bool {
		return len(a.node.Peers()) == 2 && len(b.node.Peers()) == 2 && len(c.node.Peers()) == 2
	})
	sees := func(what string, f *fullNode, name string, want []byte) {
		t.Helper()
		eventually(t, what, func() bool {
			got, err := f.read(name)
			if want == nil {
				return errors.Is(err, block.ErrNotFound)
			}
			return err == nil && bytes.Equal(got, want)
		})
	}
	data := payload(200000, 1)
	b.write("x", data)
	for _, f := range nodes {
		sees("written on b", f, "x", data)
	}
	if _, err := b.read("absent"); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
	if err := c.engine.Unlink(index.Root, "x", self); err != nil {
		t.Fatal(err)
	}
	for _, f := range nodes {
		sees("removed on c", f, "x", nil)
	}
	again := payload(200000, 2)
	c.write("x", again)
	for _, f := range nodes {
		sees("written again on c", f, "x", again)
	}

	a.write("copied", data)
	eventually(t, "c has the copy of what a wrote", func() bool { _, ok := c.engine.Holding("copied"); return ok })
	if h, _ := c.engine.Holding("copied"); h.Sum != block.Sum(data) || h.UID != 11 || h.Mode != modeRegular|0o640 {
		t.Errorf("the copy: %+v", h)
	}
	eventually(t, "a counts the copy", func() bool { s := a.tier.Stats(); return s.Stored == 1 && s.StoredBytes == 200000 })
	if d := c.tier.Stats().Detail.(*Detail); d.Taken != 1 {
		t.Errorf("c: %+v", d)
	}
}
