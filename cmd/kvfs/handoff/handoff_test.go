package handoff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tests/harness"
)

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// limit is how long a test waits for what ought to happen.
const limit = 30 * time.Second

// owner is a Handler whose mounts are descriptors and nothing more.
type owner struct {
	mu struct {
		sync.Mutex
		mounts []*mount // all that ever were
	}
	refuse   error
	block    chan struct{} // if not nil, Attach waits for it, or for its context
	entered  chan struct{} // receives when Attach begins, if not nil
	detached atomic.Int64
	status   []byte
}

type mount struct {
	o     *owner
	r     *Request
	done  chan struct{}
	ended chan struct{} // closed by Detach

	holder atomic.Int64
}

func (o *owner) Attach(ctx context.Context, r *Request) (Mount, error) {
	if o.entered != nil {
		o.entered <- struct{}{}
	}
	if o.block != nil {
		select {
		case <-o.block:
		case <-ctx.Done():
			r.Close()
			return nil, ctx.Err()
		}
	}
	if o.refuse != nil {
		r.Close()
		return nil, o.refuse
	}
	m := &mount{o: o, r: r, done: make(chan struct{}), ended: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.mounts = append(o.mu.mounts, m)
	return m, nil
}

func (o *owner) Status() []byte { return o.status }

func (o *owner) mount(i int) *mount {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.mounts[i]
}

// count returns how many mounts there ever were.
func (o *owner) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.mounts)
}

func (m *mount) Attached() Attached {
	return Attached{Init: []byte("init of " + m.r.Dir), ReadPath: "none"}
}
func (m *mount) Done() <-chan struct{} { return m.done }
func (m *mount) Holder(pid int)        { m.holder.Store(int64(pid)) }
func (m *mount) Detach() {
	m.r.Close()
	m.o.detached.Add(1)
	close(m.ended)
}

// serve starts an owner in a new directory and returns its socket.
func serve(t *testing.T, o *owner, opts Options) (*Listener, string) {
	t.Helper()
	if opts.Path == "" {
		opts.Path = filepath.Join(t.TempDir(), "kvfs", "store.sock")
	}
	if opts.patience == 0 {
		opts.patience = limit
	}
	l, err := Listen(opts)
	must(t, err)
	var served sync.WaitGroup
	served.Go(func() { l.Serve(o) }) // ends with Close
	t.Cleanup(func() {
		check(t, l.Close())
		served.Wait()
	})
	return l, opts.Path
}

func dial(t *testing.T, path string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), path)
	must(t, err)
	return c
}

// attach attaches one mount whose descriptors are pipes.
func attach(t *testing.T, path, dir string) *Line {
	t.Helper()
	r := request(t, dir)
	defer r.Close()
	line, err := dial(t, path).Attach(t.Context(), r)
	must(t, err)
	return line
}

// request hands over /dev/null. Its caller closes it.
func request(t *testing.T, dir string) *Request {
	t.Helper()
	f, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	must(t, err)
	return &Request{Dir: dir, Epoch: 1, Dev: f}
}

// wait waits for an event.
func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(limit):
		t.Fatalf("after %v still not: %s", limit, what)
	}
}

var poll = harness.Poll

// open counts the descriptors of this process.
func open(t *testing.T) int {
	t.Helper()
	// os.ReadDir would not do: the runtime makes its poller, which is two descriptors, when the first
	// file is opened that it could watch, and that must not be one of those that are counted.
	dir, err := os.Open("/proc/self/fd")
	must(t, err)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	must(t, err)
	return len(names)
}

// steady fails the test unless fn leaves as many descriptors as there were, soon.
func steady(t *testing.T, fn func()) {
	t.Helper()
	before := open(t)
	fn()
	poll(t, fmt.Sprintf("%d descriptors, as before", before), func() bool { return open(t) <= before })
}

