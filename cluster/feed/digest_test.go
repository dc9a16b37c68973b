package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
)

// spread returns records whose hashes are in the shards from first to last.
func spread(seq uint64, first, last uint64) []Record {
	list := numbered(first, last)
	for i := range list {
		list[i].Hash, list[i].Seq = list[i].Hash<<56|1, seq
	}
	return list
}

// compared makes a Follower compare digests with a node that holds these records.
func compared(t *testing.T, f *Follower, at Position, held ...Record) Parts {
	t.Helper()
	own := f.Digests()
	parts, err := f.Compare(own, answer(t, own, at, held...))
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// answer is that of a node that holds these records.
func answer(t *testing.T, own Digests, at Position, held ...Record) *Difference {
	t.Helper()
	_, sums, err := NewLog(LogOptions{Epoch: 1}).Digests(t.Context(), holding(held...))
	if err != nil {
		t.Fatal(err)
	}
	shards, bytes, err := sums.Compare(len(own), own.Shards())
	if err != nil {
		t.Fatal(err)
	}
	return &Difference{at, shards, bytes}
}

// partial makes a batch one of parts.
func partial(b *Batch) *Batch {
	b.Partial = true
	return b
}

// found requires that exactly these shards have an entry, of these versions.
func (x *fixture) found(next uint64, seqs map[uint64]uint64) {
	x.t.Helper()
	for shard := range uint64(shards) {
		got := x.index.Lookup(shard<<56|1, nil)
		if want, ok := seqs[shard]; ok != (len(got) == 1) || ok && got[0].Seq != want {
			x.t.Errorf("shard %d: %+v, want version %d", shard, got, want)
		}
	}
	if x.Position().Next != next {
		x.t.Errorf("position %v, want to go on from %d", x.Position(), next)
	}
}

// TestFollowerParts shows what is visible while the parts that differ come from a new process of a
// node: what was and is held is always there, and what is gone goes at the end.
func TestFollowerParts(t *testing.T) {
	x := newFixture(t, 1) // a second slot is not needed
	x.must(batch(7, 10, true, true, spread(1, 1, 6)...))
	held := append(spread(1, 1, 2), append(spread(2, 3, 4), spread(1, 9, 9)...)...) // 5 and 6 are gone, 3 and 4 new versions
	parts := compared(t, x.Follower, Position{8, 3}, held...)
	for part := range shards {
		if want := part >= 3 && part <= 6 || part == 9; parts.has(part) != want {
			t.Errorf("part %d: %v, want %v", part, !want, want)
		}
	}
	old := map[uint64]uint64{1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
	x.found(10, old)
	x.must(partial(batch(8, 0, true, false, spread(2, 3, 3)...)))
	old[3] = 2
	x.found(10, old)
	x.must(partial(batch(8, 0, false, false, spread(2, 4, 4)...)))
	x.must(partial(batch(8, 3, false, true, spread(1, 9, 9)...)))
	x.found(3, map[uint64]uint64{1: 1, 2: 1, 3: 2, 4: 2, 9: 1})
	x.must(batch(8, 4, false, false, release(1<<56|1)))
	x.found(4, map[uint64]uint64{2: 1, 3: 2, 4: 2, 9: 1})
	if parts := compared(t, x.Follower, Position{9, 1}, held[1:]...); parts != nil {
		t.Errorf("parts %x differ after that", parts)
	}
	x.found(1, map[uint64]uint64{2: 1, 3: 2, 4: 2, 9: 1}) // equal: it goes on at the new process
	s := x.Stats()
	if s.Records != 10 || s.Batches != 5 || s.Compared != 2 || s.Partial != 1 || s.Snapshots != 1 || s.Begun != 2 || s.DigestBytes == 0 || s.SnapshotBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// TestFollowerBroken shows that a snapshot, or parts of one, that breaks off does no harm if the old position is resumed, or if
// a comparison or a snapshot follows.
func TestFollowerBroken(t *testing.T) {
	held := spread(2, 1, 4)
	all := map[uint64]uint64{1: 2, 2: 2, 3: 2, 4: 2}
	for _, parts := range []uint64{0, 1} { // that have come, and are seen
		for name, c := range map[string]struct {
			on   func(x *fixture)
			next uint64
			seqs map[uint64]uint64
		}{
			"old position": {func(x *fixture) { x.must(batch(7, 11, false, false, spread(3, 2, 2)...)) }, 11, map[uint64]uint64{1: 1 + parts, 2: 3, 3: 1}},
			"comparison": {func(x *fixture) {
				if n := compared(t, x.Follower, Position{8, 5}, held...).Count(); n != 4-int(parts) {
					t.Errorf("%d parts differ, %d have come", n, parts)
				}
				x.must(partial(batch(8, 5, true, true, held[parts:]...)))
			}, 5, all},
			"half, and a snapshot": {func(x *fixture) {
				x.must(batch(8, 0, true, false, held[0]), batch(8, 5, true, true, held...))
			}, 5, all},
			"drop": {func(x *fixture) { x.Drop() }, 0, nil},
		} {
			t.Run(fmt.Sprint(name, parts), func(t *testing.T) {
				x := newFixture(t, 2)
				x.must(batch(7, 10, true, true, spread(1, 1, 3)...))
				half := batch(8, 0, true, false, held[0])
				if parts > 0 {
					compared(t, x.Follower, Position{8, 3}, held...)
					half = partial(half)
				}
				x.must(half)
				c.on(x)
				x.found(c.next, c.seqs)
				if n := x.slots.taken(); n > 1 || n != len(x.Slots()) {
					t.Errorf("%d slots are taken, %d named", n, x.Slots())
				}
				if err := x.Apply(partial(batch(8, 3, false, true))); !errors.Is(err, ErrOutOfStep) {
					t.Errorf("the end of the broken parts: %v", err)
				}
				x.must(batch(8, 0, true, false, held[0]))
				if x.Drop(); x.slots.taken() != 0 {
					t.Errorf("%d slots are left", x.slots.taken())
				}
			})
		}
	}
}

// TestFollowerPartsRefuses shows which batches of parts are invalid, and that they leave the
// position and what was not asked for.
func TestFollowerPartsRefuses(t *testing.T) {
	good := spread(2, 1, 1)
	for _, c := range []struct {
		name  string
		bad   *Batch
		begun bool
		want  error
	}{
		{"middle before the begin", batch(8, 0, false, false, good...), false, ErrOutOfStep},
		{"end before the begin", batch(8, 3, false, true, good...), false, ErrOutOfStep},
		{"two begins", batch(8, 0, true, false, good...), true, ErrOutOfStep},
		{"another epoch", batch(9, 0, true, false, good...), false, ErrOutOfStep},
		{"another epoch in the middle", batch(9, 0, false, false, good...), true, ErrOutOfStep},
		{"end at another position", batch(8, 4, false, true, good...), true, ErrOutOfStep},
		{"deltas", batch(8, 1, false, false, good...), true, ErrOutOfStep},
		{"a part that is equal", batch(8, 0, true, false, spread(2, 2, 2)...), false, ErrMalformed},
		{"a release", batch(8, 0, true, false, release(good[0].Hash)), false, ErrMalformed},
		{"a grave", batch(8, 0, true, false, Record{Op: Bury, Seq: 4, Path: "g/a"}), false, ErrMalformed},
		{"too many", batch(8, 0, true, false, slices.Repeat(good, 11)...), false, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newFixture(t, 2)
			x.most = 10
			x.must(batch(7, 10, true, true, spread(1, 1, 3)...))
			compared(t, x.Follower, Position{8, 3}, append(spread(2, 1, 1), spread(1, 2, 3)...)...)
			if c.begun {
				x.must(partial(batch(8, 0, true, false)))
			}
			if err := x.Apply(partial(c.bad)); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if got := x.index.Lookup(2<<56|1, nil); len(got) != 1 || got[0].Seq != 1 || x.Position() != (Position{7, 10}) {
				t.Errorf("%+v at %+v", got, x.Position())
			}
			if err := x.Apply(partial(batch(8, 3, true, true, good...))); !errors.Is(err, ErrOutOfStep) {
				t.Errorf("parts after a refusal: %v", err)
			}
		})
	}
}

// TestCompareRefuses shows that both sides refuse sums of a wrong length, and a position of nobody.
func TestCompareRefuses(t *testing.T) {
	sums := make(Digests, MaxParts)
	for _, c := range []struct{ parts, bytes int }{
		{0, 2048}, {1, 2048}, {128, 2048}, {300, 2048}, {2 * MaxParts, 2048}, {-256, 2048}, {256, 0}, {256, 2047}, {MaxParts, 2056},
	} {
		if _, _, err := sums.Compare(c.parts, make([]byte, c.bytes)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d parts, %d bytes: %v", c.parts, c.bytes, err)
		}
	}
	x := newFixture(t, 1)
	if x.Digests() != nil {
		t.Error("digests of nothing")
	}
	x.must(batch(7, 10, true, true, spread(1, 1, 3)...))
	own := x.Digests()
	good := answer(t, own, Position{8, 3}, spread(2, 1, 3)...)
	for i, change := range []func(d *Difference){
		func(d *Difference) { d.Shards = nil },
		func(d *Difference) { d.Shards = d.Shards[:31] },
		func(d *Difference) { d.Shards = slices.Repeat(d.Shards, 2) },
		func(d *Difference) { d.Sums = d.Sums[8:] },
		func(d *Difference) { d.Sums = append(slices.Clone(d.Sums), 0) },
		func(d *Difference) { d.Position.Epoch = 0 },
		func(d *Difference) { d.Position.Next = 0 },
	} {
		bad := *good
		change(&bad)
		if _, err := x.Compare(own, &bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if x.Position() != (Position{7, 10}) || x.Stats().Refused != 7 {
		t.Errorf("%+v, %+v", x.Position(), x.Stats())
	}
}

// TestServeParts shows that the parts come first and alone, then the log from the position that was
// asked for; and when the subscriber must compare digests.
func TestServeParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(LogOptions{Epoch: 7, Records: 8})
		l.Append(numbered(1, 3)...)
		parts := NewParts(shards)
		parts.Add(3)
		parts.Add(4)
		grave := Record{Op: Bury, Seq: 4, Path: "g/a"}
		var got []arrival
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		serve := func(from Position, parts Parts) {
			got = nil
			go func() { // ends with ctx, or at a gap
				done <- l.ServeParts(ctx, from, parts, nil, holding(append(spread(1, 1, 9), grave)...), receive(t, &got))
			}()
			time.Sleep(time.Second) // reason: the clock of a bubble advances only so
			synctest.Wait()
		}
		serve(Position{7, 2}, parts)
		if len(got) != 2 {
			t.Fatalf("%+v", got)
		}
		b := got[0].batch
		if !b.Begin || !b.End || !b.Partial || b.Position != (Position{7, 2}) || !slices.Equal(got[0].records, spread(1, 3, 4)) {
			t.Errorf("%+v", got[0])
		}
		if got[1].batch.Partial || got[1].batch.Position != (Position{7, 4}) || !slices.Equal(got[1].records, numbered(2, 3)) {
			t.Errorf("%+v", got[1])
		}
		l.Resync()
		if err := <-done; !errors.Is(err, ErrGap) || len(got) != 2 {
			t.Errorf("after a resync: %v, %d batches", err, len(got))
		}
		for _, from := range []Position{{7, 2}, {8, 9}, {7, 0}} {
			if serve(from, nil); !errors.Is(<-done, ErrGap) || len(got) != 0 {
				t.Errorf("from %+v: %d batches and no gap", from, len(got))
			}
		}
		if serve(Position{}, parts); !errors.Is(<-done, ErrGap) || len(got) != 0 {
			t.Errorf("parts from nowhere: %d batches and no gap", len(got))
		}
		if serve(Position{}, nil); len(got) != 1 || !got[0].batch.Begin || got[0].batch.Partial || len(got[0].records) != 10 {
			t.Errorf("%+v", got)
		}
		cancel()
		<-done
	})
}

// TestServeSkips shows that a subscriber with a scope gets what is in it, and hears how far the log is although nothing of it is
// in the scope, once that is much.
func TestServeSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(LogOptions{Epoch: 7, Records: 8})
		scope := NewParts(MaxParts)
		scope.Add(2 << 8)
		var got []arrival
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { // ends with ctx
			done <- l.ServeParts(ctx, Position{}, nil, scope, holding(spread(1, 1, 3)...), receive(t, &got))
		}()
		for i, appended := range []uint64{0, 1, 3} { // one of eight is not worth a batch
			l.Append(spread(1, 3, 2+appended)...)
			time.Sleep(time.Second) // reason: the clock of a bubble advances only so
			if synctest.Wait(); len(got) != max(i, 1) || l.Lag() != 0 {
				t.Errorf("%+v, lag %d", got, l.Lag())
			}
		}
		cancel()
		<-done
		if len(got) != 2 || !slices.Equal(got[0].records, spread(1, 2, 2)) {
			t.Fatalf("%+v", got)
		}
		if b := got[1].batch; b.Position.Next != 5 || b.Skipped != 4 || b.Count != 0 {
			t.Errorf("%+v", b)
		}
	})
}

