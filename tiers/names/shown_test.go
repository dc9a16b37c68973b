package names

import (
	"testing"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestShown: a question where a block is shows no more than an open: to who may not read the block, or search a directory
// above it, it is a miss and gets no lease (A26).
func TestShown(t *testing.T) {
	const owner, other = 1, 2
	for _, tc := range []struct {
		file, dir uint16
		shown     bool // to the other user
	}{
		{0o644, 0o755, true}, {0o600, 0o755, false}, {0o644, 0o700, false}, {0o604, 0o701, true}, {0o640, 0o755, false},
	} {
		for _, far := range []bool{false, true} {
			m := newModel(far, false, false)
			attrs := func(mode uint16) catalog.Attrs { return catalog.Attrs{Mode: mode, UID: owner, GID: owner} }
			if far {
				m.far.has["d"] = driver.Located{Mode: uint32(state.ModeDir | tc.dir), UID: owner, GID: owner, Seq: 1}
				m.far.has["d/a"] = driver.Located{Mode: uint32(state.ModeRegular | tc.file), UID: owner, GID: owner, Seq: 1}
			} else {
				dir := m.nm.ApplyLocked(&catalog.CreatedDir{Attrs: attrs(state.ModeDir | tc.dir), Parent: index.Root, Name: "d"}).ID
				m.nm.ApplyLocked(&catalog.CreatedFile{Attrs: attrs(state.ModeRegular | tc.file), Parent: dir, Name: "a", Tiers: 1, Seq: 1})
				m.addTier("disk")
			}
			for user, want := range map[uint32]bool{owner: true, other: tc.shown} {
				out := make([]Place, 1)
				m.nm.Presences([][]byte{[]byte("d/a")}, PresenceOptions{Lease: true, As: &event.Viewer{UID: user, GIDs: []uint32{user}}, Request: "r"}, out)
				if got := out[0].Presence == driver.Hit; got != want {
					t.Errorf("mode %o in %o, elsewhere %v: shown to user %d: %v", tc.file, tc.dir, far, user, got)
				}
				if n := m.nm.ReleaseRequest(&event.Viewer{UID: user, GIDs: []uint32{user}}, "r"); !far && (n == 1) != want {
					t.Errorf("mode %o in %o: user %d has %d leases", tc.file, tc.dir, user, n)
				}
			}
			m.nm.Primary.Close(false)
		}
	}
}

// TestOpenedDir: a directory of other nodes stays when they lose it, if a process of this node has opened it, which it can
// without a look-up of its own.
func TestOpenedDir(t *testing.T) {
	for _, opened := range []bool{false, true} {
		m := newModel(true, false, false)
		m.far.has["d"] = driver.Located{Mode: state.ModeDir | 0o755, Seq: 1}
		var id index.ID
		m.locked(func(g *state.Gone) { id = m.nm.WalkLocked("d", g) })
		if opened {
			m.nm.OpenDir(id)
		}
		m.far.drop("d")
		m.settle()
		if left := m.nm.Mu.Ix.Walk("d") != 0; left != opened {
			t.Errorf("opened %v: left %v", opened, left)
		}
		m.nm.Primary.Close(false)
	}
}
