package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestFaults breaks the first requests of each call in each way. The call repeats them and gives the right bytes.
func TestFaults(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, s)
	opts := options(s, p.URL)
	opts.OpenDeadline = patient / 4
	data := random(5, 1<<20)
	for name, f := range map[string]s3test.Fault{
		"503": {Status: 503, Code: "SlowDown"}, "429": {Status: 429, Code: "TooManyRequests"}, "500": {Status: 500, Code: "InternalError"},
		"reset": {Reset: true}, "truncated": {Truncate: true}, "stalled body": {StallBody: true}, "stall": {Stall: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, opts)
			n, reads := 2, f.Truncate
			if f.Stall || f.StallBody {
				n, reads = 1, true // each lasts for half of the deadline, which is longer for other calls
			}
			put(t, b, "x", data)
			p.First(n, f)
			want(t, b, "x", 0, data)
			p.First(n, f)
			r, err := b.Open(t.Context(), "x", 0, int64(len(data)))
			must(t, err)
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
			r.Close()
			if !reads {
				p.First(n, f)
				put(t, b, "x", data)
				p.First(n, f)
				names(t, b, "")
				p.First(n, f)
				if err := b.Delete(t.Context(), "x"); err != nil {
					t.Error(err)
				}
			}
			if n := b.Stats(); n.Retries == 0 || n.Failures != 0 {
				t.Errorf("stats %+v", n)
			}
		})
	}
}

// TestFlippedPut shows that the server refuses what was changed on the way, and gets it again.
func TestFlippedPut(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	if s.Ceph() {
		t.Skip("the gateway of Ceph 16 does not compare checksums")
	}
	p := s3test.NewProxy(t, s)
	b := open(t, options(s, p.URL))
	data := random(6, 100000)
	p.First(1, s3test.Fault{FlipPut: true})
	put(t, b, "x", data)
	want(t, b, "x", 0, data)
	if b.Stats().Retries == 0 {
		t.Error("stored with a flipped bit")
	}
}

// TestReplaced shows that a reader which has to ask again does not mix two versions of an object.
func TestReplaced(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, s)
	b := open(t, options(s, p.URL))
	put(t, b, "x", random(7, 1<<20))
	p.First(1, s3test.Fault{Truncate: true})
	r, err := b.Open(t.Context(), "x", 0, 1<<20)
	must(t, err)
	defer r.Close()
	put(t, b, "x", random(8, 1<<20))
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, block.ErrUnavailable) || n == 1<<20 {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// TestStorm shows that a server that always refuses costs the deadline until the breaker opens, nothing then, and that a
// miss does not open it.
func TestStorm(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, s)
	opts := options(s, p.URL)
	opts.OpenDeadline = 300 * time.Millisecond
	b := open(t, opts)
	for range 20 {
		if err := b.Get(t.Context(), "x", 0, make([]byte, 1)); !errors.Is(err, block.ErrNotFound) && !errors.Is(err, block.ErrUnavailable) {
			t.Fatal(err) // unavailable: a slow machine
		}
	}
	p.First(1<<30, s3test.Fault{Status: 503, Code: "SlowDown"})
	untilOpen(t, b)
	p.First(0, s3test.Fault{})
	harness.Poll(t, "the breaker closes", func() bool { return b.Stats().Breaker == "closed" })
}

