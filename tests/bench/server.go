package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startLimit also allows for adopting a million blocks, stopLimit for freeing them.
	startLimit = 5 * time.Minute
	stopLimit  = 2 * time.Minute
)

// server is a FUSE daemon in a child process: kvfs or the loopback.
//
// The server reports that it is ready by a line on descriptor 3. It ends at SIGTERM, and gets SIGTERM too when this
// program dies. Start and crash, and stop if adopts is set, must be called from the main goroutine, which is locked to
// the main thread: the kernel sends that last SIGTERM when the thread that started the child ends.
type server struct {
	argv  []string
	mount string
	// adopts: a start after a crash finds the blocks of the previous daemon, so their memory is free only after such a
	// start and a clean stop.
	adopts bool

	process  atomic.Pointer[os.Process] // nil while not started
	exited   chan struct{}              // closed after Wait
	exitErr  error                      // valid once exited is closed
	stderr   *tail
	wasReady bool
}

// start returns when the daemon is ready. After an error it is not running.
func (s *server) start(ctx context.Context) error { return start(ctx, s) }

// launch starts the daemon. The caller must call finish with the result.
func (s *server) launch(ctx context.Context) (ready *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	s.stderr = &tail{}
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	// Clients that hang in a daemon without an answer return when it is dead.
	cmd.Cancel = func() error { time.AfterFunc(stopLimit/4, func() { s.signal(syscall.SIGKILL) }); return nil }
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stdout, cmd.Stderr = s.stderr, s.stderr
	cmd.Env = plainEnv()
	// Its own process group: this program handles ^C, then stops the daemon.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	s.process.Store(cmd.Process)
	s.exited = make(chan struct{})
	go func() { // Ends with the child, which stop and crash wait for.
		if s.exitErr = cmd.Wait(); cmd.ProcessState.Success() {
			s.exitErr = nil // also at the end of ctx
		}
		close(s.exited)
	}()
	return r, nil
}

// finish returns when the launched daemon is ready: at the first line, or at the end of the pipe.
func (s *server) finish(ctx context.Context, ready *os.File) error {
	defer ready.Close()
	defer context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })()
	err := ready.SetReadDeadline(time.Now().Add(startLimit))
	if err == nil {
		_, err = bufio.NewReader(ready).ReadString('\n')
	}
	if err != nil {
		s.crash()
		detach(s.mount)
		return fmt.Errorf("%s: not ready: %w%s", strings.Join(s.argv, " "), errors.Join(err, context.Cause(ctx)), s.stderr.quote())
	}
	s.wasReady = true
	return nil
}

// stop ends the daemon and leaves no mount and, if possible, no memory behind. It may be called again.
func (s *server) stop() error {
	if !s.wasReady {
		return nil // Never started, or stopped before.
	}
	clean := false // after crash, if nothing was started since
	var err error
	if s.process.Load() != nil {
		clean, err = s.end()
	}
	detach(s.mount)
	if !clean && s.adopts { // another start and a clean stop free what a killed one has left
		if startErr := s.start(context.Background()); startErr != nil {
			err = errors.Join(err, fmt.Errorf("blocks of a killed daemon may still be in memory, see 'kvfs doctor --clean': %w", startErr))
		} else {
			_, endErr := s.end()
			err = errors.Join(err, endErr)
			detach(s.mount)
		}
	}
	s.wasReady = false
	return err
}

// end asks, then kills. It is clean if the daemon ended at the request.
func (s *server) end() (clean bool, err error) {
	s.signal(syscall.SIGTERM)
	select {
	case <-s.exited:
		err = s.exitErr
	case <-time.After(stopLimit):
		err = fmt.Errorf("still running %v after SIGTERM", stopLimit)
	}
	s.crash()
	if err != nil {
		err = fmt.Errorf("%s: %w%s", s.argv[0], err, s.stderr.quote())
	}
	return err == nil, err
}

// crash kills the daemon without warning and waits until it is gone.
func (s *server) crash() {
	s.signal(syscall.SIGKILL)
	<-s.exited
	s.process.Store(nil)
}

// signal may be called from any goroutine while the daemon is started.
func (s *server) signal(sig syscall.Signal) {
	if p := s.process.Load(); p != nil {
		p.Signal(sig) // fails if it has ended, which s.exited shows
	}
}

// cpuTime returns the processor time that the daemon has used.
func (s *server) cpuTime() time.Duration {
	process := s.process.Load()
	if process == nil {
		must(os.ErrProcessDone)
	}
	return cpuTimeOf(process.Pid)
}

func cpuTimeOf(pid int) time.Duration {
	const schedulerClock = 2 // CPUCLOCK_SCHED of the kernel, of a process: see clock_getcpuclockid(3)
	var ts unix.Timespec
	must(unix.ClockGettime(int32(^pid<<3|schedulerClock), &ts))
	return time.Duration(ts.Nano())
}

// awaitIdle waits until the daemon has used almost no processor time for a while, or until the limit.
func (s *server) awaitIdle(ctx context.Context) {
	const rest, limit = 50 * time.Millisecond, 5 * time.Second
	last := s.cpuTime()
	for begin := time.Now(); time.Since(begin) < limit; {
		must(pause(ctx, rest))
		now := s.cpuTime()
		if now-last < rest/10 {
			return
		}
		last = now
	}
}

// plainEnv is the environment without settings that would change a daemon.
func plainEnv() []string {
	var out []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KVFS_") && !strings.HasPrefix(v, "MOONCAKE_") {
			out = append(out, v)
		}
	}
	return out
}

// detach removes the mount at dir if there is one.
func detach(dir string) {
	if err := unix.Unmount(dir, unix.MNT_DETACH); errors.Is(err, unix.EPERM) {
		exec.Command("fusermount3", "-u", "-z", dir).Run() // Fails if nothing is mounted.
	}
}

// tail keeps the last bytes that a child printed.
type tail struct {
	mu struct {
		sync.Mutex
		last []byte
	}
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const keepBytes = 4 << 10
	t.mu.last = append(t.mu.last, p...)
	t.mu.last = t.mu.last[max(0, len(t.mu.last)-keepBytes):]
	return len(p), nil
}

func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.last) == 0 {
		return ""
	}
	return "\n" + strings.TrimSpace(string(t.mu.last))
}
