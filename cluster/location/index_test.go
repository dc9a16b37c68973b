package location

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// TestInput gives an index what cannot be: none of it is kept, and nothing breaks.
func TestInput(t *testing.T) {
	x := New(Options{})
	for _, slot := range []Slot{MaxSlots, math.MaxUint16} {
		if x.Put(slot, Entry{Hash: 5, Seq: 7}) {
			t.Errorf("slot %d took an entry", slot)
		}
		x.SetLive(slot, true)
		x.SetLive(slot, false)
		x.Delete(slot, 5)
		x.Drop(slot)
		if x.Count(slot) != 0 || x.Blocks(slot) != 0 {
			t.Errorf("slot %d has %d", slot, x.Count(slot))
		}
	}
	if x.Bury(5, 0, false, "g/a", 1) || x.Bury(5, 9, false, string(make([]byte, MaxPath+1)), 1) {
		t.Error("took a grave that cannot be")
	}
	if !x.Bury(5, 9, false, "g/a", 0) || !x.Bury(6, 9, false, "g/b", 0) {
		t.Error("took no graves")
	}
	if st := x.Stats(); st.Entries != 0 || st.Graves != 2 {
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
				checkShard(t, &x.shards[i])
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

// TestClasses shows that equal attributes have one number, and that those beyond all numbers are of otherClass.
func TestClasses(t *testing.T) {
	x := New(Options{})
	for range 2 {
		for i := range uint32(2 * otherClass) {
			if got := x.classes.number(attrs{0o100644, i, 0}); got != uint16(min(i+1, otherClass)) {
				t.Fatalf("attributes %d have class %d", i, got)
			}
		}
	}
}
