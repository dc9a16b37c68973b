package feed

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// arrival is one batch and its time since the test began.
type arrival struct {
	at      time.Duration
	batch   Batch
	records []Record
}

// receive returns a send that keeps what it gets.
func receive(t *testing.T, into *[]arrival) func(*Batch) error {
	begun := time.Now()
	return func(b *Batch) error {
		list, err := decodeAll(b.Records)
		if err != nil || len(list) != b.Count {
			t.Errorf("batch of %d records has %d, error %v", b.Count, len(list), err)
		}
		*into = append(*into, arrival{time.Since(begun), *b, list})
		return nil
	}
}

// numbered returns records whose hashes are the numbers from first to last.
func numbered(first, last uint64) []Record {
	var list []Record
	for n := first; n <= last; n++ {
		list = append(list, Record{Op: Hold, Hash: n, Seq: n, Size: 4096, Mode: 0o100644})
	}
	return list
}

// noSnapshot is for Serves that must not need one.
func noSnapshot(t *testing.T) Snapshotter {
	return func(context.Context, func(*Record) error) error {
		t.Error("snapshot was asked for")
		return nil
	}
}

// holding returns the Snapshotter of a node that holds these records.
func holding(list ...Record) Snapshotter {
	return func(_ context.Context, fn func(*Record) error) error {
		for i := range list {
			if err := fn(&list[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// serving runs Serve in a bubble until stop is called. stop returns Serve's error.
func serving(t *testing.T, l *Log, from Position, s Snapshotter, send func(*Batch) error) (stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, from, s, send) }() // ends when stop is called
	return func() error {
		synctest.Wait()
		cancel()
		return <-done
	}
}

// until waits for a time after begun.
func until(begun time.Time, d time.Duration) {
	time.Sleep(time.Until(begun.Add(d))) // reason: the clock of a bubble advances only so
	synctest.Wait()
}

// TestServeGathers shows when batches go: the first record after a rest at once, the next ones when
// the interval is over.
func TestServeGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(LogOptions{Epoch: 7})
		var got []arrival
		stop := serving(t, l, Position{7, 1}, noSnapshot(t), receive(t, &got))
		begun := time.Now()
		for _, at := range []uint64{5, 6, 7, 14, 40, 200, 201} {
			until(begun, time.Duration(at)*time.Millisecond)
			l.Append(numbered(at, at)...)
		}
		until(begun, time.Second)
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
		want := []struct {
			ms    int
			count int
			next  uint64
		}{{5, 1, 2}, {15, 3, 5}, {40, 1, 6}, {200, 1, 7}, {210, 1, 8}}
		if len(got) != len(want) {
			t.Fatalf("%d batches, want %d: %+v", len(got), len(want), got)
		}
		for i, w := range want {
			g := got[i]
			if g.at != time.Duration(w.ms)*time.Millisecond || g.batch.Count != w.count || g.batch.Position != (Position{7, w.next}) {
				t.Errorf("batch %d: %+v, want %+v", i, g, w)
			}
		}
		s := l.Stats()
		s.Bytes = 0
		if want := (LogStats{Appended: 7, Kept: 7, Records: 7, Batches: 5, Resumes: 1}); s != want {
			t.Errorf("stats %+v, want %+v", s, want)
		}
	})
}

// TestIntervalGrows shows that many subscribers get fewer batches each.
func TestIntervalGrows(t *testing.T) {
	l := NewLog(LogOptions{Epoch: 1})
	for _, c := range []struct {
		subscribers int64
		want        time.Duration
	}{{1, 10 * time.Millisecond}, {100, 10 * time.Millisecond}, {1000, 100 * time.Millisecond}} {
		l.counters.subscribers.Store(c.subscribers)
		if got := l.interval(); got != c.want {
			t.Errorf("%d subscribers: %v, want %v", c.subscribers, got, c.want)
		}
	}
	if got := NewLog(LogOptions{Epoch: 1, Interval: time.Second}).interval(); got != time.Second {
		t.Errorf("%v, want the second that was set", got)
	}
}