// TestDigestBytes makes the table of the package comment, with KVFS_SIM for a million blocks.
func TestDigestBytes(t *testing.T) {
	blocks := 20_000
	if os.Getenv("KVFS_SIM") != "" {
		blocks = 1_000_000
	}
	for _, c := range []struct {
		name    string
		changed int
		most    float64 // bytes, of those of a snapshot
	}{
		{"nothing", 0, 0}, {"0.01 %", blocks / 10000, 0.05}, {"0.1 %", blocks / 1000, 0.1}, {"1 %", blocks / 100, 0.3},
		{"10 %", blocks / 10, 1}, {"everything", blocks, 1.1},
	} {
		rnd := rand.New(rand.NewPCG(1, 1))
		held := make([]Record, blocks)
		for i := range held {
			held[i] = heldBlock(rnd, rnd.Uint64N(86400e9), 4<<20)
		}
		index := location.New(location.Options{})
		f := NewFollower(index, newSlotPool(t, index, 2), nil, nil)
		l := NewLog(LogOptions{Epoch: 7})
		follow := func(from Position, parts Parts) {
			done := errors.New("done")
			if err := l.ServeParts(t.Context(), from, parts, nil, holding(held...), func(b *Batch) error {
				if err := f.Apply(b); err != nil || b.End {
					return errors.Join(done, err)
				}
				return nil
			}); !errors.Is(err, done) || errors.Is(err, ErrMalformed) || errors.Is(err, ErrOutOfStep) {
				t.Fatal(err)
			}
		}
		follow(Position{}, nil)
		before := f.Stats()
		for i := range c.changed { // half of them are replaced by other blocks
			held[i].Seq++
			if i%2 == 0 {
				held[i].Hash = rnd.Uint64()
			}
		}
		cpu := cpuTime()
		parts := compared(t, f, l.Position(), held...)
		cpu = cpuTime() - cpu
		if parts != nil {
			follow(l.Position(), parts)
		}
		s := f.Stats()
		digests, records := s.DigestBytes, s.SnapshotBytes-before.SnapshotBytes
		t.Logf("%d blocks, changed: %-10s %9d bytes of digests, %9d of records, %5.1f %% of a snapshot; CPU of both sides %v", blocks, c.name,
			digests, records, float64(digests+records)*100/float64(before.SnapshotBytes), cpu)
		if float64(digests+records) > c.most*float64(before.SnapshotBytes)+4096 {
			t.Errorf("%s: more than %v of a snapshot", c.name, c.most)
		}
		if parts := compared(t, f, l.Position(), held...); parts != nil {
			t.Errorf("%s: %d parts still differ", c.name, parts.Count())
		}
	}
}
