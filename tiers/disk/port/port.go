package port

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/directio"
)

const (
	// MaxErrors is how many failed operations within errorWindow take a device offline.
	MaxErrors   = 10
	errorWindow = time.Minute
)

// Port is the way to one device. All operations of the device go through it. It alone decides
// whether the device is in use: it is up from New on, goes down once, and stays down.
//
// A port goes down if
//   - MaxErrors operations failed within errorWindow; Count counts them
//   - an operation or a call has been with the kernel for longer than the limit
//   - Fail is called
//
// Going down ends the context of all operations, closes Down, and then calls onDown once, without a
// lock. It does not wait for the kernel. Memory that the kernel still uses stays allocated for
// ever. Methods may be called in parallel.
type Port struct {
	// Constant. Others read the engine's name, Stats and Start.
	Engine  directio.Engine
	Ctx     context.Context // of all operations
	Down    chan struct{}   // closed when the port goes down
	Closing chan struct{}   // closed when Close begins; ends the watchdog

	limit    time.Duration  // longest time that an operation may be with the kernel
	ioErrors *atomic.Uint64 // operations that failed
	onDown   func(reason string)
	stop     context.CancelFunc
	once     sync.Once // of fail
	calls    [callers]stopwatch

	mu struct {
		sync.Mutex
		reason string      // why the port is down
		errors []time.Time // of the last failed operations, at most MaxErrors
	}
}

// Caller is a goroutine that makes system calls which return only when the device answers.
type Caller int

// The callers. Each makes one call at a time.
const (
	ByKeeper Caller = iota
	BySyncer
	ByMarker
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

// New returns a port that is up. It owns the engine; see Close. limit is how long an
// operation may be with the kernel. ioErrors counts the operations that failed. onDown must not wait
// for the kernel.
func New(engine directio.Engine, limit time.Duration, ioErrors *atomic.Uint64, onDown func(reason string)) *Port {
	p := &Port{
		Engine: engine, limit: limit, ioErrors: ioErrors, onDown: onDown,
		Down: make(chan struct{}), Closing: make(chan struct{}),
	}
	p.Ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Do passes ops to the engine and returns how many bytes were written. It does not count failures;
// see Count. It blocks until the kernel answers or the port goes down.
func (p *Port) Do(ops []directio.Op) (written int64, err error) {
	err = p.Engine.Do(p.Ctx, ops)
	for i := range ops {
		if ops[i].Kind == directio.Write {
			written += int64(ops[i].N)
		}
	}
	return written, err
}

// Call runs fn, which makes system calls. The watchdog sees how long it takes.
func (p *Port) Call(who Caller, fn func() error) error {
	p.calls[who].start()
	defer p.calls[who].stop()
	return fn()
}

// Count counts an operation that failed because of the device. After too many the port goes down,
// on another goroutine: the caller may hold a lock that onDown needs.
func (p *Port) Count(err error) {
	p.ioErrors.Add(1)
	now := time.Now()
	p.mu.Lock()
	p.mu.errors = append(p.mu.errors, now)
	if len(p.mu.errors) > MaxErrors {
		p.mu.errors = p.mu.errors[len(p.mu.errors)-MaxErrors:]
	}
	many := len(p.mu.errors) == MaxErrors && now.Sub(p.mu.errors[0]) <= errorWindow
	p.mu.Unlock()
	if many {
		go p.Fail(fmt.Sprintf("%d I/O errors within %v, the last: %v", MaxErrors, errorWindow, err))
	}
}

// Fail takes the port down. It returns after onDown has returned, also if another caller was first.
func (p *Port) Fail(reason string) {
	p.once.Do(func() {
		p.mu.Lock()
		p.mu.reason = reason
		close(p.Down) // under the lock: a caller that reads offline from status also finds IsDown
		p.mu.Unlock()
		p.stop()
		p.onDown(reason)
	})
}

// Settle waits for a Fail that is under way. A Fail that comes later does nothing.
func (p *Port) Settle() { p.once.Do(func() {}) }

// IsDown reports whether the port is down. It takes no lock.
func (p *Port) IsDown() bool {
	select {
	case <-p.Down:
		return true
	default:
		return false
	}
}

// Status returns "online", or "offline" and the reason.
func (p *Port) Status() (state, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.IsDown() {
		return "offline", p.mu.reason
	}
	return "online", ""
}

// Watch takes the port down when an operation is stuck. It returns then, or after Close.
func (p *Port) Watch() {
	tick := time.NewTicker(min(time.Second, max(p.limit/4, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.Down:
			return
		case <-p.Closing:
			return
		}
		if s := p.stuckFor(); s > p.limit {
			p.Fail(fmt.Sprintf("an operation has not come back for %v", s.Round(time.Millisecond)))
			return
		}
	}
}

// stuckFor returns for how long the oldest operation has been with the kernel.
func (p *Port) stuckFor() time.Duration {
	stuck := p.Engine.Stuck()
	for i := range p.calls {
		stuck = max(stuck, p.calls[i].elapsed())
	}
	return stuck
}

// Close ends the watchdog and frees the engine, which must not be in use.
func (p *Port) Close() error {
	close(p.Closing)
	p.stop()
	return p.Engine.Close(context.Background())
}

// Leave is Close for a port that is down. Its operations may never come back.
func (p *Port) Leave() {
	go p.Engine.Close(context.Background()) // ends when the device answers, or never
}