// TestAttach shows a mount's whole life: what it sends arrives, what the owner answers comes
// back, the descriptors are the same files, and Detach ends all of it (B1).
func TestAttach(t *testing.T) {
	o := &owner{}
	_, path := serve(t, o, Options{Release: "v9"})
	r1, w1, err := os.Pipe()
	must(t, err)
	defer r1.Close()
	spin, w2, err := os.Pipe() // does not block
	must(t, err)
	defer spin.Close()
	defer w2.Close()
	proc, err := OpenProc()
	must(t, err)
	defer proc.Close()
	steady(t, func() {
		c := dial(t, path)
		if g := c.Greeting(); g.Release != "v9" || g.PID != os.Getpid() || g.Version != version {
			t.Errorf("greeting %+v", g)
		}
		sent := &Request{
			Dir: "/mnt/kv", FSName: "kv", Epoch: 7, Init: []byte{0, 1, 255}, AllowOther: true, EntryTimeout: time.Minute,
			AttrTimeout: time.Second, MaxWrite: 4096, Passthrough: "on", Release: "v8", Dev: w1, Spin: spin, Proc: proc,
		}
		line, err := c.Attach(t.Context(), sent)
		must(t, err)
		if got := string(line.Attached().Init); got != "init of /mnt/kv" {
			t.Errorf("init %q", got)
		}
		got := *o.mount(0).r
		if got.PID != os.Getpid() || got.UID != uint32(os.Geteuid()) {
			t.Errorf("of pid %d, uid %d", got.PID, got.UID)
		}
		check(t, CheckProc(got.Proc))
		if flags, err := unix.FcntlInt(got.Spin.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags of the descriptor to spin on: %#x, %v", flags, err)
		}
		if err := got.Spin.SetReadDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
			t.Errorf("the descriptor to spin on is in the poller: %v", err)
		}
		if _, err := got.Dev.WriteString("x"); err != nil {
			t.Error(err)
		}
		if b := make([]byte, 1); true {
			if _, err := r1.Read(b); err != nil || b[0] != 'x' {
				t.Errorf("through the pipe: %q, %v", b, err)
			}
		}
		got.Dev, got.Spin, got.Proc, got.PID, got.UID = sent.Dev, sent.Spin, sent.Proc, 0, 0
		if fmt.Sprint(got) != fmt.Sprint(*sent) {
			t.Errorf("got %+v, want %+v", got, *sent)
		}
		check(t, line.Detach(t.Context()))
		wait(t, "detached", o.mount(0).ended)
		line.Close()
	})
	w1.Close()
	if n, err := r1.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a pipe that nobody should have open", n)
	}
}

// TestManyMounts attaches 64 mounts at a time and ends them in every way; each of them is let
// go of once, and the descriptors with it (B1).
func TestManyMounts(t *testing.T) {
	const n = 64
	o := &owner{}
	l, path := serve(t, o, Options{})
	steady(t, func() {
		lines := make([]*Line, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				r := request(t, fmt.Sprintf("/mnt/%d", i))
				defer r.Close()
				c, err := Dial(t.Context(), path)
				if err == nil {
					lines[i], err = c.Attach(t.Context(), r)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
		for i, line := range lines {
			if got, want := string(line.Attached().Init), fmt.Sprintf("init of /mnt/%d", i); got != want {
				t.Errorf("mount %d was told %q", i, got)
			}
		}
		for i, line := range lines {
			switch i % 3 {
			case 0: // the process is gone
				line.Close()
			case 1: // it says so
				check(t, line.Detach(t.Context()))
				line.Close()
			case 2: // somebody unmounted
				for j := range n {
					if m := o.mount(j); m.r.Dir == fmt.Sprintf("/mnt/%d", i) {
						close(m.done)
					}
				}
				wait(t, "the line of a mount that is gone ends", line.Ended())
				line.Close()
			}
		}
		poll(t, "all detached", func() bool { return o.detached.Load() == n })
	})
	poll(t, "no mount counted", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held.Lock()
		defer l.held.Unlock()
		return l.held.mounts == 0 && len(l.mu.conns.all) == 0
	})
}

// TestSocketRemoved shows that an owner of which the socket is removed, alone or with its directory, makes it
// again, that no other owner gets in meanwhile, and that a mount that it has stays.
func TestSocketRemoved(t *testing.T) {
	o := &owner{}
	_, path := serve(t, o, Options{})
	line := attach(t, path, "/mnt/a")
	for _, remove := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		must(t, remove())
		poll(t, "the socket is there again", func() bool {
			c, err := Dial(t.Context(), path)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		if other, err := Listen(Options{Path: path, lockTime: time.Millisecond}); !errors.Is(err, ErrServing) {
			t.Errorf("another owner: %v, %v", other, err)
		}
	}
	select {
	case <-line.Ended():
		t.Error("the mount was let go of")
	default:
	}
}

// TestOwnerStops shows that Close lets go of every mount before its line ends, and that the
// next owner takes the same place (B1).
func TestOwnerStops(t *testing.T) {
	o := &owner{}
	l, path := serve(t, o, Options{})
	line := attach(t, path, "/mnt/a")
	defer line.Close()
	must(t, l.Close())
	if o.detached.Load() != 1 {
		t.Error("Close returned before the mount was let go of")
	}
	wait(t, "the line ends", line.Ended())
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoOwner) {
		t.Errorf("dial: %v", err)
	}
	serve(t, &owner{}, Options{Path: path})
	attach(t, path, "/mnt/a").Close()
}

// TestGreetsWhenServing shows that an early connection is served as soon as the owner can
// serve, and gets no greeting before.
func TestGreetsWhenServing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvfs", "s")
	l, err := Listen(Options{Path: path})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	early := make(chan error, 1)
	go func() { // ends with ctx
		_, err := Dial(ctx, path)
		early <- err
	}()
	cancel()
	if err := <-early; !errors.Is(err, context.Canceled) {
		t.Errorf("dial: %v", err)
	}
	late := make(chan error, 1)
	go func() { // ends when the owner serves
		c, err := Dial(t.Context(), path)
		if err == nil {
			c.Close()
		}
		late <- err
	}()
	go l.Serve(&owner{}) // ends with Close
	check(t, <-late)
	check(t, l.Close())
}

