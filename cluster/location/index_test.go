package location

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// TestInput gives an index invalid input of a peer: none of it is kept, and nothing breaks.
func TestInput(t *testing.T) {
	x := New(Options{})
	x.SetLive(1, true)
	good := Entry{Hash: 5, Seq: 7, Size: 1, Mode: 0o100644}
	for _, tc := range []struct {
		name string
		slot Slot
		size int64
		want bool
	}{
		{"good", 1, 1, true},
		{"empty", 1, 0, true},
		{"largest", 1, MaxSize, true},
		{"negative", 1, -1, false},
		{"most negative", 1, math.MinInt64, false},
		{"too large", 1, MaxSize + 1, false},
		{"no such slot", MaxSlots, 1, false},
		{"far from any slot", math.MaxUint16, 1, false},
	} {
		x.Put(1, good)
		e := good
		e.Size = tc.size
		if got := x.Put(tc.slot, e); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		want := tc.want || tc.slot != 1 // a bad size also removes the earlier entry
		if got := len(x.Lookup(5, nil)) == 1; got != want {
			t.Errorf("%s: held %v, want %v", tc.name, got, want)
		}
	}
	for _, slot := range []Slot{MaxSlots, math.MaxUint16} {
		x.SetLive(slot, true)
		x.SetLive(slot, false)
		x.Delete(slot, 5)
		x.Drop(slot)
		if n := x.Count(slot); n != 0 {
			t.Errorf("slot %d has %d", slot, n)
		}
	}
	if x.Bury(5, 0, false, "g/a", 1) || x.Bury(5, 9, false, string(make([]byte, MaxPath+1)), 1) {
		t.Error("took a grave that cannot be")
	}
	if st := x.Stats(); st.Entries != 1 || st.Graves != 0 {
		t.Errorf("%+v", st)
	}
}

// TestManyHolders makes all slots hold one hash, next to others, and removes it from all at once in
// each possible way.
func TestManyHolders(t *testing.T) {
	for name, clear := range map[string]func(x *Index){
		"Bury": func(x *Index) { x.Bury(1, 2, true, "g", 0) },
		"Delete": func(x *Index) {
			for slot := range Slot(MaxSlots) {
				x.Delete(slot, 1)
			}
		},
		"Drop": func(x *Index) {
			for slot := range Slot(MaxSlots) {
				x.Drop(slot)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var lost atomic.Int32
			x := New(Options{Lost: func(uint64) { lost.Add(1) }})
			fill(x, 0, 3000)
			for slot := range Slot(MaxSlots) {
				x.SetLive(slot, true)
				x.Put(slot, Entry{Hash: 1, Seq: 1, Mode: 0o040755})
			}
			x.Watch(1)
			if got := len(x.Lookup(1, nil)); got != MaxSlots {
				t.Fatalf("%d holders, want %d", got, MaxSlots)
			}
			clear(x)
			for i := range x.shards {
				checkTable(t, &x.shards[i].table)
			}
			if got := len(x.Lookup(1, nil)); got != 0 || lost.Load() != 1 {
				t.Errorf("%d holders, want 0; lost %d times", got, lost.Load())
			}
			if st := x.Stats(); st.Bytes > 400<<10 {
				t.Errorf("%+v: memory was not given back", st)
			}
		})
	}
}

// TestManyAttributes has more kinds of attributes than classes: each entry keeps its own, and the
// attributes without a class are freed with their entries.
func TestManyAttributes(t *testing.T) {
	x := New(Options{})
	x.SetLive(1, true)
	const n = 3 * otherClass
	entry := func(i, uid int) Entry {
		return Entry{Hash: uint64(i), Seq: 1, Mode: 0o100644, UID: uint32(uid), GID: uint32(uid / 7)}
	}
	check := func(uid func(i int) int) {
		t.Helper()
		for i := range n {
			if got := x.Lookup(uint64(i), nil); len(got) != 1 || got[0].Entry != entry(i, uid(i)) {
				t.Fatalf("%v, want %v", got, entry(i, uid(i)))
			}
		}
	}
	for i := range n {
		x.Put(1, entry(i, i))
	}
	check(func(i int) int { return i })
	for i := range n {
		x.Put(1, entry(i, n-i-1))
	}
	check(func(i int) int { return n - i - 1 })
	others := 0
	for i := range x.shards {
		others += len(x.shards[i].others.m)
	}
	if others != n-otherClass+1 {
		t.Errorf("%d entries without a class, want %d", others, n-otherClass+1)
	}
	for i := range n / 2 {
		x.Delete(1, uint64(i))
	}
	x.Drop(1)
	for i := range x.shards {
		if left := len(x.shards[i].others.m); left != 0 {
			t.Fatalf("attributes of %d entries are left", left)
		}
	}
}

