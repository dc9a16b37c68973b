package cluster

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
)

// hold makes a node hold blocks of which there are no bytes.
func (b *fakeBackend) hold(seq uint64, paths ...string) {
	for _, path := range paths {
		info := BlockInfo{Path: path, Seq: seq, Size: 4096, Mode: 0o100644}
		b.locked(func() { b.blocks[path] = &fakeBlock{info: info} })
		b.n.Append(record(&info))
	}
}

// paths returns names of blocks.
func paths(first, last int) (list []string) {
	for i := first; i < last; i++ {
		list = append(list, fmt.Sprintf("g/%d", i))
	}
	return list
}

// knows waits until a node knows as many blocks of another and follows it.
func (tn *testNode) knows(t *testing.T, name string, blocks int) Member {
	t.Helper()
	var m Member
	eventually(t, fmt.Sprintf("%d blocks of %s are known", blocks, name), func() bool {
		m, _ = tn.member(name)
		return m.Blocks == int64(blocks) && m.Feed == feedFollowing
	})
	return m
}

// comeBack starts a node once more, at its old address, with some of the blocks of before.
func comeBack(t *testing.T, old *testNode, change func(o *Options), join *testNode, fill func(b *fakeBackend)) *testNode {
	t.Helper()
	addr := old.gossip.Self().Addr
	must(t, old.Node.Close())
	n := prepare(t, old.o.Gossip.Name, func(o *Options) {
		o.Gossip.Bind = addr
		if change != nil {
			change(o)
		}
	}, join)
	fill(n.fakeBackend)
	must(t, n.Start(n.fakeBackend))
	return n
}

// patient keeps what is known of a lost peer for as long as a test may take.
func patient(o *Options) { o.tuning.drop = time.Hour }

// TestResyncEqual shows that comparing what is known with what a peer holds costs little if the two
// are equal, and mends what differs.
func TestResyncEqual(t *testing.T) {
	const blocks, times = 5000, 2
	a := start(t, "a", nil)
	a.hold(1, paths(0, blocks)...)
	b := start(t, "b", func(o *Options) { o.tuning.resync = time.Second }, a)
	together(t, a, b)
	before := b.knows(t, "a", blocks)
	var m Member
	eventually(t, "digests are compared", func() bool { m, _ = b.member("a"); return m.Compared >= before.Compared+times })
	if each := (m.DigestBytes - before.DigestBytes) / (m.Compared - before.Compared); each > 4096 {
		t.Errorf("%d bytes of digests each time", each)
	}
	if m.Snapshots != 1 || m.SnapshotBytes != before.SnapshotBytes || m.Blocks != blocks {
		t.Errorf("%+v", m)
	}
	t.Logf("a snapshot: %d bytes; %d comparisons: %d bytes", m.SnapshotBytes, m.Compared, m.DigestBytes)
	a.drop("g/7", true) // nobody is told
	b.located(t, "g/7", 0)
	if m, _ = b.member("a"); m.Snapshots != 1 {
		t.Errorf("%d snapshots", m.Snapshots)
	}
}

// TestRestartKeeps shows that of a node that comes back as another process its peers take only what
// has changed.
func TestRestartKeeps(t *testing.T) {
	const blocks = 5000
	for _, c := range []struct {
		name string
		now  int // blocks after the restart
		most uint64
		fill func(b *fakeBackend)
	}{
		{"nothing", blocks, 1000, func(*fakeBackend) {}},
		{"some", blocks, 20_000, func(b *fakeBackend) {
			b.drop("g/1", false)
			b.hold(2, "g/2", "g/new")
		}},
		{"all", 10, 100_000, func(b *fakeBackend) {
			clear(b.blocks)
			b.hold(3, paths(blocks, blocks+10)...)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, "a", nil)
			a.hold(1, paths(0, blocks)...)
			b := start(t, "b", patient, a)
			together(t, a, b)
			before := b.knows(t, "a", blocks)
			epoch := a.epoch
			a = comeBack(t, a, nil, b, func(n *fakeBackend) {
				n.hold(1, paths(0, blocks)...)
				c.fill(n)
			})
			if a.epoch == epoch {
				t.Fatal("the same epoch")
			}
			a.hold(9, "g/later") // comes in a part, or after the comparison
			b.located(t, "g/later", 1)
			m := b.knows(t, "a", c.now+1)
			if sent := m.SnapshotBytes - before.SnapshotBytes; m.Snapshots != 1 || m.Compared == 0 || sent > c.most {
				t.Errorf("%d bytes, %+v", sent, m)
			}
			t.Logf("%d bytes of digests, %d of records; a snapshot %d", m.DigestBytes, m.SnapshotBytes-before.SnapshotBytes, before.SnapshotBytes)
			for path, f := range a.blocks {
				if at := b.located(t, path, 1); at[0].Seq != f.info.Seq {
					t.Errorf("%s: version %d, not %d", path, at[0].Seq, f.info.Seq)
				}
			}
		})
	}
}

