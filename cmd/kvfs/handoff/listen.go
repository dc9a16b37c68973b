package handoff

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// maxConnections bounds the connections; at most MaxMounts of them are mounts.
const maxConnections = 1100

// MaxMounts is the number of mounts that one owner serves at most.
const MaxMounts = 1023

// Handler is what the owner does for connecting processes. Its methods are called from many goroutines.
type Handler interface {
	// Attach begins to answer a mount. The handler owns the request's descriptors from the call on, also if it fails. The
	// mount gets the text of the error. Attach must give up when ctx ends.
	Attach(ctx context.Context, r *Request) (Mount, error)

	// Status returns the owner's status document.
	Status() []byte
}

// Mount is a mount that the handler answers.
type Mount interface {
	// Attached returns the answer to the mount process.
	Attached() Attached

	// Done returns a channel that is closed when the mount is gone.
	Done() <-chan struct{}

	// Holder tells which process holds the mount from now on; 0: none does, until one resumes it.
	Holder(pid int)

	// Detach stops answering. It returns when nothing of the mount is in use. It is called exactly once.
	Detach()
}

// Options configures a Listener.
type Options struct {
	Path    string // of the socket. Required.
	Release string // version of the program, for the other side's log
	Logger  *zap.Logger

	patience time.Duration // how long to wait for an expected message; zero means patience. Tests set it
	lockTime time.Duration // how long to wait for an owner that ends; zero means lockTime. Tests set it
}

// Listener is the owner's end.
type Listener struct {
	server
	unheld atomic.Int64 // mounts that wait for the process that resumes them

	held struct {
		sync.Mutex
		kept   map[string]*kept // by directory
		mounts int
	}
}

// Listen makes the socket. It makes the directory if it is absent; the directory must be ours alone. Listen replaces the
// socket of a dead owner, and fails with ErrServing if one lives. A connecting process waits until Serve is called.
func Listen(o Options) (*Listener, error) {
	l := &Listener{}
	l.release, l.patience, l.claim = o.Release, o.patience, (*socketDir).claim
	l.held.kept = map[string]*kept{}
	if err := l.open(o.Path, maxConnections, cmp.Or(o.lockTime, lockTime), o.Logger); err != nil {
		return nil, err
	}
	return l, nil
}

// lookEvery is how often the owner checks that its socket exists.
const lookEvery = time.Second

// look makes the socket again after a process has removed it, such as a cleaner of temporary files. Without it mounts would
// wait for an owner, and a second owner would find the lock taken.
func (l *Listener) look() {
	for said := ""; l.wait(lookEvery); {
		l.mu.Lock()
		gone := l.mu.dir == nil || !l.mu.dir.intact()
		l.mu.Unlock()
		if !gone {
			continue
		}
		if err := l.remake(); err == nil {
			said = ""
			l.log.Warn("the socket was removed: the owner has made it again", zap.String("socket", l.path))
		} else if why := fmt.Sprint(err); why != said {
			said = why
			l.log.Error("the socket was removed, and cannot be made again: no mount can attach; the owner tries again", zap.Error(err))
		}
	}
}

// remake makes the socket again, with its directory and lock if these are gone as well.
func (l *Listener) remake() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil
	}
	if l.mu.dir != nil {
		_ = l.mu.dir.close() // its lock is in the way
		l.mu.dir = nil
	}
	dir, next, err := l.make(l.path, 0)
	if err != nil {
		return err
	}
	old := l.mu.l
	l.mu.l, l.mu.dir = next, dir
	return old.Close() // Serve goes on with the new one
}

// Serve answers connecting processes until Close.
func (l *Listener) Serve(h Handler) {
	if l.hold() {
		go func() { defer l.wg.Done(); l.look() }() // ends with Close
	}
	l.serve(func(w wire) { l.answer(w, h) })
}

// Close detaches all mounts and removes the socket. The mounts then wait for the next owner.
func (l *Listener) Close() error { return l.close() }

// enter counts a mount. It reports false if there are too many.
func (l *Listener) enter() bool {
	l.held.Lock()
	defer l.held.Unlock()
	if l.held.mounts >= MaxMounts {
		return false
	}
	l.held.mounts++
	return true
}

func (l *Listener) leave() {
	l.held.Lock()
	defer l.held.Unlock()
	l.held.mounts--
}