// TestServeFullBatches shows that a batch keeps its limit, that the next one follows a full one at
// once, and that a record above the limit goes alone.
func TestServeFullBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 512
		l := NewLog(LogOptions{Epoch: 7, BatchBytes: limit})
		long := Record{Op: Bury, Seq: 9, Path: strings.Repeat("p", 2*limit), Mode: typeFile}
		list := append(append(numbered(1, 300), long), numbered(302, 500)...)
		l.Append(list...)
		for _, snapshot := range []bool{false, true} {
			var got []arrival
			from := Position{7, 1}
			if snapshot {
				from = Position{}
			}
			if err := serving(t, l, from, holding(list...), receive(t, &got))(); !errors.Is(err, context.Canceled) {
				t.Errorf("Serve: %v", err)
			}
			var all []Record
			for i, a := range got {
				if len(a.batch.Records) > limit && a.batch.Count != 1 {
					t.Errorf("batch %d has %d bytes", i, len(a.batch.Records))
				}
				if a.at != 0 {
					t.Errorf("batch %d came after %v", i, a.at)
				}
				if a.batch.Begin != (snapshot && i == 0) || a.batch.End != (snapshot && i == len(got)-1) {
					t.Errorf("batch %d of %d: begin %v, end %v", i, len(got), a.batch.Begin, a.batch.End)
				}
				want := Position{7, uint64(len(all)+a.batch.Count) + 1}
				if snapshot {
					want.Next = 0
					if a.batch.End {
						want.Next = 501
					}
				}
				if a.batch.Position != want {
					t.Errorf("batch %d: position %v, want %v", i, a.batch.Position, want)
				}
				all = append(all, a.records...)
			}
			list[300].Hash = all[300].Hash
			if !reflect.DeepEqual(all, list) {
				t.Error("records differ from what was appended")
			}
		}
	})
}

// TestServeFrom shows which positions need a snapshot.
func TestServeFrom(t *testing.T) {
	for _, c := range []struct {
		name     string
		appended uint64 // into a ring of 4
		from     Position
		first    uint64 // number of the first record that comes; 0: a snapshot
	}{
		{"new", 3, Position{}, 0},
		{"empty log", 0, Position{7, 1}, 1},
		{"from the first", 3, Position{7, 1}, 1},
		{"in the midst", 3, Position{7, 2}, 2},
		{"all seen", 3, Position{7, 4}, 4},
		{"oldest of a ring gone round", 6, Position{7, 3}, 3},
		{"just gone", 6, Position{7, 2}, 0},
		{"long gone", 60, Position{7, 2}, 0},
		{"never was", 3, Position{7, 5}, 0},
		{"beyond all", 3, Position{7, 1<<64 - 1}, 0},
		{"no number", 3, Position{7, 0}, 0},
		{"another epoch", 3, Position{8, 2}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLog(LogOptions{Epoch: 7, Records: 4})
				l.Append(numbered(1, c.appended)...)
				var got []arrival
				stop := serving(t, l, c.from, holding(numbered(1000, 1000)...), receive(t, &got))
				synctest.Wait()
				l.Append(numbered(c.appended+1, c.appended+1)...)
				until(time.Now(), time.Second)
				stop()
				var hashes []uint64
				for _, a := range got {
					for _, r := range a.records {
						hashes = append(hashes, r.Hash)
					}
				}
				var want []uint64
				first := c.first
				if first == 0 {
					want, first = append(want, 1000), c.appended+1
				}
				for n := first; n <= c.appended+1; n++ {
					want = append(want, n)
				}
				if !reflect.DeepEqual(hashes, want) || got[0].batch.Begin != (c.first == 0) {
					t.Errorf("got %d, want %d; begin %v", hashes, want, got[0].batch.Begin)
				}
				if s := l.Stats(); s.Snapshots+s.Resumes != 1 || (s.Snapshots == 1) != (c.first == 0) || s.Overtaken != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// TestServeOvertaken shows that a subscriber that the ring overtakes, between batches or during a
// snapshot, gets a new snapshot, one an interval.
func TestServeOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(LogOptions{Epoch: 7, Records: 8, Interval: time.Second})
		snapshots := 0
		snapshot := func(_ context.Context, fn func(*Record) error) error {
			snapshots++
			if snapshots < 3 {
				l.Append(numbered(1, 9)...) // its first position is gone
			}
			return fn(&numbered(1000, 1000)[0])
		}
		var got []arrival
		keep := receive(t, &got)
		stop := serving(t, l, Position{}, snapshot, func(b *Batch) error {
			if len(got) == 3 { // the first deltas: slow
				l.Append(numbered(1, 20)...)
			}
			return keep(b)
		})
		begun := time.Now()
		until(begun, 3500*time.Millisecond)
		l.Append(numbered(39, 39)...)
		until(begun, 10*time.Second)
		stop()
		type seen struct {
			at    time.Duration
			begin bool
			next  uint64
		}
		var list []seen
		for _, a := range got {
			if a.batch.Begin != a.batch.End {
				t.Errorf("%+v", a)
			}
			list = append(list, seen{a.at, a.batch.Begin, a.batch.Position.Next})
		}
		want := []seen{
			{0, true, 1}, {time.Second, true, 10}, {2 * time.Second, true, 19},
			{3500 * time.Millisecond, false, 20}, {4500 * time.Millisecond, true, 40},
		}
		if !reflect.DeepEqual(list, want) {
			t.Errorf("got  %+v\nwant %+v", list, want)
		}
		if s := l.Stats(); s.Snapshots != 4 || s.Overtaken != 3 || s.Resumes != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestServeEnds shows what ends a Serve in each of its waits, and with which error.
func TestServeEnds(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		want error
		run  func(t *testing.T, ctx context.Context, l *Log, cancel func()) error
	}{
		{"canceled while there is nothing", context.Canceled, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			time.AfterFunc(time.Second, cancel)
			return l.Serve(ctx, Position{7, 1}, noSnapshot(t), func(*Batch) error { return nil })
		}},
		{"closed while there is nothing", ErrClosed, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			time.AfterFunc(time.Second, l.Close)
			return l.Serve(ctx, Position{7, 1}, noSnapshot(t), func(*Batch) error { return nil })
		}},
		{"closed while it rests", ErrClosed, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			l.Append(numbered(1, 1)...)
			time.AfterFunc(time.Millisecond, l.Close)
			return l.Serve(ctx, Position{7, 1}, noSnapshot(t), func(*Batch) error { return nil })
		}},
		{"closed before", ErrClosed, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			l.Close()
			l.Close()
			l.Append(numbered(1, 1)...)
			return l.Serve(ctx, Position{}, noSnapshot(t), nil)
		}},
		{"send fails", broken, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			l.Append(numbered(1, 1)...)
			return l.Serve(ctx, Position{7, 1}, noSnapshot(t), func(*Batch) error { return broken })
		}},
		{"send of a snapshot fails", broken, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			return l.Serve(ctx, Position{}, holding(numbered(1, 1e5)...), func(*Batch) error { return broken })
		}},
		{"snapshot fails", broken, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			return l.Serve(ctx, Position{}, func(context.Context, func(*Record) error) error { return broken }, nil)
		}},
		{"closed in a snapshot", ErrClosed, func(t *testing.T, ctx context.Context, l *Log, cancel func()) error {
			return l.Serve(ctx, Position{}, holding(numbered(1, 1e5)...), func(*Batch) error { l.Close(); return nil })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLog(LogOptions{Epoch: 7})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if err := c.run(t, ctx, l, cancel); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if s := l.Stats(); s.Subscribers != 0 {
					t.Errorf("%d subscribers are left", s.Subscribers)
				}
			})
		})
	}
}

