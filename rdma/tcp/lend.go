package tcp

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// lendPatience is how long a Lend may take before a goroutine watches the connection. Nearly all
// Lends find their block in memory and end in microseconds.
const lendPatience = 2 * time.Millisecond

// lend asks the source for a block. While a slow source works, lend tells the reader that this side
// is alive. If the reader goes away, the source's context ends.
func (s *session) lend(name []byte) (rdma.Loan, error) {
	source := *s.t.source.Load()
	if source == nil {
		return rdma.Loan{}, rdma.ErrBusy
	}
	v := &vigil{session: s, done: make(chan struct{})}
	wait := s.t.patience.Begin(v.run) // ends with v.stop below
	loan, err := source.Lend(s.ctx, name)
	if !s.t.patience.End(wait) {
		v.stop()
	}
	return loan, err
}

// vigil watches a connection while its session waits for the source. For that time
// it owns the link.
type vigil struct {
	*session
	done chan struct{} // closed when run has ended

	mu      sync.Mutex
	stopped bool
}

// run sends wait frames to the reader until stop, or until the reader is gone. Then it ends the
// source's context.
func (v *vigil) run() {
	defer close(v.done)
	if v.watch() != nil {
		v.cut()
	}
	if v.wasCut() {
		v.cancel()
	}
}

// watch returns nil after stop, or why the connection is unusable.
func (v *vigil) watch() error {
	beat := v.stall / 3
	wait := appendAnswer(nil, answer{kind: kindWait, seq: v.seq - 1})
	for !v.isStopped() {
		if err := v.arm(beat); err != nil {
			return err
		}
		err := v.raw.Read(func(fd uintptr) bool { return hungUp(int(fd)) })
		switch {
		case err == nil:
			return errCut
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case v.isStopped():
			return nil
		}
		if err := v.write(wait); err != nil {
			return err
		}
	}
	return nil
}

// stop ends run and returns when it has.
func (v *vigil) stop() {
	v.mu.Lock()
	v.stopped = true
	v.wakeReader()
	v.mu.Unlock()
	<-v.done
}

func (v *vigil) isStopped() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stopped
}

// arm sets the time of the next beat, unless run is to end at once.
func (v *vigil) arm(beat time.Duration) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stopped {
		return nil
	}
	return v.armRead(beat)
}
