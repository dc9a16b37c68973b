package location

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// model is an index of plain maps.
type model struct {
	entries  map[uint64]map[Slot]Entry
	live     map[Slot]bool
	graves   []modelGrave // in order of learning
	watched  map[uint64]bool
	lost     []uint64
	refused  uint64
	horizon  time.Duration
	max      int
	maxBytes int // of paths
	now      int64
}

type modelGrave struct {
	Grave
	since int64
}

func (m *model) buried(hash uint64) *modelGrave {
	m.sweep()
	for i := range m.graves {
		if m.graves[i].Hash == hash {
			return &m.graves[i]
		}
	}
	return nil
}

func (m *model) sweep() {
	m.graves = slices.DeleteFunc(m.graves, func(g modelGrave) bool { return m.now-g.since >= int64(m.horizon) })
}

// check finds the watches that have ended.
func (m *model) check() {
	for hash := range m.watched {
		if len(m.lookup(hash)) == 0 {
			delete(m.watched, hash)
			m.lost = append(m.lost, hash)
		}
	}
}

func (m *model) put(slot Slot, e Entry) bool {
	g := m.buried(e.Hash)
	bad := e.Size < 0 || e.Size > MaxSize
	if g != nil && g.Seq > e.Seq {
		m.refused++
		bad = true
	}
	if bad {
		delete(m.entries[e.Hash], slot)
		return false
	}
	if m.entries[e.Hash] == nil {
		m.entries[e.Hash] = map[Slot]Entry{}
	}
	m.entries[e.Hash][slot] = e
	return true
}

func (m *model) bury(g Grave) bool {
	g.Learned = m.now
	n := modelGrave{Grave: g, since: m.now}
	if g.At > 0 {
		n.since = min(g.At, m.now)
		if int64(g.Seq) <= m.now {
			n.since = min(max(g.At, int64(g.Seq)), m.now)
		}
	}
	n.At = n.since
	if g.Seq == 0 || m.now-n.since >= int64(m.horizon) {
		return false
	}
	if old := m.buried(g.Hash); old != nil {
		if g.Seq <= old.Seq {
			return false
		}
		n.since = max(n.since, old.since)
		m.graves = slices.DeleteFunc(m.graves, func(o modelGrave) bool { return o.Hash == g.Hash })
	}
	for len(m.graves) > 0 && (len(m.graves) == m.max || m.paths()+len(g.Path) > m.maxBytes) {
		oldest := slices.MinFunc(m.graves, func(a, b modelGrave) int { return cmp.Compare(a.since, b.since) })
		if oldest.since > n.since {
			return false
		}
		m.graves = slices.DeleteFunc(m.graves, func(o modelGrave) bool { return o == oldest })
	}
	m.graves = append(m.graves, n)
	for slot, e := range m.entries[g.Hash] {
		if e.Seq < g.Seq {
			delete(m.entries[g.Hash], slot)
		}
	}
	return true
}

func (m *model) paths() (bytes int) {
	for i := range m.graves {
		bytes += len(m.graves[i].Path)
	}
	return bytes
}

func (m *model) drop(slot Slot) {
	m.live[slot] = false
	for _, at := range m.entries {
		delete(at, slot)
	}
}

func (m *model) retain(keep func(hash uint64) bool, slots ...Slot) {
	for hash, at := range m.entries {
		for _, slot := range slots {
			if !keep(hash) {
				delete(at, slot)
			}
		}
	}
}

func (m *model) lookup(hash uint64) []Holder {
	var all []Holder
	for slot, e := range m.entries[hash] {
		if m.live[slot] {
			all = append(all, Holder{slot, e})
		}
	}
	slices.SortFunc(all, func(a, b Holder) int { return -cmp.Compare(a.Seq, b.Seq) })
	all = slices.DeleteFunc(all, func(h Holder) bool { return h.Seq != all[0].Seq })
	sortHolders(all)
	return all
}