// TestLogParallel is for the race detector: all methods at once. Every subscriber must see the
// records of each appender in order, however often it is overtaken and begins again.
func TestLogParallel(t *testing.T) {
	const appenders, each = 4, 3000
	l := NewLog(LogOptions{Epoch: 7, Records: 256, Interval: time.Microsecond, BatchBytes: 1024})
	var held [appenders]struct {
		sync.Mutex
		seq uint64
	}
	snapshot := func(_ context.Context, fn func(*Record) error) error {
		for i := range held {
			held[i].Lock()
			r := Record{Op: Hold, Hash: uint64(i), Seq: held[i].seq}
			held[i].Unlock()
			if err := fn(&r); err != nil {
				return err
			}
		}
		return nil
	}
	var appending, serving sync.WaitGroup
	for i := range held {
		appending.Go(func() { // ends with its records
			for n := range uint64(each) {
				held[i].Lock()
				held[i].seq = n + 1
				held[i].Unlock()
				l.Append(Record{Op: Hold, Hash: uint64(i), Seq: n + 1})
				l.Stats()
			}
		})
	}
	for range 4 {
		serving.Go(func() { // ends when it has seen the last record
			var last [appenders]uint64
			done := errors.New("done")
			err := l.Serve(t.Context(), Position{}, snapshot, func(b *Batch) error {
				list, err := decodeAll(b.Records)
				for _, r := range list {
					// Records from before the snapshot may follow, but never a gap.
					if !b.Begin && r.Seq > last[r.Hash]+1 {
						t.Errorf("appender %d: %d after %d", r.Hash, r.Seq, last[r.Hash])
					}
					last[r.Hash] = r.Seq
				}
				for _, seq := range last {
					if seq != each {
						return err
					}
				}
				return done
			})
			if !errors.Is(err, done) {
				t.Errorf("Serve: %v", err)
			}
		})
	}
	appending.Wait()
	serving.Wait()
	l.Close()
}