// untilOpen reads until the breaker opens, and shows that no call asks the server then.
func untilOpen(t *testing.T, b *Bucket) {
	t.Helper()
	harness.Poll(t, "the breaker opens", func() bool {
		if err := b.Get(t.Context(), "x", 0, make([]byte, 1)); !errors.Is(err, block.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		return b.Stats().Breaker != "closed"
	})
	ctx, failures := t.Context(), b.Stats().Failures
	_, aborting := b.AbortUploads(ctx, 0)
	_, opening := b.Open(ctx, "x", 0, 1)
	list := b.List(ctx, "", func(string, int64, time.Time) error { return nil })
	for _, err := range []error{b.Put(ctx, "x", nil), b.Delete(ctx, "x"), list, aborting, opening} {
		if !errors.Is(err, block.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	if n := b.Stats().Failures; n != failures {
		t.Errorf("%d calls asked the server while the breaker was open", n-failures)
	}
}

// TestStalled shows that a server whose long answers stall fails probes, which repeat the read. One object keeps the store
// away only for some probes, and not at all if the server says what is wrong.
func TestStalled(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	data := random(10, 1<<20)
	for probes, f := range map[int64]s3test.Fault{1: {Status: 500, Code: "InternalError"}, mostTries: {StallBody: true}} {
		t.Run("error "+f.Code, func(t *testing.T) {
			t.Parallel()
			p := s3test.NewProxy(t, s)
			opts := options(s, p.URL)
			put(t, open(t, opts), "x", data)
			opts.OpenDeadline = 300 * time.Millisecond
			if f.Status != 0 { // enough for the answer on a slow machine
				opts.OpenDeadline = 2 * time.Second
			}
			b := open(t, opts)
			var lists atomic.Int64
			p.Script(func(r *http.Request) s3test.Fault {
				if r.URL.Query().Has("list-type") {
					lists.Add(1)
					return s3test.Fault{}
				}
				return f
			})
			harness.Poll(t, "the breaker opens", func() bool {
				if err := b.Get(t.Context(), "x", 0, make([]byte, len(data))); !errors.Is(err, block.ErrUnavailable) {
					t.Fatalf("got %v", err)
				}
				return !b.Available()
			})
			b.mu.Lock()
			if repeats := b.mu.unanswered.key != ""; repeats != f.StallBody {
				t.Errorf("probes repeat the read: %v", repeats)
			}
			b.mu.Unlock()
			harness.Poll(t, "the breaker closes", b.Available)
			if got := lists.Load(); got < probes {
				t.Errorf("after %d probes, want %d", got, probes)
			}
		})
	}
}

// TestStopped stops the server and lets it go on; and kills it and starts it anew. Calls end in both cases, and succeed
// afterwards.
func TestStopped(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	opts := options(s, s.URL)
	opts.OpenDeadline = time.Second
	b := open(t, opts)
	data := random(9, 100000)
	harness.Poll(t, "put", func() bool { return b.Put(t.Context(), "x", data) == nil })
	back := func() {
		t.Helper()
		got := make([]byte, len(data))
		harness.Poll(t, "get", func() bool { return b.Get(t.Context(), "x", 0, got) == nil })
		if !bytes.Equal(got, data) {
			t.Error("other bytes")
		}
	}
	s.Signal(syscall.SIGSTOP)
	untilOpen(t, b)
	s.Signal(syscall.SIGCONT)
	back()
	s.Kill()
	untilOpen(t, b)
	s.Run(false)
	back()
}

// TestCancel shows that the end of a caller's context ends its call at once, and does not count against the server.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, s)
	b := open(t, options(s, p.URL))
	ctx, cancel := context.WithCancel(t.Context())
	p.Script(func(*http.Request) s3test.Fault { cancel(); return s3test.Fault{Stall: true} })
	if err := b.Get(ctx, "x", 0, make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := b.Stats(); n.Failures != 0 {
		t.Errorf("stats %+v", n)
	}
}

// TestHedge delays one read for which it is known how long others take. The second request answers first. Delays of all
// reads do not double the load.
func TestHedge(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, s)
	b := open(t, options(s, p.URL))
	data := random(10, 1000)
	put(t, b, "x", data)
	for range hedgeWindow {
		want(t, b, "x", 0, data)
	}
	for n := b.Stats(); (n.Hedges+1)*hedgeShare > n.Requests.Get; n = b.Stats() {
		want(t, b, "x", 0, data) // on a busy machine, second requests have used up their share
	}
	before := b.Stats()
	p.First(1, s3test.Fault{Stall: true}) // for half of the deadline, without the second request
	want(t, b, "x", 0, data)
	if n := b.Stats(); n.HedgesWon == before.HedgesWon || n.Retries != before.Retries {
		t.Errorf("stats %+v, before %+v", n, before)
	}
	var wg sync.WaitGroup
	var failed atomic.Int64
	p.Script(func(*http.Request) s3test.Fault { return s3test.Fault{Delay: time.Second} })
	for range 64 {
		wg.Go(func() {
			if err := b.Get(t.Context(), "x", 0, make([]byte, 1000)); err != nil {
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	if n := b.Stats(); failed.Load() != 0 || n.Hedges*hedgeShare > n.Requests.Get+hedgeShare {
		t.Errorf("%d failed; stats %+v", failed.Load(), n)
	}
}
