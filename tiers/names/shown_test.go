package names

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
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
		for _, where := range []string{"here", "other nodes", "a Finder"} {
			far, find := where == "other nodes", where == "a Finder"
			m := newModel(far, false, find)
			attrs := func(mode uint16) catalog.Attrs { return catalog.Attrs{Mode: mode, UID: owner, GID: owner} }
			if find {
				m.nm.ApplyLocked(&catalog.CreatedDir{Attrs: attrs(state.ModeDir | tc.dir), Parent: index.Root, Name: "d"})
				m.find.has["d/a"] = driver.Located{Mode: uint32(state.ModeRegular | tc.file), UID: owner, GID: owner, Seq: 1}
			} else if far {
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
					t.Errorf("mode %o in %o, with %s: shown to user %d: %v", tc.file, tc.dir, where, user, got)
				}
				if n := m.nm.ReleaseRequest(&event.Viewer{UID: user, GIDs: []uint32{user}}, "r"); where == "here" && (n == 1) != want {
					t.Errorf("mode %o in %o: user %d has %d leases", tc.file, tc.dir, user, n)
				}
			}
			m.nm.Primary.Close(false)
		}
	}
}

// TestReleaseRequest: the end of a request ends its leases, but not one that another request has got since (C16).
func TestReleaseRequest(t *testing.T) {
	for _, since := range []bool{false, true} {
		m := newModel(false, false, false)
		m.addTier("disk")
		id := m.nm.ApplyLocked(&catalog.CreatedFile{Attrs: catalog.Attrs{Mode: state.ModeRegular}, Parent: index.Root, Name: "a", Tiers: 1, Seq: 1}).ID
		ask := func(request string) {
			m.now++
			m.nm.Presences([][]byte{[]byte("a")}, PresenceOptions{Lease: true, Request: request}, make([]Place, 1))
		}
		ask("request")
		want, ended := int64(0), 1
		if since {
			ask("another")
			want, ended = m.nm.Mu.Ix.At(id).Lease(), 0
		}
		if n := m.nm.ReleaseRequest(nil, "request"); n != ended || m.nm.Mu.Ix.At(id).Lease() != want {
			t.Errorf("another since %v: %d leases have ended, it is until %d, want %d", since, n, m.nm.Mu.Ix.At(id).Lease(), want)
		}
		m.nm.Primary.Close(false)
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

// noFiles is a primary tier that has room for no more files.
type noFiles struct{ driver.Primary }

// Create implements driver.Primary.
func (noFiles) Create() (driver.BlobID, *os.File, error) { return 0, nil, block.ErrNoSpace }

// TestDirWithoutFile: where memory has room for no more files, a directory does without.
func TestDirWithoutFile(t *testing.T) {
	m := newModel(false, false, false)
	defer m.nm.Primary.Close(false)
	m.nm.Primary = noFiles{m.nm.Primary}
	a, err := m.nm.Mkdir(index.Root, "d", 0o755, 0, 0, state.Process{})
	if err != nil || m.nm.Mu.Ix.At(a.ID).InMemory() || m.nm.Mu.DirFiles() != 0 {
		t.Errorf("%+v, %v; %d files", a, err, m.nm.Mu.DirFiles())
	}
}
