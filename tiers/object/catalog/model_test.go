package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// model is a catalog of plain maps.
type model struct {
	blocks  map[string]Entry
	dirs    map[string]modelDir
	packs   map[uint32]Pack
	tombs   map[string]tomb
	refused uint64
	now     int64
}

type modelDir struct {
	seq   uint64
	attrs driver.DirAttrs
}

// inPack returns the blocks of a pack.
func (m *model) inPack(n uint32) (paths []string) {
	for path, e := range m.blocks {
		if e.Pack == n {
			paths = append(paths, path)
		}
	}
	return paths
}

func (m *model) put(path string, e Entry, dirs []driver.DirAttrs) bool {
	p, is := m.packs[e.Pack]
	if g, removed := m.tombs[path]; removed && e.Seq <= g.seq && p.Time <= g.at && m.now < g.until {
		m.refused++
		return false
	}
	if old, held := m.blocks[path]; held {
		if e.Seq < old.Seq || e.Seq == old.Seq && (old.Pack == e.Pack && e.Offset <= old.Offset ||
			old.Pack != e.Pack && (!is || p.Time <= m.packs[old.Pack].Time)) {
			return false
		}
	}
	in := m.inPack(e.Pack)
	if !is || len(in) > 0 && (e.Size >= largeSize || m.blocks[in[0]].Size >= largeSize) {
		m.refused++
		return false
	}
	m.blocks[path] = e
	for i, dir := 0, parentOf(path); dir != ""; dir = parentOf(dir) {
		if i = strings.Count(dir, "/"); i < len(dirs) && e.Seq > m.dirs[dir].seq {
			m.dirs[dir] = modelDir{e.Seq, dirs[i]}
		} else if _, is := m.dirs[dir]; !is {
			m.dirs[dir] = modelDir{}
		}
	}
	m.tidy()
	return true
}

// tidy forgets the directories without blocks.
func (m *model) tidy() {
	used := map[string]bool{}
	for path := range m.blocks {
		for dir := parentOf(path); dir != ""; dir = parentOf(dir) {
			used[dir] = true
		}
	}
	maps.DeleteFunc(m.dirs, func(dir string, _ modelDir) bool { return !used[dir] })
}

func (m *model) remove(path string, which func(e Entry) bool) bool {
	e, is := m.blocks[path]
	if !is || !which(e) {
		return false
	}
	delete(m.blocks, path)
	m.tidy()
	return true
}

// key returns the key of a path.
func key(tb testing.TB, path string) block.Key {
	tb.Helper()
	k, err := block.ParseKey(path)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// TestModel does random operations on a catalog and on plain maps, and compares all answers.
func TestModel(t *testing.T) {
	for range 3 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		testModel(t, rand.New(rand.NewPCG(seed, 1)))
	}
	if Align != pack.Align {
		t.Error("units differ from those of packs")
	}
}

