package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

// The accounts say what the engine has handed out. The file system behind memory may have less
// left: clients of a daemon that was killed still have its files open, and on a shared one others
// store too.

const (
	// gaugeAgain is how often who waits for room looks at a file system that has too little left.
	gaugeAgain = 50 * time.Millisecond
	// futileFor is how long nothing is evicted for its sake after that has brought nothing.
	futileFor = 250 * time.Millisecond
	// fullLogged is the least time between two lines that memory is full of what is open.
	fullLogged = time.Minute
)

// look looks at what the file system behind memory has left, and sets the limit so that an eighth of the
// headroom stays free. It returns what is free now.
func (e *Engine) look() (free int64, err error) {
	if free, err = e.primary.FreeBytes(); err != nil {
		return 0, err
	}
	e.mu.Lock()
	limit := max(0, min(e.opts.CapacityBytes, e.mu.usedBytes+free-e.opts.HeadroomBytes/8))
	if limit > e.mu.limitBytes {
		e.signalSpaceLocked()
	}
	e.mu.limitBytes = limit
	e.mu.Unlock()
	return free, nil
}

// gauge looks whether the file system behind memory has room for n bytes, and evicts for them if it has less than
// the accounts say; force takes what is leased, too. Where that has brought nothing, because clients of a killed
// daemon have the blocks open, it leaves the others alone for a while. It returns what was free before. No lock is held.
func (e *Engine) gauge(n int64, force bool) (free int64, err error) {
	if free, err = e.look(); err != nil {
		return 0, err
	}
	var g gone
	e.mu.Lock()
	need := e.mu.usedBytes + n - e.mu.limitBytes
	short := e.mu.limitBytes < e.opts.CapacityBytes && need > 0 && n <= e.opts.CapacityBytes && (force || e.now() >= e.mu.futile)
	if short {
		e.clearLimboLocked(&g)
		e.evictAnyLocked(need, need, force, &g)
	}
	e.mu.Unlock()
	if !short {
		return free, nil
	}
	e.finish(&g)
	if now, err := e.look(); err == nil && now <= free {
		e.mu.Lock()
		e.mu.futile = e.now() + int64(futileFor)
		e.mu.Unlock()
	}
	return free, nil
}

// lookAgainLocked bounds a wait for room: where the file system has too little, no signal tells of more.
func (e *Engine) lookAgainLocked(left time.Duration) time.Duration {
	if e.mu.limitBytes < e.opts.CapacityBytes {
		return min(left, gaugeAgain)
	}
	return left
}

// relieve evicts something after the file system behind memory had no room, of bytes or of files, where
// the accounts have. force takes what is leased, too.
func (e *Engine) relieve(force bool) {
	e.gauge(0, force) // if that fails, so will what comes next
	var g gone
	e.mu.Lock()
	e.mu.counters.FileSystemFull++
	e.clearLimboLocked(&g)
	e.evictAnyLocked(1, 1, force, &g)
	e.mu.Unlock()
	e.finish(&g)
}

// withRoom does op until it fails with something else than ErrNoSpace, for which the file system behind
// memory had no room: it evicts and waits in between, up to WriteTimeout. It returns what op does, or
// ctx's error.
func (e *Engine) withRoom(ctx context.Context, w Waiter, op func() error) error {
	deadline := e.opts.Now().Add(e.opts.WriteTimeout)
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, 5*gaugeAgain) {
		err := op()
		if !errors.Is(err, block.ErrNoSpace) {
			return err
		}
		left := deadline.Sub(e.opts.Now())
		e.relieve(left <= 0)
		if left <= 0 {
			return op()
		}
		if pause > 0 { // what was evicted may be open elsewhere still
			announce(w)
			if err := waitSpace(ctx, nil, min(left, pause)); err != nil {
				return err
			}
		}
	}
}

// createFile is Primary.Create with room made for it.
func (e *Engine) createFile(ctx context.Context, w Waiter) (blob driver.BlobID, file *os.File, err error) {
	err = e.withRoom(ctx, w, func() (err error) {
		blob, file, err = e.primary.Create()
		return err
	})
	return blob, file, err
}

// atOnce is withRoom for who must not wait.
func (e *Engine) atOnce(op func() error) error {
	err := op()
	if errors.Is(err, block.ErrNoSpace) {
		e.relieve(false)
		err = op()
	}
	return err
}

