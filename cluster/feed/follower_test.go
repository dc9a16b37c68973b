package feed

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tests/sets"
	"github.com/kvfs/kvfs/tiers/block"
)

// slotPool gives out slots, and requires that they come back empty.
type slotPool struct {
	t     testing.TB
	index *location.Index
	mu    struct {
		sync.Mutex
		free []location.Slot
	}
	count int
}

func newSlotPool(t testing.TB, index *location.Index, count int) *slotPool {
	p := &slotPool{t: t, index: index, count: count}
	for n := range count {
		p.mu.free = append(p.mu.free, location.Slot(n))
	}
	return p
}

// TakeSlot implements Slots.
func (p *slotPool) TakeSlot() (location.Slot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.free) == 0 {
		return 0, false
	}
	s := p.mu.free[0]
	p.mu.free = p.mu.free[1:]
	return s, true
}

// GiveSlot implements Slots.
func (p *slotPool) GiveSlot(s location.Slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.mu.free, s) {
		p.t.Errorf("slot %d came back twice", s)
	}
	if n := p.index.Count(s); n != 0 {
		p.t.Errorf("slot %d came back with %d entries", s, n)
	}
	p.mu.free = append(p.mu.free, s)
}

// taken returns how many slots are given out.
func (p *slotPool) taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count - len(p.mu.free)
}

// fixture is a Follower with its surroundings.
type fixture struct {
	*Follower
	t        *testing.T
	index    *location.Index
	slots    *slotPool
	graves   []Record
	observed []uint64
}

func newFixture(t *testing.T, slots int) *fixture {
	x := &fixture{t: t, index: location.New(location.Options{})}
	x.slots = newSlotPool(t, x.index, slots)
	x.Follower = NewFollower(x.index, x.slots,
		func(r *Record) { x.graves = append(x.graves, *r) },
		func(seq uint64) { x.observed = append(x.observed, seq) })
	return x
}

// batch returns a batch with its count.
func batch(epoch, next uint64, begin, end bool, records ...Record) *Batch {
	return &Batch{Position: Position{epoch, next}, Begin: begin, End: end,
		Records: Encode(nil, records...), Count: len(records)}
}

// must applies batches that must be accepted.
func (x *fixture) must(batches ...*Batch) {
	x.t.Helper()
	for i, b := range batches {
		if err := x.Apply(b); err != nil {
			x.t.Fatalf("batch %d: %v", i, err)
		}
	}
}

// sees requires that exactly these of the hashes 1 to 99 are found, each once, and that the stream
// continues at next.
func (x *fixture) sees(next uint64, hashes ...uint64) {
	x.t.Helper()
	var got []uint64
	for h := uint64(1); h < 100; h++ {
		for range x.index.Lookup(h, nil) {
			got = append(got, h)
		}
	}
	if !slices.Equal(got, hashes) {
		x.t.Errorf("found %d, want %d", got, hashes)
	}
	if x.Position().Next != next {
		x.t.Errorf("position %v, want to go on from %d", x.Position(), next)
	}
}

func release(hash uint64) Record { return Record{Op: Release, Hash: hash} }

