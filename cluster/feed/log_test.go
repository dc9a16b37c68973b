package feed

import (
	"context"
	"errors"
	"reflect"
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

// TestServeEnds shows what ends a Serve in each of its waits, and with which error.
func TestServeEnds(t *testing.T) {
	broken := errors.New("broken")
	fails := func(*Batch) error { return broken }
	for _, c := range []struct {
		name     string
		want     error
		appended uint64
		after    time.Duration // not 0: when it is closed, or what leads to the error
		from     Position
		snapshot Snapshotter
		send     func(*Batch) error
	}{
		{"canceled while there is nothing", context.Canceled, 0, time.Second, Position{7, 1}, noSnapshot(t), nil},
		{"closed while there is nothing", ErrClosed, 0, time.Second, Position{7, 1}, noSnapshot(t), nil},
		{"resync while there is nothing", ErrGap, 0, time.Second, Position{7, 1}, noSnapshot(t), nil},
		{"closed while it rests", ErrClosed, 1, time.Millisecond, Position{7, 1}, noSnapshot(t), func(*Batch) error { return nil }},
		{"send fails", broken, 1, 0, Position{7, 1}, noSnapshot(t), fails},
		{"send of a snapshot fails", broken, 0, 0, Position{}, holding(numbered(1, 1e5)...), fails},
		{"snapshot fails", broken, 0, 0, Position{}, func(context.Context, func(*Record) error) error { return broken }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLog(LogOptions{Epoch: 7})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l.Append(numbered(1, c.appended)...)
				end := map[error]func(){context.Canceled: cancel, ErrGap: l.Resync, ErrClosed: l.Close}[c.want]
				if c.after > 0 {
					time.AfterFunc(c.after, end)
				}
				if err := l.ServeParts(ctx, c.from, nil, nil, c.snapshot, c.send); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if s := l.Stats(); s.Subscribers != 0 {
					t.Errorf("%d subscribers are left", s.Subscribers)
				}
			})
		})
	}
	l := NewLog(LogOptions{Epoch: 7})
	for range 2 { // closed in a snapshot, and before
		if err := l.Serve(t.Context(), Position{}, holding(numbered(1, 1e5)...), func(*Batch) error { l.Close(); return nil }); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want that it is closed", err)
		}
	}
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
	defaults := NewLog(LogOptions{Epoch: 1})
	defer defaults.Close()
	if defaults.Append(Record{Op: Bury, Path: "g/a"}); !defaults.has(1) {
		t.Error("nothing is kept by default")
	}
	l.Resync()
	bury(3, 10)
	if next := l.Position().Next; !l.has(next-3) || l.has(next-4) {
		t.Error("not the three after a resync are kept")
	}
}

// LogStats describes a Log. Counts of batches are of batches that were sent.
type LogStats struct {
	Appended                                               uint64
	Subscribers                                            int64
	Records, Bytes, Batches, Snapshots, Resumes, Overtaken uint64
}

// Stats returns the counts.
func (l *Log) Stats() LogStats {
	c := &l.counters
	return LogStats{
		l.Position().Next - 1, c.subscribers.Load(),
		c.records.Load(), c.bytes.Load(), c.batches.Load(), c.snapshots.Load(), c.resumed.Load(), c.overran.Load(),
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