// loadAgain asks a tier once more for a block whose file had no room, in time for maxAsked tries while a writer
// would wait.
func (e *Engine) loadAgain(p *promotion) {
	e.relieve(false)
	if waitSpace(e.ctx, nil, e.opts.WriteTimeout/maxAsked) == nil {
		e.requestLoad(p)
		return
	}
	e.failPromotion(p, block.ErrClosed)
}

// overrunsLocked reports whether a file that has bytes already may use the headroom for n more, rather than fail.
func (e *Engine) overrunsLocked(n int64) bool {
	room := e.opts.HeadroomBytes / 2
	if e.mu.limitBytes < e.opts.CapacityBytes {
		room = 0
	}
	return e.mu.usedBytes+n <= e.mu.limitBytes+room
}

// whole reports whether no write of f can have ended short though the engine has seen none: f is as
// long as the group's blocks are, and has no hole.
func (f *File) whole(size int64) bool {
	f.e.mu.Lock()
	expected := f.e.mu.groups[f.e.mu.ix.At(f.id).Group].expectBytes()
	f.e.mu.Unlock()
	return size == expected && f.withFile(func(file *os.File) error {
		hole, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_HOLE)
		if err == nil && hole < size {
			err = block.ErrNotFound
		}
		return err
	}) == nil
}

// hopelessLocked says why no wait can make room for n bytes more in a file that has charge of them: ErrTooLarge
// or ErrQuota. Nil: one may.
func (e *Engine) hopelessLocked(gr *group, charge, n int64) error {
	q := gr.opts.QuotaBytes
	switch {
	case charge+n > e.opts.CapacityBytes:
		return block.ErrTooLarge
	case q > 0 && charge+n > q, gr.opts.Pinned && gr.overQuota(n):
		return block.ErrQuota
	}
	return nil
}

// overQuota reports whether n bytes more are more than the group may have.
func (g *group) overQuota(n int64) bool {
	return g.opts.QuotaBytes > 0 && g.usedBytes+n > g.opts.QuotaBytes
}

// refusalLocked counts and says why a file that has charge is refused n bytes for which there is no room. Nil: its
// writer has left to wait.
func (e *Engine) refusalLocked(gr *group, charge, n int64, left time.Duration) error {
	err := e.hopelessLocked(gr, charge, n)
	switch {
	case err == nil && left > 0:
		return nil
	case err != nil:
	case gr.overQuota(n):
		err = block.ErrQuota
	default:
		err = block.ErrNoSpace
	}
	e.mu.counters.NoSpace++
	return err
}

// What memory is full of when an open or a write has to wait.
const (
	fullOfOpen   = "files that are open, pinned or temporary"
	fullOfLeased = "blocks that were looked up within the lease and that no other tier has"
)

// fullness is when an open or a write last had to wait for memory, and why.
type fullness struct {
	of   string // what memory was full of
	at   int64  // 0: never
	told int64  // when the log last had it
}

// note takes note of it, and reports whether it is time to log it.
func (f *fullness) note(of string, now int64) (tell bool) {
	f.of, f.at = of, now
	if tell = f.told == 0 || now-f.told >= int64(fullLogged); tell {
		f.told = now
	}
	return tell
}

// full counts that an open or a write waits for n bytes of memory, and logs it now and then. until is when
// the first lease ends that stands in the way; 0: none does.
func (e *Engine) full(n, until int64) {
	e.mu.Lock()
	pinned, limit := e.mu.pinnedBytes, e.mu.limitBytes
	what := ""
	switch {
	case pinned+n > limit:
		e.mu.counters.FullOfOpen++
		what = fullOfOpen
	case until > 0:
		e.mu.counters.FullOfLeased++
		what = fullOfLeased
	default: // a copy is being made of what will go then
		e.mu.Unlock()
		return
	}
	tell := e.mu.fullness.note(what, e.now())
	e.mu.Unlock()
	if tell {
		e.log.Warn("memory is full of "+what+": opens and writes wait, and then fail",
			zap.Int64("wanted_bytes", n), zap.Int64("pinned_bytes", pinned), zap.Int64("memory_bytes", limit))
	}
}
