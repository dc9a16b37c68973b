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
	entries map[uint64]map[Slot]Entry
	live    map[Slot]bool
	graves  []modelGrave // in order of learning
	watched map[uint64]bool
	lost    []uint64
	refused uint64
	horizon time.Duration
	max     int
	now     int64
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
	if len(m.graves) == m.max {
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

func (m *model) drop(slot Slot) {
	m.live[slot] = false
	for _, at := range m.entries {
		delete(at, slot)
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
		horizon: time.Duration(100+r.IntN(3000)) * time.Second, max: 1 + r.IntN(60), now: 1e18,
	}}
	w.x = New(Options{
		Horizon: w.horizon, MaxGraves: w.max,
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

func (w *world) hash() uint64 {
	hash := uint64(w.r.IntN(300))
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
			e.Size = []int64{-1, -1 << 63, MaxSize + 1, 1<<63 - 1}[r.IntN(4)]
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
		w.x.Drop(slot)
		w.drop(slot)
	case k < 90:
		g := Grave{Hash: hash, Seq: uint64(w.now) - uint64(r.IntN(10))*uint64(time.Second), Dir: r.IntN(2) == 0,
			Path: "group/block", At: w.now + int64(r.IntN(4000)-3500)*int64(time.Second)}
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
	counts, entries := map[Slot]int64{}, int64(0)
	for _, at := range w.entries {
		for slot := range at {
			counts[slot]++
			entries++
		}
	}
	for slot := range Slot(30) {
		if got := w.x.Count(slot); got != counts[slot] {
			w.t.Fatalf("slot %d: count %d, want %d", slot, got, counts[slot])
		}
	}
	st := w.x.Stats()
	if st.Entries != entries || st.Graves != int64(len(w.graves)) || st.Watched != int64(len(w.watched)) || st.Refused != w.refused {
		w.t.Fatalf("%+v, want %d entries, %d graves, %d watched, %d refused", st, entries, len(w.graves), len(w.watched), w.refused)
	}
	for i := range w.x.shards {
		checkTable(w.t, &w.x.shards[i].table)
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