// TestFollowerRefuses shows which batches are invalid, and that they change neither the position
// nor the entries, and leave no slot taken.
func TestFollowerRefuses(t *testing.T) {
	less, more := batch(7, 12, false, false, numbered(2, 3)...), batch(7, 12, false, false, numbered(2, 3)...)
	less.Count, less.Position.Next = 1, 11
	more.Count, more.Position.Next = 3, 13
	negative := batch(7, 9, false, false)
	negative.Count = -1
	wrong := batch(8, 20, true, true, numbered(4, 5)...)
	wrong.Count = 7
	bytes := batch(7, 11, false, false)
	bytes.Count, bytes.Records = 1, []byte("\xff")
	for _, c := range []struct {
		name  string
		bad   *Batch
		half  bool // during a snapshot
		fresh bool // before any snapshot
		want  error
	}{
		{"deltas before any snapshot", batch(7, 2, false, false, numbered(1, 1)...), false, true, ErrOutOfStep},
		{"rest before any snapshot", batch(7, 0, false, false, numbered(1, 1)...), false, true, ErrOutOfStep},
		{"end before any snapshot", batch(7, 1, false, true), false, true, ErrOutOfStep},
		{"zero", &Batch{}, false, false, ErrOutOfStep},
		{"gap", batch(7, 12, false, false, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"twice", batch(7, 10, false, false, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"back", batch(7, 5, false, false, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"negative", negative, false, false, ErrOutOfStep},
		{"epoch changed", batch(8, 11, false, false, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"end without a beginning", batch(7, 11, false, true, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"begin without an epoch", batch(0, 11, true, true, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"begin with a place", batch(8, 11, true, false, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"end without a place", batch(8, 0, true, true, numbered(2, 2)...), false, false, ErrOutOfStep},
		{"fewer", more, false, false, ErrMalformed},
		{"more", less, false, false, ErrMalformed},
		{"wrong count in a snapshot", wrong, false, false, ErrMalformed},
		{"bytes", bytes, false, false, ErrMalformed},
		{"snapshot of another epoch", batch(9, 0, false, false), true, false, ErrOutOfStep},
		{"end of another epoch", batch(9, 4, false, true), true, false, ErrOutOfStep},
		{"gap in a snapshot", batch(7, 13, false, false, numbered(2, 2)...), true, false, ErrOutOfStep},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newFixture(t, 2)
			want, seen := Position{}, []uint64(nil)
			if !c.fresh {
				x.must(batch(7, 10, true, true, numbered(1, 3)...))
				want, seen = Position{7, 10}, []uint64{1, 2, 3}
			}
			if c.half {
				x.must(batch(8, 0, true, false, numbered(20, 21)...))
			}
			if err := x.Apply(c.bad); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			x.sees(want.Next, seen...)
			if n := x.slots.taken(); n != len(x.Slots()) || n > 1 {
				t.Errorf("%d slots taken, %d named", n, len(x.Slots()))
			}
			if s := x.Stats(); s.Refused != 1 {
				t.Errorf("%d refused", s.Refused)
			}
			if !c.fresh {
				x.must(batch(7, 11, false, false, release(1)))
				x.sees(11, 2, 3)
			}
			x.must(batch(8, 5, true, true, numbered(30, 31)...))
			x.sees(5, 30, 31)
		})
	}
}

// TestFollowerSkips shows that a false record is skipped, and that the other records of its holder
// count.
func TestFollowerSkips(t *testing.T) {
	good := Record{Op: Hold, Hash: 2, Seq: 5, Size: 4096, Mode: 0o100644}
	long := Record{Op: Bury, Seq: 5, Mode: typeFile, Path: string(make([]byte, location.MaxPath+1))}
	change := func(f func(r *Record)) Record { r := good; f(&r); return r }
	for i, r := range []Record{
		change(func(r *Record) { r.Seq = block.MaxSeq + 1 }),
		change(func(r *Record) { r.Seq = 1<<64 - 1 }),
		change(func(r *Record) { r.Size = -1 }),
		change(func(r *Record) { r.Size = location.MaxSize + 1 }),
		change(func(r *Record) { r.Mode = 0o644 }),
		change(func(r *Record) { r.Mode = 0o120777 }),
		change(func(r *Record) { r.Mode = 1<<31 | 0o100644 }),
		long,
		{Op: Bury, Seq: 5, Mode: typeFile},
		{Op: Bury, Seq: block.MaxSeq + 1, Mode: typeFile, Path: "g/x"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			x, far := newFixture(t, 1), 0
			x.OnFar(func() { far++ })
			x.must(batch(7, 1, true, true, good))
			x.must(batch(7, 4, false, false, numbered(1, 1)[0], r, numbered(3, 3)[0]))
			if r.Op == Hold {
				x.sees(4, 1, 3) // the earlier entry of 2 no longer holds
			} else {
				x.sees(4, 1, 2, 3)
			}
			if s := x.Stats(); s.Skipped != 1 || s.Buried != 0 || len(x.graves) != 0 {
				t.Errorf("stats %+v, %d graves", s, len(x.graves))
			}
			if (far == 1) != (r.Seq > block.MaxSeq) {
				t.Errorf("%d too far", far)
			}
			if want := []uint64{5, 3}; !slices.Equal(x.observed, want) {
				t.Errorf("observed %d, want %d", x.observed, want)
			}
		})
	}
	x := newFixture(t, 1)
	x.must(batch(7, 1, true, true, change(func(r *Record) { r.Mode, r.Seq = 0o040755, block.MaxSeq })))
	if got := x.index.Lookup(2, nil); len(got) != 1 || got[0].Size != 0 || !got[0].Dir() {
		t.Errorf("directory: %+v", got)
	}
	grave := Record{Op: Bury, Hash: location.HashPath("g/x"), Seq: block.MaxSeq, Mode: typeFile, Path: "g/x", Time: time.Now().UnixNano()}
	x.must(batch(7, 3, false, false, grave, grave))
	if want := []Record{grave}; !reflect.DeepEqual(x.graves, want) || x.Stats().Buried != 1 {
		t.Errorf("told of %+v, want %+v", x.graves, want)
	}
}

// FuzzFollower shows that no stream of batches brings a Follower out of its states.
func FuzzFollower(f *testing.F) {
	for _, list := range [][]Record{numbered(1, 3), {release(1)}, {{Op: Bury, Seq: 4, Path: "g/a"}}} {
		f.Add([]byte{3, 1, 9, 0, 9, 2}, Encode(nil, list...))
		f.Add([]byte{67, 100, 73, 72, 74, 68, 32}, Encode(nil, list...))
	}
	f.Fuzz(func(t *testing.T, script, records []byte) {
		x := newFixture(t, 2)
		count := 0
		_ = Decode(records, func(*Record) error { count++; return nil })
		next := uint64(1)
		for _, op := range script {
			b := &Batch{Begin: op&1 != 0, End: op&2 != 0, Partial: op&8 != 0, Records: records, Count: count}
			b.Position.Epoch = uint64(op >> 6)
			if op&4 != 0 || b.End {
				b.Position.Next = next + uint64(count) + uint64(op>>4&1)
			}
			before := x.Position()
			var err error
			if op&32 != 0 { // a comparison instead; the answer says that all parts differ
				d := &Difference{b.Position, slices.Repeat(Parts{^op | 1}, shards/8), records}
				if own := x.Digests(); op&16 == 0 {
					d.Sums = make([]byte, d.Shards.Count()*len(own)/shards*sumBytes)
				}
				var parts Parts
				if parts, err = x.Compare(x.Digests(), d); parts != nil {
					b.Position = Position{} // it is not reached
				}
			} else {
				err = x.Apply(b)
			}
			switch after := x.Position(); {
			case err == nil && b.Position.Next != 0:
				if after != b.Position {
					t.Fatalf("position %v after a batch to %v", after, b.Position)
				}
				next = after.Next
			case after != before:
				t.Fatalf("position went from %v to %v, error %v", before, after, err)
			}
			if n := len(x.Slots()); n != x.slots.taken() || err != nil && n > 1 {
				t.Fatalf("%d slots named, %d taken, error %v", n, x.slots.taken(), err)
			}
		}
		x.Drop()
		if n := x.slots.taken(); n != 0 || x.index.Stats().Entries != 0 {
			t.Fatalf("%d slots and %d entries after Drop", n, x.index.Stats().Entries)
		}
	})
}

// TestFollowerBounded shows that the entries of a node are bounded, and that the others are counted as skipped.
func TestFollowerBounded(t *testing.T) {
	x := newFixture(t, 1)
	x.most = 100
	x.must(batch(7, 1, true, true, numbered(1, 150)...))
	if n, skipped := x.index.Stats().Entries, x.Stats().Skipped; n != 100 || skipped != 50 {
		t.Errorf("%d entries, %d records skipped", n, skipped)
	}
}

// Slots returns the slots with its entries now: none before the first snapshot, then one, or two
// during a snapshot.
func (f *Follower) Slots() []location.Slot {
	var numbers []location.Slot
	for _, s := range []slot{f.shown, f.hidden} {
		if s.taken {
			numbers = append(numbers, s.number)
		}
	}
	return numbers
}

func TestMain(m *testing.M) {
	sets.Select()
	os.Exit(m.Run())
}