// TestParallel runs all methods at once. Look-ups must see only what was put. When all entries are
// gone, every watch has been called exactly once.
func TestParallel(t *testing.T) {
	const hashes, writers, rounds = 500, 6, 40
	var told [hashes]atomic.Int32
	var x *Index
	x = New(Options{Lost: func(hash uint64) {
		told[hash].Add(1)
		x.Lookup(hash, nil)
	}})
	x.SetLive(writers, true)
	for hash := range uint64(hashes) {
		x.Put(writers, Entry{Hash: hash, Seq: 1 << 40})
		x.Watch(hash)
	}
	var work, readers sync.WaitGroup
	var done atomic.Bool
	for w := range Slot(writers) {
		work.Go(func() {
			for round := range rounds {
				x.SetLive(w, true)
				for hash := range uint64(hashes) {
					x.Put(w, Entry{Hash: hash, Seq: hash + uint64(w)<<32, Size: int64(hash), UID: uint32(hash), Memory: w%2 == 0})
				}
				switch round % 3 {
				case 0:
					x.SetLive(w, false)
				case 1:
					for hash := range uint64(hashes) {
						x.Bury(hash, uint64(round), false, "g/a", 0)
						x.Delete(w, hash)
					}
				case 2:
					x.Drop(w)
				}
			}
			x.Drop(w)
		})
	}
	for range 2 {
		readers.Go(func() {
			var buf []Holder
			for hash := uint64(0); !done.Load(); hash = (hash + 1) % hashes {
				buf = x.Lookup(hash, buf[:0])
				if len(buf) != 1 || buf[0].Slot != writers || buf[0].Seq != 1<<40 {
					t.Errorf("%d: %v", hash, buf)
					return
				}
				if hash == 0 {
					x.Stats()
					x.Graves(0, func(Grave) bool { return !done.Load() })
				}
			}
		})
	}
	work.Wait()
	done.Store(true)
	readers.Wait()
	for hash := range told {
		if n := told[hash].Load(); n != 0 {
			t.Fatalf("%d: told %d times while it was held", hash, n)
		}
	}
	// The last holder goes in four ways at once.
	work.Go(func() { x.SetLive(writers, false) })
	work.Go(func() { x.Drop(writers) })
	work.Go(func() {
		for hash := range uint64(hashes) {
			x.Delete(writers, hash)
		}
	})
	work.Go(func() {
		for hash := range uint64(hashes) {
			x.Bury(hash, 1<<41, false, "g/a", 0)
		}
	})
	work.Wait()
	for hash := range told {
		if n := told[hash].Load(); n != 1 {
			t.Errorf("%d: told %d times, want once", hash, n)
		}
	}
	if st := x.Stats(); st.Entries != 0 || st.Watched != 0 {
		t.Errorf("%+v, want nothing", st)
	}
}

// TestRoom fills an index beyond its memory: what is known stays and can change, what is new is a miss, nobody gets a lower
// version in its place, and there is room again when a holder goes.
func TestRoom(t *testing.T) {
	const most = 1 << 20
	lost := map[uint64]int{}
	x := New(Options{MaxBytes: most, Lost: func(hash uint64) { lost[hash]++ }})
	x.SetLive(1, true)
	x.SetLive(2, true)
	key := func(i int) Entry { return Entry{Hash: HashPath(strconv.Itoa(i)), Seq: 5, Size: 1, Mode: 0o100644} }
	known := 0
	for i := range 3 * most / entryBytes {
		slot := Slot(1 + i%2)
		put := x.Put(slot, key(i))
		if got := len(x.Lookup(key(i).Hash, nil)) == 1; got != put {
			t.Fatalf("key %d: entered %v, found %v", i, put, got)
		}
		if put {
			known++
		}
	}
	st := x.Stats()
	if st.Limit > most || st.Limit <= most-entryBytes || st.Entries != int64(known) || st.Omitted != uint64(3*most/entryBytes-known) || !x.Full() {
		t.Fatalf("%+v, full %v", st, x.Full())
	}
	if tables := int64(x.pool.taken()) * entryBytes; tables > most || known < most/entryBytes*3/4 {
		t.Fatalf("%d entries in %d bytes", known, tables)
	}

	// A later version on the holder that is known, and one on another holder.
	e := key(0)
	e.Seq = 6
	if !x.Put(1, e) {
		t.Error("an entry did not change in its place")
	}
	for i := 2; i < 400; i += 2 {
		e := key(i)
		e.Seq = 6
		x.Watch(e.Hash)
		holders := x.Lookup(e.Hash, nil)
		if put := x.Put(2, e); !put && len(holders) > 0 && lost[e.Hash] == 0 {
			t.Fatal("the watcher of a lower version was not told that it is void")
		}
		for _, h := range x.Lookup(e.Hash, nil) {
			if h.Seq != 6 {
				t.Fatalf("key %d: version %d after 6 was told", i, h.Seq)
			}
		}
	}

	x.Drop(1)
	if x.Full() {
		t.Error("full after a holder has gone")
	}
	if e := key(3 * most / entryBytes); !x.Put(2, e) || len(x.Lookup(e.Hash, nil)) != 1 {
		t.Error("no room after a holder has gone")
	}
}

// TestBlocks shows that directories are not counted as blocks, whatever becomes of entries.
func TestBlocks(t *testing.T) {
	x := New(Options{})
	rnd := rand.New(rand.NewPCG(1, 2))
	entries := map[Slot]map[uint64]Entry{1: {}, 2: {}}
	for i := range 20_000 {
		slot := Slot(1 + rnd.IntN(2))
		e := Entry{Hash: HashPath(strconv.Itoa(rnd.IntN(3000))), Seq: uint64(i), Mode: 0o100644, UID: uint32(rnd.IntN(3000))} // more owners than classes
		if rnd.IntN(3) == 0 {
			e.Mode = 0o040755
		}
		if rnd.IntN(4) == 0 {
			x.Delete(slot, e.Hash)
			delete(entries[slot], e.Hash)
			continue
		}
		if !x.Put(slot, e) {
			t.Fatal("no room")
		}
		entries[slot][e.Hash] = e
	}
	count := func() (blocks int64) {
		for _, e := range entries[1] {
			if !e.Dir() {
				blocks++
			}
		}
		return blocks
	}
	if got, want := x.Blocks(1), count(); got != want || x.Count(1) != int64(len(entries[1])) {
		t.Errorf("%d blocks of %d entries, want %d of %d", got, x.Count(1), want, len(entries[1]))
	}
	x.Drop(1)
	if got := x.Blocks(1); got != 0 {
		t.Errorf("%d blocks of a slot that was dropped", got)
	}
}