// TestWithoutDigests shows that a node works with an older one, on either side: it takes and sends
// snapshots at each resync and after each restart.
func TestWithoutDigests(t *testing.T) {
	old := func(o *Options) { o.tuning.mask = meta.FeatureDigest }
	quick := func(o *Options) { patient(o); o.tuning.resync = 50 * time.Millisecond }
	for _, c := range []struct {
		name             string
		holder, follower func(o *Options)
	}{
		{"old holder", old, quick},
		{"old follower", nil, func(o *Options) { quick(o); old(o) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, "a", c.holder)
			a.hold(1, paths(0, 100)...)
			b := start(t, "b", c.follower, a)
			together(t, a, b)
			eventually(t, "snapshots come", func() bool { m, _ := b.member("a"); return m.Snapshots > 3 })
			a.drop("g/7", true)
			b.located(t, "g/7", 0)
			comeBack(t, a, c.holder, b, func(n *fakeBackend) { n.hold(2, paths(50, 120)...) })
			b.located(t, "g/119", 1)
			b.located(t, "g/49", 0)
			if at := b.located(t, "g/60", 1); at[0].Seq != 2 {
				t.Errorf("version %d", at[0].Seq)
			}
			if m, _ := b.member("a"); m.Compared != 0 || m.DigestBytes != 0 {
				t.Errorf("%+v", m)
			}
		})
	}
}

// TestMissedRecords shows that a node that missed records of a feed gets what it missed, graves
// included, without a snapshot.
func TestMissedRecords(t *testing.T) {
	a := start(t, "a", nil)
	a.hold(1, paths(0, 100)...)
	b := start(t, "b", func(o *Options) { o.tuning.exchange = time.Hour }, a)
	together(t, a, b)
	b.knows(t, "a", 100)
	for i := range 3 {
		path := fmt.Sprintf("g/%d", i)
		a.drop(path, true)
		a.index.Bury(location.HashPath(path), 5, false, path, time.Now().UnixNano())
		a.Resync()
		b.located(t, path, 0)
		eventually(t, "the grave is known", func() bool { return b.buriedSeq(path) == 5 })
		eventually(t, "digests were compared", func() bool { m, _ := b.member("a"); return m.Compared > uint64(i) })
		later := fmt.Sprintf("g/later%d", i)
		a.hold(9, later)
		b.located(t, later, 1)
	}
	if m, _ := b.member("a"); m.Snapshots != 1 || m.Compared == 0 {
		t.Errorf("%+v", m)
	}
}

// TestMemoryGoesBack shows that a node gives memory back to the system after it has dropped much of
// its index.
func TestMemoryGoesBack(t *testing.T) {
	a := start(t, "a", nil)
	const entries, slot = 3 << 19, 4000 // about 42 MiB
	for i := range uint64(entries) {
		a.index.Put(slot, location.Entry{Hash: i * 0x9e3779b97f4a7c15, Seq: 1, Mode: 0o100644})
	}
	taken := func() int64 { // from the system
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapSys - m.HeapReleased)
	}
	before := taken()
	a.index.Drop(slot)
	eventually(t, "memory goes back", func() bool { return taken() < before-24<<20 })
}
