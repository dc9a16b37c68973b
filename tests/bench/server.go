package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
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
// The server reports that it is ready by a line on descriptor 3. It ends at SIGTERM, and gets
// SIGTERM too when this program dies. Start and crash, and stop if adopts is set, must be called from
// the main goroutine, which is locked to the main thread: the kernel sends that last SIGTERM when the
// thread that started the child ends.
type server struct {
	argv    []string
	mount   string
	verbose bool
	// adopts: a start after a crash finds the blocks of the previous daemon, so their memory is
	// free only after such a start and a clean stop.
	adopts bool

	process  atomic.Pointer[os.Process] // nil while not started
	exited   chan struct{}              // closed after Wait
	exitErr  error                      // valid once exited is closed
	stderr   *tail
	wasReady bool
}

// start returns when the daemon is ready. After an error it is not running.
func (s *server) start(ctx context.Context) error {
	ready, err := s.launch()
	if err != nil {
		return err
	}
	return s.finish(ctx, ready)
}

// launch starts the daemon. The caller must call finish with the result.
func (s *server) launch() (ready *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.stderr = &tail{echo: s.verbose}
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stdout, cmd.Stderr = s.stderr, s.stderr
	cmd.Env = plainEnv()
	// Its own process group: this program handles ^C, then stops the daemon.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	s.process.Store(cmd.Process)
	s.exited = make(chan struct{})
	go func() { // Ends with the child, which stop and crash wait for.
		s.exitErr = cmd.Wait()
		close(s.exited)
	}()
	return r, nil
}

// finish returns when the launched daemon is ready. After an error it is not running.
func (s *server) finish(ctx context.Context, ready *os.File) error {
	defer ready.Close()
	if err := s.waitReady(ctx, ready); err != nil {
		s.signal(syscall.SIGKILL)
		<-s.exited
		s.process.Store(nil)
		detach(s.mount)
		return fmt.Errorf("%s: %w%s", strings.Join(s.argv, " "), err, s.stderr.quote())
	}
	s.wasReady = true
	return nil
}

func (s *server) waitReady(ctx context.Context, r *os.File) error {
	line := make(chan error, 1)
	go func() { // Ends when the pipe closes, at the latest in start.
		_, err := bufio.NewReader(r).ReadString('\n')
		line <- err
	}()
	select {
	case err := <-line:
		if err != nil {
			return errors.New("ended, or closed descriptor 3, without the line that says it is ready")
		}
		return nil
	case <-time.After(startLimit):
		return fmt.Errorf("not ready after %v", startLimit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends the daemon and leaves no mount and, if possible, no memory behind. It may be called
// again.
func (s *server) stop() error {
	if !s.wasReady {
		return nil // Never started, or stopped before.
	}
	clean := false // after crash, if nothing was started since
	var err error
	if s.process.Load() != nil {
		clean, err = s.end()
		s.process.Store(nil)
	}
	detach(s.mount)
	if !clean && s.adopts {
		err = errors.Join(err, s.reclaim())
	}
	s.wasReady = false
	return err
}

// end asks, then kills. It is clean if the daemon ended at the request.
func (s *server) end() (clean bool, err error) {
	s.signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(stopLimit):
		s.signal(syscall.SIGKILL)
		<-s.exited
		return false, fmt.Errorf("%s: killed, still running %v after SIGTERM", s.argv[0], stopLimit)
	}
	if s.exitErr != nil {
		return false, fmt.Errorf("%s: %w%s", s.argv[0], s.exitErr, s.stderr.quote())
	}
	return true, nil
}

// reclaim starts the daemon once more and stops it cleanly, which frees the memory that its killed
// predecessor left.
func (s *server) reclaim() error {
	if err := s.start(context.Background()); err != nil {
		return fmt.Errorf("blocks of a killed daemon may still be in memory, "+
			"see 'kvfs doctor --clean': %w", err)
	}
	_, err := s.end()
	s.process.Store(nil)
	detach(s.mount)
	return err
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

// stat returns the fields of /proc/PID/stat after the command in parentheses, which may have spaces: state is the first one.
func (s *server) stat() ([]string, error) {
	process := s.process.Load()
	if process == nil {
		return nil, os.ErrProcessDone
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.Pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 22 {
		return nil, fmt.Errorf("/proc/PID/stat: %d fields", len(fields))
	}
	return fields, nil
}

// cpu returns the processor time, user and system, that the daemon has used.
func (s *server) cpu() (time.Duration, error) {
	fields, err := s.stat()
	if err != nil {
		return 0, err
	}
	// utime and stime, in ticks of 1/100 s (proc(5)).
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// awaitIdle waits until the daemon has used no processor time for a while, or until the limit.
func (s *server) awaitIdle(ctx context.Context) error {
	const rest, limit = 50 * time.Millisecond, 5 * time.Second
	last, err := s.cpu()
	for begin := time.Now(); err == nil && time.Since(begin) < limit; {
		if err := pause(ctx, rest); err != nil {
			return err
		}
		var now time.Duration
		now, err = s.cpu()
		if now == last {
			break
		}
		last = now
	}
	return err
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
	echo bool
	mu   struct {
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
	if t.echo {
		os.Stderr.Write(p)
	}
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