// TestRefusals shows what an owner refuses and what the mount is told; no descriptor stays.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Request)
		refuse error
		want   string
	}{
		{"by the handler", func(*Request) {}, errors.New("no room here"), "no room here"},
		{"relative", func(r *Request) { r.Dir = "mnt" }, nil, "dir is no absolute path"},
		{"long path", func(r *Request) { r.Dir = "/" + strings.Repeat("x", maxPath) }, nil, "dir is no absolute path"},
		{"long name", func(r *Request) { r.FSName = strings.Repeat("x", maxName+1) }, nil, "fs_name is longer than 255"},
		{"no epoch", func(r *Request) { r.Epoch = 0 }, nil, "epoch 0 is out of range"},
		{"large epoch", func(r *Request) { r.Epoch = device.MaxEpoch + 1 }, nil, "epoch 1048576 is out of range"},
		{"long init", func(r *Request) { r.Init = make([]byte, maxInit+1) }, nil, "init is longer than 4096"},
		{"negative time", func(r *Request) { r.EntryTimeout = -1 }, nil, "a time or size is out of range"},
		{"large write", func(r *Request) { r.MaxWrite = 1<<30 + 1 }, nil, "a time or size is out of range"},
		{"long word", func(r *Request) { r.Release = strings.Repeat("x", 256) }, nil, "a word is longer"},
		{"no descriptor", func(r *Request) { r.Dev.Close(); r.Dev = nil }, nil, `no descriptor "dev"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &owner{refuse: c.refuse}
			_, path := serve(t, o, Options{})
			steady(t, func() {
				r := request(t, "/mnt/a")
				c.change(r)
				defer r.Close()
				_, err := dial(t, path).Attach(t.Context(), r)
				if !errors.Is(err, ErrRefused) || !strings.Contains(fmt.Sprint(err), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestTooManyMounts shows that the number of mounts has an end.
func TestTooManyMounts(t *testing.T) {
	l, path := serve(t, &owner{}, Options{})
	l.held.Lock()
	l.held.mounts = MaxMounts
	l.held.Unlock()
	r := request(t, "/mnt/a")
	defer r.Close()
	if _, err := dial(t, path).Attach(t.Context(), r); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	l.leave()
	attach(t, path, "/mnt/b").Close()
}

// TestStatus shows that the document comes whole, also a long one, and what happens to one
// that is too long.
func TestStatus(t *testing.T) {
	for _, n := range []int{2, maxMessage, maxStatus} {
		o := &owner{status: []byte(strings.Repeat("s", n))}
		_, path := serve(t, o, Options{})
		steady(t, func() {
			text, err := dial(t, path).Status(t.Context())
			if err != nil || string(text) != string(o.status) {
				t.Errorf("%d bytes: got %d, %v", n, len(text), err)
			}
		})
	}
	_, path := serve(t, &owner{status: make([]byte, maxStatus+1)}, Options{})
	text, err := dial(t, path).Status(t.Context())
	if err == nil && !strings.Contains(string(text), "is the limit") {
		t.Errorf("a document that is too long: %d bytes", len(text))
	}
}

// TestStranger shows that another user is refused, with one line in the log, whatever the
// modes are (B30).
func TestStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	core, logs := observer.New(zapcore.InfoLevel)
	_, path := serve(t, &owner{}, Options{Logger: zap.New(core)})
	// As if an administrator had opened the place.
	for name, mode := range map[string]os.FileMode{path: 0o666, filepath.Dir(path): 0o755, filepath.Dir(filepath.Dir(path)): 0o755} {
		must(t, os.Chmod(name, mode))
	}
	for dir := filepath.Dir(path); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	got, ended := make(chan error, 1), make(chan struct{})
	go func() { // ends with its thread, which is no use to others any more
		defer close(ended)
		runtime.LockOSThread()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			got <- err
			return
		}
		defer unix.Close(fd)
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			got <- errno
			return
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			got <- err
			return
		}
		buf := make([]byte, 4096)
		n := 0
		for n < len(buf) {
			m, err := unix.Read(fd, buf[n:])
			if err != nil || m == 0 {
				break
			}
			n += m
		}
		got <- fmt.Errorf("%w: %s", ErrRefused, buf[:n])
	}()
	err := <-got
	<-ended
	if !errors.Is(err, ErrRefused) || !strings.Contains(fmt.Sprint(err), "neither root nor the same user: uid 65534") {
		t.Errorf("the stranger got %v", err)
	}
	if n := logs.Len(); n != 1 {
		t.Errorf("%d lines in the log, want 1: %v", n, logs.All())
	}
}

// TestForeignOwner shows that a mount does not talk to an owner of another user (B30).
func TestForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir := t.TempDir()
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	must(t, os.Chmod(dir, 0o777))
	path := filepath.Join(dir, "s")
	listening := make(chan error, 1)
	over, ended := make(chan struct{}), make(chan struct{})
	defer func() { close(over); <-ended }()
	go func() { // ends with the test, and its thread with it
		defer close(ended)
		runtime.LockOSThread()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				err = errno
			}
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		listening <- err
		<-over
	}()
	must(t, <-listening)
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrStranger) {
		t.Errorf("got %v", err)
	}
}

// check reports an error, and lets the test go on.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
