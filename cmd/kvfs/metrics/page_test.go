package metrics

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/fs/device"
)

// gate is a source that counts its calls, and hangs while it is closed.
type gate struct {
	calls, inside, most atomic.Int64
	open                chan struct{}
}

func (g *gate) source() *Snapshot {
	g.calls.Add(1)
	if n := g.inside.Add(1); n > g.most.Load() {
		g.most.Store(n)
	}
	defer g.inside.Add(-1)
	<-g.open
	return &Snapshot{Time: time.Now(), Requests: &device.Latencies{}}
}

// TestPageOnce shows that many readers cause one collection at a time, and that all of them get a text.
func TestPageOnce(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	p := NewPage(g.source)
	p.patience = time.Hour // the machine may be slow
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if !strings.Contains(string(p.Text()), "\nkvfs_daemon_ready 1\n") {
				t.Error("a reader got no metrics")
			}
		})
	}
	close(g.open)
	wg.Wait()
	for range 1000 {
		p.Text()
	}
	p.Close()
	if n := g.most.Load(); n != 1 {
		t.Errorf("%d collections at a time", n)
	}
	if n := g.calls.Load(); n >= 1000 {
		t.Errorf("%d collections of 1100 readers", n)
	}
}

// TestPageHangs shows that a reader waits for a hanging collection for a limited time, then gets the last text, and
// that nothing is collected after Close.
func TestPageHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		p := NewPage(g.source)
		took := func(what string, want time.Duration, text bool) {
			t.Helper()
			begun := time.Now()
			if got := p.Text(); (got != nil) != text || time.Since(begun) != want {
				t.Errorf("%s: %d bytes after %v, want %v", what, len(got), time.Since(begun), want)
			}
		}
		took("the first collection hangs", patience, false)
		took("it hangs still", patience, false)
		close(g.open)
		synctest.Wait()
		took("it is over", 0, true)
		g.open = make(chan struct{})
		time.Sleep(time.Hour) // reason: the time of the bubble; the first collection took 2 patience, the next begins after share times that
		took("the second collection hangs", patience, true)
		took("another reader", 0, true)
		begun := time.Now()
		if p.Close(); time.Since(begun) != patience {
			t.Errorf("Close took %v", time.Since(begun))
		}
		close(g.open)
		synctest.Wait()
		n := g.calls.Load()
		time.Sleep(time.Hour) // reason: likewise
		took("after Close", 0, true)
		if g.calls.Load() != n || n != 2 {
			t.Errorf("%d collections, %d after Close", n, g.calls.Load()-n)
		}
	})
}