// TestResync: a subscriber that has seen everything still takes a new snapshot, and follows the
// records after it. So does a subscriber that resumes from before.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, before := range []uint64{0, 1, 7, 8, 9} { // of a ring of 8
			l := NewLog(LogOptions{Epoch: 1, Records: 8})
			if before > 0 {
				l.Append(numbered(1, before)...)
			}
			was := l.Position()
			var got []arrival
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { // ends with cancel
				done <- l.Serve(ctx, was, holding(numbered(100, 101)...), receive(t, &got))
			}()
			synctest.Wait()
			l.Resync()
			synctest.Wait()
			time.Sleep(time.Second) // reason: virtual time, for the rest after a batch
			l.Append(numbered(50, 54)...)
			synctest.Wait()
			cancel()
			<-done
			if len(got) < 2 || !got[0].batch.Begin || !got[0].batch.End || len(got[0].records) != 2 {
				t.Fatalf("%d before: got %+v", before, got)
			}
			var hashes []uint64
			for _, a := range got[1:] {
				for _, r := range a.records {
					hashes = append(hashes, r.Hash)
				}
			}
			if len(hashes) < 2 || hashes[len(hashes)-1] != 54 {
				t.Errorf("%d before: after the snapshot %v", before, hashes)
			}
			if l.has(was.Next) {
				t.Errorf("%d before: the old position is still good", before)
			}
			l.Close()
		}
	})
}

// TestPathsBounded: records leave the ring early if their paths are long. A subscriber that has not
// read them begins again; one that has goes on.
func TestPathsBounded(t *testing.T) {
	l := NewLog(LogOptions{Epoch: 1, Records: 100, PathBytes: 1000})
	defer l.Close()
	bury := func(n, size int) {
		for range n {
			l.Append(Record{Op: Bury, Hash: 1, Seq: 1, Path: string(make([]byte, size)), Mode: typeFile})
		}
	}
	for _, step := range []struct{ n, size, kept int }{
		{50, 10, 50}, {20, 40, 40}, {300, 1, 100}, {1, 2000, 0}, {5, 10, 5}, {400, 100, 10},
	} {
		bury(step.n, step.size)
		next := l.Position().Next
		if !l.has(next-uint64(step.kept)) || l.has(next-uint64(step.kept)-1) {
			t.Errorf("%d of %d bytes: not the last %d are kept", step.n, step.size, step.kept)
		}
	}
	l.Resync()
	bury(3, 10)
	if next := l.Position().Next; !l.has(next-3) || l.has(next-4) {
		t.Error("not the three after a resync are kept")
	}
}

// LogStats describes a Log. Counts of batches are of batches that were sent.
type LogStats struct {
	Appended    uint64 `json:"appended"`    // records, and numbers that a Resync skipped
	Kept        int    `json:"kept"`        // records in the ring
	Subscribers int64  `json:"subscribers"` // running Serves
	Records     uint64 `json:"records"`     // sent, with those of snapshots
	Bytes       uint64 `json:"bytes"`       // of them, as encoded
	Batches     uint64 `json:"batches"`     // sent
	Snapshots   uint64 `json:"snapshots"`   // begun
	Resumes     uint64 `json:"resumes"`     // Serves that needed no snapshot at first
	Overtaken   uint64 `json:"overtaken"`   // times that a subscriber was too slow for the ring
}

// Stats returns the counts.
func (l *Log) Stats() LogStats {
	l.mu.Lock()
	appended, kept := l.mu.next-1, len(l.mu.ring)
	l.mu.Unlock()
	c := &l.counters
	return LogStats{
		Appended: appended, Kept: kept, Subscribers: c.subscribers.Load(),
		Records: c.records.Load(), Bytes: c.bytes.Load(), Batches: c.batches.Load(),
		Snapshots: c.snapshots.Load(), Resumes: c.resumed.Load(), Overtaken: c.overran.Load(),
	}
}

// TestLag shows that the lag is that of the subscriber which has been sent the least, snapshots included.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(LogOptions{Epoch: 7})
		lag := func(what string, want uint64) {
			t.Helper()
			synctest.Wait()
			if got := l.Lag(); got != want {
				t.Errorf("%s: a lag of %d records, want %d", what, got, want)
			}
		}
		lag("no subscriber", 0)
		gate := make(chan struct{})
		slow := func(*Batch) error { <-gate; return nil }
		var got []arrival
		stopFast := serving(t, l, Position{7, 1}, noSnapshot(t), receive(t, &got))
		stopSlow := serving(t, l, Position{7, 1}, noSnapshot(t), slow)
		stopNew := serving(t, l, Position{}, func(context.Context, func(*Record) error) error { return nil }, slow)
		lag("nothing to send", 0)
		l.Append(numbered(1, 5)...)
		lag("two that do not read", 5)
		gate <- struct{}{}
		gate <- struct{}{}
		time.Sleep(time.Minute) // reason: the clock of a bubble advances only so
		lag("the snapshot and the records are read, and other records are sent", 5)
		gate <- struct{}{}
		lag("all have all", 0)
		l.Append(numbered(6, 6)...)
		lag("one more", 1)
		close(gate)
		for _, stop := range []func() error{stopFast, stopSlow, stopNew} {
			stop()
		}
		lag("all have gone", 0)
	})
}