func testModel(t *testing.T, r *rand.Rand) {
	m := &model{blocks: map[string]Entry{}, dirs: map[string]modelDir{}, packs: map[uint32]Pack{}, tombs: map[string]tomb{}}
	c := New(Options{Now: func() time.Time { return time.Unix(0, m.now) }})
	paths := []string{"a", "d"}
	for i := range 150 {
		parts := []string{fmt.Sprint("f", i)}
		for range r.IntN(4) {
			parts = append(parts, fmt.Sprint("d", r.IntN(3)))
		}
		slices.Reverse(parts)
		paths = append(paths, strings.Join(parts, "/"))
	}
	numbers := func() []uint32 { return append(slices.Sorted(maps.Keys(m.packs)), 1<<20) }
	for step := range 4000 {
		path := paths[r.IntN(len(paths))]
		all := numbers()
		n := all[r.IntN(len(all))]
		switch op := r.IntN(20); {
		case op < 2:
			p := Pack{Time: int64(step), Writer: r.Uint64(), Index: int64(r.Uint32()) * Align}
			p.Size = p.Index + int64(r.Uint32())
			n, ok := c.AddPack(p)
			if _, used := m.packs[n]; !ok || used {
				t.Fatalf("step %d: pack %d, %v", step, n, ok)
			}
			m.packs[n] = p
		case op < 14:
			e := Entry{Seq: 1 + r.Uint64N(20), Size: r.Int64N(100), Mode: r.Uint32N(2), UID: r.Uint32N(2), GID: ^uint32(0), Expires: r.Int64N(2) * 9e18, Pack: n, Offset: r.Int64N(1<<unitBits) * Align}
			if r.IntN(4) == 0 {
				e.Size, e.Offset = largeSize-1+r.Int64N(3)*r.Int64N(1<<30), 0
			}
			dirs := make([]driver.DirAttrs, r.IntN(4))
			for i := range dirs {
				dirs[i].Mode = r.Uint32()
			}
			if got, want := c.Put(path, e, dirs), m.put(path, e, dirs); got != want {
				t.Fatalf("step %d: put %s %+v: got %v", step, path, e, got)
			}
		case op < 16:
			g := tomb{r.Uint64N(20), r.Int64N(int64(step) + 1), m.now + r.Int64N(100)}
			if old, is := m.tombs[path]; g.until > m.now || is && old.until > m.now {
				m.tombs[path] = tomb{max(g.seq, old.seq), max(g.at, old.at), max(g.until, old.until)}
			}
			if got, want := c.Remove(path, g.seq, g.at, g.until), m.remove(path, func(e Entry) bool { return e.Seq <= g.seq && m.packs[e.Pack].Time <= g.at }); got != want {
				t.Fatalf("step %d: remove %s: got %v", step, path, got)
			}
		case op < 18:
			if got, want := c.Forget(path, n), m.remove(path, func(e Entry) bool { return e.Pack == n }); got != want {
				t.Fatalf("step %d: forget %s: got %v", step, path, got)
			}
		case r.IntN(4) == 0:
			drop, want := []uint32{n, n, all[r.IntN(len(all))]}, 0
			for _, n := range drop {
				for _, path := range m.inPack(n) {
					m.remove(path, func(Entry) bool { want++; return true })
				}
				delete(m.packs, n)
			}
			if got := c.Drop(refs(c, drop...)...); got != want {
				t.Fatalf("step %d: dropped %d blocks, want %d", step, got, want)
			}
		default:
			m.now += r.Int64N(5)
			maps.DeleteFunc(m.tombs, func(_ string, g tomb) bool { return g.until <= m.now })
			c.Stats() // forgets the same
		}
		if step%50 == 0 {
			compare(t, c, m, paths)
		}
	}
	c.Drop(refs(c, numbers()...)...)
	m.blocks, m.dirs, m.packs = nil, nil, nil
	compare(t, c, m, paths)
}

// compare compares all that c says with m.
func compare(t *testing.T, c *Catalog, m *model, paths []string) {
	t.Helper()
	live := map[uint32]Pack{}
	st := Stats{Blocks: int64(len(m.blocks)), Packs: int64(len(m.packs)), Dirs: int64(len(m.dirs)), Refused: m.refused}
	classes := map[string]bool{}
	for n, p := range m.packs {
		for _, path := range m.inPack(n) {
			e := m.blocks[path]
			p.Blocks++
			p.Live += e.Size
			classes[fmt.Sprint(parentOf(path), e.Mode, e.UID, e.Expires)] = true
		}
		st.LiveBytes += p.Live
		st.PackedBytes += p.Size
		live[n] = p
		if got, ok := c.Pack(n); !ok || got != p {
			t.Fatalf("pack %d: got %+v, want %+v", n, got, p)
		}
	}
	st.Classes = int64(len(classes))
	got := map[uint32]Pack{}
	c.Packs(func(n uint32, p Pack) bool { got[n] = p; return true })
	if !maps.Equal(got, live) {
		t.Fatalf("packs: got %v, want %v", got, live)
	}
	for _, path := range paths {
		want, is := m.blocks[path]
		if got, ok := c.Get(key(t, path)); ok != is || got != want {
			t.Fatalf("%s: got %+v, want %+v", path, got, want)
		}
		for dir := parentOf(path); dir != ""; dir = parentOf(dir) {
			want, is := m.dirs[dir]
			if got, ok := c.Dir(dir); ok != is || got != want.attrs {
				t.Fatalf("%s: got %v, %v, want %+v", dir, got, ok, want)
			}
		}
	}
	now := c.Stats()
	if st.Tombs = now.Tombs; now.Tombs < int64(len(m.tombs)) {
		t.Fatalf("%d tombs, want at least %d", now.Tombs, len(m.tombs))
	}
	now.TableBytes, now.PackBytes, now.DirBytes, now.TombBytes = 0, 0, 0, 0
	if now != st {
		t.Fatalf("got %+v, want %+v", now, st)
	}
	for i := range c.shards {
		checkTable(t, &c.shards[i].table)
	}
}