// sortHolders sorts by slot, separately the holders in memory and the others.
func sortHolders(all []Holder) {
	slices.SortFunc(all, func(a, b Holder) int {
		if a.Memory != b.Memory {
			if a.Memory {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Slot, b.Slot)
	})
}

func memoryFirst(all []Holder) bool {
	return slices.IsSortedFunc(all, func(a, b Holder) int {
		switch {
		case a.Memory == b.Memory:
			return 0
		case a.Memory:
			return -1
		}
		return 1
	})
}

// TestModel does random work on an index and on a model of maps, under a fake clock, and compares
// all their answers.
func TestModel(t *testing.T) {
	for range 4 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		synctest.Test(t, func(t *testing.T) { testModel(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// world is an index next to its model.
type world struct {
	*model
	t    *testing.T
	r    *rand.Rand
	x    *Index
	told []uint64 // by Lost
	mu   sync.Mutex
	seen map[uint64]bool // hashes
}

func testModel(t *testing.T, r *rand.Rand) {
	w := &world{t: t, r: r, seen: map[uint64]bool{}, model: &model{
		entries: map[uint64]map[Slot]Entry{}, live: map[Slot]bool{}, watched: map[uint64]bool{},
		horizon: time.Duration(100+r.IntN(3000)) * time.Second, max: 1 + r.IntN(60), maxBytes: 50 + r.IntN(2000), now: 1e18,
	}}
	w.x = New(Options{
		Horizon: w.horizon, MaxGraves: w.max, MaxGraveBytes: int64(w.maxBytes),
		Now: func() time.Time { return time.Unix(0, w.now) },
		Lost: func(hash uint64) {
			w.mu.Lock()
			w.told = append(w.told, hash)
			w.mu.Unlock()
			w.x.Lookup(hash, nil) // no lock is held
			w.x.Unwatch(hash)
		},
	})
	for i := range 15000 {
		w.step()
		w.check()
		synctest.Wait() // for Lost of Watch
		w.compareLost(i)
		if i%1000 == 0 {
			w.compareAll()
		}
	}
	w.compareAll()
	for slot := range Slot(30) {
		w.x.Drop(slot)
		w.drop(slot)
	}
	w.check()
	w.compareAll()
	if st := w.x.Stats(); st.Entries != 0 || st.Watched != 0 {
		t.Fatalf("after all: %+v", st)
	}
}

// hash returns one of 300 hashes. Some are neighbours at the start, in the middle and at the end of a table.
func (w *world) hash() uint64 {
	hash := uint64(w.r.IntN(300))
	if hash < 30 {
		crowds := []uint64{0, 1 << 40, 1 << 54, 1<<55 + 7, 1<<56 - 3, 1<<64 - 3}
		hash = w.x.unmix(crowds[hash%6] + hash/6%3)
	}
	w.seen[hash] = true
	return hash
}

func (w *world) step() {
	r, hash, slot := w.r, w.hash(), Slot(w.r.IntN(30))
	w.now += int64(r.IntN(int(2 * time.Second)))
	switch k := r.IntN(100); {
	case k < 50:
		e := Entry{Hash: hash, Seq: uint64(w.now) - uint64(r.IntN(4))*uint64(time.Second), Size: r.Int64N(MaxSize + 1), Memory: r.IntN(2) == 0,
			Mode: []uint32{0o100644, 0o040755, 0xffffffff}[r.IntN(3)], UID: uint32(r.IntN(60)), GID: uint32(r.IntN(60))}
		if r.IntN(30) == 0 {
			e.Size = []int64{0, MaxSize, -1, -1 << 63, MaxSize + 1, 1<<63 - 1}[r.IntN(6)]
		}
		if got, want := w.x.Put(slot, e), w.put(slot, e); got != want {
			w.t.Fatalf("put %v: %v, want %v", e, got, want)
		}
	case k < 70:
		w.x.Delete(slot, hash)
		delete(w.entries[hash], slot)
	case k < 80:
		live := r.IntN(3) > 0
		w.x.SetLive(slot, live)
		w.live[slot] = live
	case k < 81:
		part := r.Uint64N(5)
		keep := func(hash uint64) bool { return hash%5 != part }
		switch r.IntN(3) {
		case 0:
			w.x.Drop(slot)
			w.drop(slot)
		case 1:
			w.x.Retain(slot, keep)
			w.retain(keep, slot)
		default:
			var all []Slot
			for s := range Slot(30) {
				all = append(all, s)
			}
			w.x.Keep(keep)
			w.retain(keep, all...)
		}
	case k < 90:
		g := Grave{Hash: hash, Seq: uint64(w.now) - uint64(r.IntN(10))*uint64(time.Second), Dir: r.IntN(2) == 0,
			Path: string(make([]byte, r.IntN(100))), At: w.now + int64(r.IntN(4000)-3500)*int64(time.Second)}
		switch r.IntN(10) {
		case 0:
			g.At = 0
		case 1:
			g.Seq = uint64(r.IntN(2)) // new only by At
		}
		if got, want := w.x.Bury(g.Hash, g.Seq, g.Dir, g.Path, g.At), w.bury(g); got != want {
			w.t.Fatalf("bury %v: %v, want %v", g, got, want)
		}
	case k < 98:
		w.x.Watch(hash)
		w.watched[hash] = true
	default:
		w.x.Unwatch(hash)
		delete(w.watched, hash)
	}
}

func (w *world) compareLost(step int) {
	slices.Sort(w.lost)
	slices.Sort(w.told)
	if !slices.Equal(w.told, w.lost) {
		w.t.Fatalf("step %d: lost %v, want %v", step, w.told, w.lost)
	}
	w.told, w.lost = nil, nil
}

func (w *world) compareAll() {
	w.t.Helper()
	for hash := range w.seen {
		got, want := w.x.Lookup(hash, nil), w.lookup(hash)
		if !memoryFirst(got) {
			w.t.Fatalf("%d: memory is not first: %v", hash, got)
		}
		if sortHolders(got); !slices.Equal(got, want) {
			w.t.Fatalf("%d: holders\n%v, want\n%v", hash, got, want)
		}
		seq := uint64(0)
		if g := w.buried(hash); g != nil {
			seq = g.Seq
		}
		if got := w.x.Buried(hash); got != seq {
			w.t.Fatalf("%d: buried below %d, want %d", hash, got, seq)
		}
	}
	w.compareGraves(0)
	w.compareGraves(w.now - int64(w.horizon)/2)
	entries, bits := int64(0), w.r.IntN(14)
	for slot := range Slot(30) {
		count, blocks := int64(0), int64(0)
		got, want := make([]uint64, 1<<bits), make([]uint64, 1<<bits)
		for hash, at := range w.entries {
			if e, ok := at[slot]; ok {
				count++
				want[hash>>(64-bits)] += e.Digest()
				if !e.Dir() {
					blocks++
				}
			}
		}
		entries += count
		if n, b := w.x.Count(slot), w.x.Blocks(slot); n != count || b != blocks {
			w.t.Fatalf("slot %d: %d entries, %d blocks, want %d and %d", slot, n, b, count, blocks)
		}
		if w.x.Digests(slot, got); !slices.Equal(got, want) {
			w.t.Fatalf("slot %d: other digests of %d bits", slot, bits)
		}
	}
	st := w.x.Stats()
	if st.Entries != entries || st.Graves != int64(len(w.graves)) || st.Watched != int64(len(w.watched)) || st.Refused != w.refused {
		w.t.Fatalf("%+v, want %d entries, %d graves, %d watched, %d refused", st, entries, len(w.graves), len(w.watched), w.refused)
	}
	for i := range w.x.shards {
		checkShard(w.t, &w.x.shards[i])
	}
}

// checkShard checks the invariants of s.
func checkShard(tb testing.TB, s *shard) {
	tb.Helper()
	t, used, others := &s.table, uint32(0), 0
	for p := range t.places {
		e := t.at(p)
		if e.empty() {
			if *e != (packed{}) {
				tb.Fatalf("place %d: empty but %+v", p, *e)
			}
			continue
		}
		used++
		if e.class() == otherClass {
			others++
		}
		for q := t.home(e.hash); q != p; q = t.wrap(q + 1) {
			if t.at(q).empty() {
				tb.Fatalf("place %d: home is %d, but %d is empty", p, t.home(e.hash), q)
			}
		}
		if q, found := t.find(e.hash, e.slot()); !found || q != p {
			tb.Fatalf("place %d of %d: find says %d, %v", p, t.places, q, found)
		}
	}
	if used != t.used || uint64(used) >= max(t.places, 1) {
		tb.Fatalf("%d entries in %d places, counted %d", used, t.places, t.used)
	}
	if len(s.others.m) != others {
		tb.Fatalf("attributes of %d entries, want %d", len(s.others.m), others)
	}
}

func (w *world) compareGraves(since int64) {
	w.t.Helper()
	w.sweep()
	var got, want []Grave
	w.x.Graves(since, func(g Grave) bool { got = append(got, g); return true })
	for _, g := range w.graves {
		if g.Learned >= since {
			want = append(want, g.Grave)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("graves since %d:\n%v, want\n%v", since, got, want)
	}
}
