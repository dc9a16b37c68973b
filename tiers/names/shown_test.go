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