func (l *Listener) answer(w wire, h Handler) {
	who, q, fds, err := l.greet(w, nil)
	switch {
	case err != nil:
	case q.Do == doAttach:
		l.attach(w, h, who, q, fds)
		return
	case q.Do == doResume && len(fds) == 0:
		err = l.resume(w, who, q.Dir)
	case q.Do == doStatus && len(fds) == 0:
		err = w.sendText(h.Status(), l.due())
	default:
		closeAll(fds)
		err = fmt.Errorf("%w: %.64q is no request, with %d descriptors", ErrMalformed, q.Do, len(fds))
	}
	if err != nil {
		l.refuse(w, "a request", err)
	}
}

// attach serves a mount until one side ends it. If the mount process ends before that and wanted the mount to be
// kept, the mount waits for the process that resumes it.
func (l *Listener) attach(w wire, h Handler, who *unix.Ucred, q *question, fds []int) {
	log := l.log.With(zap.Int32("pid", who.Pid))
	kept, err := l.keep(q, fds)
	done := func() {}
	defer func() {
		l.unkeep(kept)
		done() // last: the other side may use the directory again from then on
	}()
	var m Mount
	if err == nil {
		m, err = l.begin(h, who, q, fds)
	}
	if err != nil {
		l.refuse(w, "a mount", err)
		return
	}
	defer l.leave()
	told := m.Attached()
	log = log.With(zap.String("dir", q.Attach.Dir))
	log.Info("mount attached", zap.Uint32("epoch", q.Attach.Epoch), zap.String("read_path", told.ReadPath))
	err = w.send(answer{Attached: &told}, l.due())
	if err == nil {
		err = l.follow(w, m)
	}
	if kept != nil && errors.Is(err, ErrEnded) {
		l.drop(w.c)
		w, done, err = l.await(kept, m, log)
	}
	m.Detach()
	log.Info("mount detached", zap.Error(err))
	if err == nil {
		_ = w.send(answer{Do: doDetached}, l.due()) // the other side may not wait for it
	}
}

func (l *Listener) begin(h Handler, who *unix.Ucred, q *question, fds []int) (Mount, error) {
	r := q.Attach
	if r == nil {
		closeAll(fds)
		return nil, fmt.Errorf("%w: nothing to attach", ErrMalformed)
	}
	if err := r.take(fds, q.Descriptors); err != nil {
		return nil, err
	}
	r.PID, r.UID = int(who.Pid), who.Uid
	if err := r.check(); err != nil {
		r.Close()
		return nil, err
	}
	if !l.enter() {
		r.Close()
		return nil, fmt.Errorf("there are %d mounts already", MaxMounts)
	}
	m, err := h.Attach(l.ctx, r)
	if err != nil {
		l.leave()
	}
	return m, err
}

// follow waits until the mount process asks to be detached, ends, or has no mount any more. The first is no error.
func (l *Listener) follow(w wire, m Mount) error {
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends with follow
		select {
		case <-m.Done():
			_ = w.c.CloseRead() // wakes the reader, if it lives
		case <-ended:
		}
	}()
	var q question
	fds, err := w.receive(&q, time.Time{})
	closeAll(fds)
	switch {
	case err == nil && q.Do == doDetach && len(fds) == 0:
		return nil
	case err == nil:
		return fmt.Errorf("%w: %.64q on a life line", ErrMalformed, q.Do)
	case err != io.EOF:
		return err
	}
	select {
	case <-m.Done():
		return errors.New("it is mounted no more")
	default:
	}
	if l.ctx.Err() != nil {
		return errors.New("this owner stops")
	}
	return fmt.Errorf("%w: the mount process has gone", ErrEnded)
}

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
	l.held.Lock()
	defer l.held.Unlock()
	if l.held.kept[k.dir] != nil {
		closeAll(append(k.fds, fds...))
		return nil, fmt.Errorf("%s: a mount there is kept already", k.dir)
	}
	l.held.kept[k.dir] = k
	return k, nil
}

func (l *Listener) unkeep(k *kept) {
	if k == nil {
		return
	}
	l.held.Lock()
	delete(l.held.kept, k.dir)
	l.held.Unlock()
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
	l.held.Lock()
	k := l.held.kept[dir]
	l.held.Unlock()
	if k == nil {
		return fmt.Errorf("no mount at %.4096q is kept here", dir)
	}
	t := time.NewTimer(l.patience)
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
	a, err := c.askHanded(ctx, question{Version: version, Do: doResume, Dir: dir})
	if err == nil && a.Attached == nil {
		a.Handed.close()
		err = errAnswer
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c.line(&a), a.Handed, nil
}
