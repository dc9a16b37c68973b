package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// kept is a mount that outlives its process: the owner has copies of its descriptors, and hands them to the process
// that resumes the mount.
type kept struct {
	dir   string
	epoch uint32
	fds   []int
	names []string
	next  chan *resumption // received from while no process holds the mount
	gone  chan struct{}    // closed when the mount is not kept any more
}

// resumption is a process that asks for a mount.
type resumption struct {
	w    wire
	pid  int
	done chan struct{} // closed when the connection is not needed any more
}

// errHeld reports that another process of the mount lives.
var errHeld = errors.New("another process holds this mount")

// keep notes a request of which the mount outlives its process. It returns nil for any other. It copies descriptors
// before anything makes one of them non-blocking.
func (l *Listener) keep(q *question, fds []int) (*kept, error) {
	if q.Attach == nil || !q.Attach.Keep {
		return nil, nil
	}
	k := &kept{
		dir: q.Attach.Dir, epoch: q.Attach.Epoch, next: make(chan *resumption), gone: make(chan struct{}),
	}
	for i, fd := range fds {
		if i < len(q.Descriptors) && q.Descriptors[i] == nameProc {
			continue // the next process has its own
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(append(k.fds, fds...))
			return nil, os.NewSyscallError("duplicate a descriptor", err)
		}
		k.fds = append(k.fds, dup)
		if i < len(q.Descriptors) {
			k.names = append(k.names, q.Descriptors[i])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.kept[k.dir] != nil {
		closeAll(append(k.fds, fds...))
		return nil, fmt.Errorf("%s: a mount there is kept already", k.dir)
	}
	l.mu.kept[k.dir] = k
	return k, nil
}

// unkeep ends keep. Nil is nothing to end.
func (l *Listener) unkeep(k *kept) {
	if k == nil {
		return
	}
	l.mu.Lock()
	delete(l.mu.kept, k.dir)
	l.mu.Unlock()
	close(k.gone)
	closeAll(k.fds)
}

// await keeps m from the end of its process to the detach by a process that has resumed it, the end of the mount, or
// Close. It returns the error of follow, and the connection with the function that ends it.
func (l *Listener) await(k *kept, m Mount, log *zap.Logger) (w wire, done func(), err error) {
	for {
		m.Holder(0)
		log.Info("the process of the mount has gone: the mount is kept for the next one")
		r, err := l.awaitNext(k, m)
		if err != nil {
			return w, func() {}, err
		}
		m.Holder(r.pid)
		if err = l.lend(r, k, m); err == nil {
			log.Info("mount resumed", zap.Int("by", r.pid))
			err = l.follow(r.w, m)
		}
		if !errors.Is(err, ErrEnded) {
			return r.w, func() { close(r.done) }, err
		}
		close(r.done)
	}
}

// awaitNext waits for the process that resumes a mount.
func (l *Listener) awaitNext(k *kept, m Mount) (*resumption, error) {
	l.unheld.Add(1)
	defer l.unheld.Add(-1)
	select {
	case <-m.Done():
		return nil, errors.New("it is mounted no more")
	case <-l.ctx.Done():
		return nil, errors.New("this owner stops")
	case r := <-k.next:
		return r, nil
	}
}

// Unheld returns the number of mounts that no process but the owner holds. They end with the owner.
func (l *Listener) Unheld() int { return int(l.unheld.Load()) }

// lend sends a mount to the process that resumes it.
func (l *Listener) lend(r *resumption, k *kept, m Mount) error {
	told := m.Attached()
	body, err := json.Marshal(answer{Attached: &told, Handed: &Handed{Init: told.Init, Epoch: k.epoch + 1}, Descriptors: k.names})
	if err != nil {
		return err
	}
	return r.w.write(body, l.due(), k.fds)
}

// resume serves a process that asks for the mount at dir. It waits for the end of the process before, of which the
// owner may hear later than the other side.
func (l *Listener) resume(w wire, who *unix.Ucred, dir string) error {
	l.mu.Lock()
	k := l.mu.kept[dir]
	l.mu.Unlock()
	if k == nil {
		return fmt.Errorf("no mount at %.4096q is kept here", dir)
	}
	t := time.NewTimer(l.o.patience)
	defer t.Stop()
	r := &resumption{w: w, pid: int(who.Pid), done: make(chan struct{})}
	select {
	case k.next <- r:
		<-r.done
		return nil
	case <-k.gone:
		return fmt.Errorf("the mount at %s has gone", dir)
	case <-l.ctx.Done():
		return errors.New("this owner stops")
	case <-t.C:
		return fmt.Errorf("%s: %w", dir, errHeld)
	}
}

// Resume asks the owner for the mount at dir, which a process that has ended attached with Request.Keep. It returns
// what goes on with it: the descriptors, the epoch of the next owner, and the Line. The connection belongs to the Line
// from now on, or is closed.
func (c *Conn) Resume(ctx context.Context, dir string) (*Line, *Handed, error) {
	a, err := c.askHanded(ctx, question{Version: version, Features: knownFeatures, Do: doResume, Dir: dir})
	if err == nil && a.Attached == nil {
		a.Handed.close()
		err = errAnswer
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c.line(&a), a.Handed, nil
}
