package disk

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/directio"
)

const (
	// A device goes offline after this many failed operations within errorWindow.
	maxErrors   = 10
	errorWindow = time.Minute
)

// port is the way to one device. All operations of the device go through it. It alone decides
// whether the device is in use: it is up from newPort on, goes down once, and stays down.
//
// A port goes down if
//   - maxErrors operations failed within errorWindow; count counts them
//   - an operation or a call has been with the kernel for longer than the limit
//   - fail is called
//
// Going down ends the context of all operations, closes down, and then calls onDown once, without a
// lock. It does not wait for the kernel. Memory that the kernel still uses stays allocated for
// ever. Methods may be called in parallel.
type port struct {
	// Constant. Others read the engine's name, Stats and Start.
	engine directio.Engine
	ctx    context.Context // of all operations
	down   chan struct{}   // closed when the port goes down

	limit    time.Duration  // longest time that an operation may be with the kernel
	ioErrors *atomic.Uint64 // operations that failed
	onDown   func(reason string)
	stop     context.CancelFunc
	unwatch  chan struct{} // closed when the watchdog is to end
	once     sync.Once     // of fail
	calls    [callers]stopwatch

	mu struct {
		sync.Mutex
		reason string      // why the port is down
		errors []time.Time // of the last failed operations, at most maxErrors
	}
}

// caller is a goroutine that makes system calls which return only when the device answers.
type caller int

// The callers. Each makes one call at a time.
const (
	byKeeper caller = iota
	bySyncer
	callers
)

// stopwatch tells how long a call has been under way. It times one call at a time.
type stopwatch struct{ at atomic.Int64 }

func (w *stopwatch) start() { w.at.Store(time.Now().UnixNano()) }
func (w *stopwatch) stop()  { w.at.Store(0) }

func (w *stopwatch) elapsed() time.Duration {
	if at := w.at.Load(); at != 0 {
		return time.Duration(time.Now().UnixNano() - at)
	}
	return 0
}

// newPort returns a port that is up. It owns the engine; see close.
func newPort(engine directio.Engine, limit time.Duration, ioErrors *atomic.Uint64, onDown func(reason string)) *port {
	p := &port{
		engine: engine, limit: limit, ioErrors: ioErrors, onDown: onDown,
		down: make(chan struct{}), unwatch: make(chan struct{}),
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// do passes ops to the engine and returns how many bytes were written. It does not count failures;
// see count.
func (p *port) do(ops []directio.Op) (written int64, err error) {
	err = p.engine.Do(p.ctx, ops)
	for i := range ops {
		if ops[i].Kind == directio.Write {
			written += int64(ops[i].N)
		}
	}
	return written, err
}

// call runs fn, which makes system calls. The watchdog sees how long it takes.
func (p *port) call(who caller, fn func() error) error {
	p.calls[who].start()
	defer p.calls[who].stop()
	return fn()
}

// count counts an operation that failed because of the device. After too many the port goes down,
// on another goroutine: the caller may hold a lock that onDown needs.
func (p *port) count(err error) {
	p.ioErrors.Add(1)
	now := time.Now()
	p.mu.Lock()
	p.mu.errors = append(p.mu.errors, now)
	if len(p.mu.errors) > maxErrors {
		p.mu.errors = p.mu.errors[len(p.mu.errors)-maxErrors:]
	}
	many := len(p.mu.errors) == maxErrors && now.Sub(p.mu.errors[0]) <= errorWindow
	p.mu.Unlock()
	if many {
		go p.fail(fmt.Sprintf("%d I/O errors within %v, the last: %v", maxErrors, errorWindow, err))
	}
}

// fail takes the port down. It returns after onDown has returned, also if another caller was first.
func (p *port) fail(reason string) {
	p.once.Do(func() {
		p.mu.Lock()
		p.mu.reason = reason
		close(p.down) // under the lock: a caller that reads offline from status also finds isDown
		p.mu.Unlock()
		p.stop()
		p.onDown(reason)
	})
}

// settle waits for a fail that is under way. A fail that comes later does nothing.
func (p *port) settle() { p.once.Do(func() {}) }

// isDown reports whether the port is down. It takes no lock.
func (p *port) isDown() bool {
	select {
	case <-p.down:
		return true
	default:
		return false
	}
}

// status returns "online", or "offline" and the reason.
func (p *port) status() (state, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDown() {
		return "offline", p.mu.reason
	}
	return "online", ""
}

// watch takes the port down when an operation is stuck. It returns then, or after close.
func (p *port) watch() {
	tick := time.NewTicker(min(time.Second, max(p.limit/4, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.down:
			return
		case <-p.unwatch:
			return
		}
		if s := p.stuckFor(); s > p.limit {
			p.fail(fmt.Sprintf("an operation has not come back for %v", s.Round(time.Millisecond)))
			return
		}
	}
}

// stuckFor returns for how long the oldest operation has been with the kernel.
func (p *port) stuckFor() time.Duration {
	stuck := p.engine.Stuck()
	for i := range p.calls {
		stuck = max(stuck, p.calls[i].elapsed())
	}
	return stuck
}

// close ends the watchdog and frees the engine, which must not be in use.
func (p *port) close() error {
	close(p.unwatch)
	p.stop()
	return p.engine.Close(context.Background())
}

// leave is close for a port that is down. Its operations may never come back.
func (p *port) leave() {
	go p.engine.Close(context.Background()) // ends when the device answers, or never
}
