package port

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/directio"
)

// stuckEngine is an engine whose oldest operation has been with the kernel for a set time.
type stuckEngine struct {
	directio.Engine
	stuck atomic.Int64
}

func (e *stuckEngine) Stuck() time.Duration        { return time.Duration(e.stuck.Load()) }
func (e *stuckEngine) Close(context.Context) error { return nil }

// TestPortDown shows what takes a port down, and that it goes down once: with the first
// reason, its context ended, and before onDown is called.
func TestPortDown(t *testing.T) {
	for _, c := range []struct {
		reason string
		do     func(p *Port, e *stuckEngine)
	}{
		{"given up", func(p *Port, _ *stuckEngine) { p.Fail("given up") }},
		{"10 I/O errors", func(p *Port, _ *stuckEngine) {
			for range MaxErrors {
				p.Count(errors.New("broken"))
			}
		}},
		{"an operation has not come back for 1h", func(_ *Port, e *stuckEngine) { e.stuck.Store(int64(time.Hour)) }},
		{"an operation has not come back for 1h", func(p *Port, _ *stuckEngine) {
			p.calls[BySyncer].at.Store(time.Now().Add(-time.Hour).UnixNano())
		}},
	} {
		engine := &stuckEngine{}
		var counted atomic.Uint64
		told := make(chan string, 2)
		var p *Port
		p = New(engine, time.Second, &counted, func(reason string) {
			if !p.IsDown() || p.Ctx.Err() == nil {
				reason = "onDown before it is down"
			}
			told <- reason
		})
		for range MaxErrors - 1 {
			p.Count(errors.New("broken"))
		}
		p.mu.Lock()
		for i := range p.mu.errors { // too long ago
			p.mu.errors[i] = p.mu.errors[i].Add(-errorWindow)
		}
		p.mu.Unlock()
		p.Count(errors.New("broken"))
		if state, reason := p.Status(); state != "online" || reason != "" || p.IsDown() {
			t.Errorf("%s: %s (%s) before", c.reason, state, reason)
		}
		var watching sync.WaitGroup
		watching.Go(p.Watch)
		c.do(p, engine)
		if reason := <-told; !strings.HasPrefix(reason, c.reason) {
			t.Errorf("told %q, want %q", reason, c.reason)
		}
		p.Fail("second")
		if state, reason := p.Status(); state != "offline" || !strings.HasPrefix(reason, c.reason) {
			t.Errorf("%s (%s), want offline (%s)", state, reason, c.reason)
		}
		watching.Wait()
		if err := p.Close(); err != nil || len(told) > 0 || counted.Load() < MaxErrors {
			t.Errorf("%v, told again: %v, %d errors", err, len(told) > 0, counted.Load())
		}
	}
}

// TestPortSettled shows that a port which is being closed does not go down any more.
func TestPortSettled(t *testing.T) {
	p := New(&stuckEngine{}, time.Minute, new(atomic.Uint64), func(reason string) { t.Error("down: " + reason) })
	p.Settle()
	p.Fail("too late")
	if p.IsDown() || p.Close() != nil {
		t.Error("down")
	}
}
