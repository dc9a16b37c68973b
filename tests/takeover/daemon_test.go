package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// site is a mount point, and what its daemons share.
type site struct {
	dir    string
	memory string
	base   string
	flags  []string // of each daemon
	work   string   // directory in which daemons start; empty: that of the test
	logs   string   // file for the log of the next daemon; empty: one beside the mount

	tb      testing.TB
	daemons []*daemon
}

// daemon is one process of kvfs mount.
type daemon struct {
	pid    int
	code   int // once it has exited; -1 if by a signal
	log    string
	exited chan struct{}
	ready  chan bool // gets whether it said that it is ready
	tb     testing.TB
}

// newSite makes the directories. All of it is gone when the test ends.
func newSite(tb testing.TB, flags ...string) *site {
	tb.Helper()
	harness.KvfsOnly(tb, "no daemon to replace")
	harness.NeedFuse(tb)
	if os.Geteuid() != 0 {
		harness.Skip(tb, "needs root, to mount without fusermount3")
	}
	base, err := harness.ProcessDir("takeover")
	must(tb, err)
	memory, err := harness.MemoryDir("takeover")
	must(tb, err)
	s := &site{tb: tb, base: base, dir: filepath.Join(base, "mnt"), memory: memory}
	must(tb, os.Mkdir(s.dir, 0o755))
	s.flags = append([]string{"--memory-size", "128MiB", "--memory-dir", memory}, flags...)
	tb.Cleanup(s.clean)
	return s
}

func (s *site) clean() {
	if s.tb.Failed() { // a client may still wait for an answer
		unix.Unmount(s.dir, unix.MNT_FORCE|unix.MNT_DETACH)
	}
	for _, d := range s.daemons {
		if d.running() {
			unix.Kill(d.pid, unix.SIGCONT)
			d.stop()
		}
		log := d.text()
		if s.tb.Failed() {
			s.tb.Logf("log of process %d:\n%s", d.pid, log)
		} else if strings.Contains(log, "panic: ") || strings.Contains(log, "DATA RACE") {
			s.tb.Errorf("log of process %d:\n%s", d.pid, log)
		}
	}
	for _, point := range append(harness.MountPoints(s.dir), harness.MountPoints(s.memory)...) { // of one that was killed
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			s.tb.Error(err)
		}
	}
	if err := errors.Join(os.RemoveAll(s.memory), os.RemoveAll(s.base)); err != nil {
		s.tb.Error(err)
	}
}

// mount starts the first daemon and waits until it is ready.
func (s *site) mount() *daemon {
	s.tb.Helper()
	d := s.begin(nil)
	d.wait(s.tb)
	return d
}

// takeover starts a daemon that takes the mount over, waits until it is ready and the one before has
// ended.
func (s *site) takeover(flags ...string) *daemon {
	s.tb.Helper()
	old := s.daemons[len(s.daemons)-1]
	d := s.begin(nil, append([]string{"--takeover"}, flags...)...)
	d.wait(s.tb)
	old.end()
	if old.code != 0 {
		s.tb.Errorf("the daemon before ended with %d", old.code)
	}
	return d
}

// refused starts a daemon that has to end by itself, and returns its exit code and its output.
func (s *site) refused(flags ...string) (int, string) {
	s.tb.Helper()
	d := s.begin(nil, append([]string{"--takeover"}, flags...)...)
	if <-d.ready {
		s.tb.Errorf("kvfs mount --takeover %q got ready", flags)
		return 0, ""
	}
	d.end()
	return d.code, d.text()
}

// begin starts a daemon.
func (s *site) begin(env []string, flags ...string) *daemon {
	s.tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	name := filepath.Join(s.base, fmt.Sprint("log", len(s.daemons)))
	if s.logs != "" {
		name = s.logs
	}
	log, err := os.Create(name)
	if err != nil {
		s.tb.Fatal(err)
	}
	args := append(append([]string{"mount", "--ready-fd", "3"}, s.flags...), append(flags, s.dir)...)
	cmd := exec.Command(harness.Binary(s.tb), args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.Dir = s.work
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	w.Close()
	log.Close()
	if err != nil {
		s.tb.Fatal(err)
	}
	d := &daemon{pid: cmd.Process.Pid, log: name, exited: make(chan struct{}), ready: make(chan bool, 1), tb: s.tb}
	s.daemons = append(s.daemons, d)
	go func() { // ends when the daemon is ready, or has ended
		line := make([]byte, 4096)
		n, _ := r.Read(line)
		r.Close()
		d.ready <- string(line[:n]) == "ready "+s.dir+"\n"
	}()
	go func() { // ends with the daemon
		cmd.Wait()
		d.code = cmd.ProcessState.ExitCode()
		close(d.exited)
	}()
	return d
}

// wait waits until the daemon is ready.
func (d *daemon) wait(tb testing.TB) {
	tb.Helper()
	select {
	case ok := <-d.ready:
		if !ok {
			d.end()
			tb.Fatalf("not ready: exit code %d\n%s", d.code, d.text())
		}
	case <-time.After(harness.Deadline):
		unix.Kill(d.pid, unix.SIGQUIT) // for the goroutines in the log
		d.end()
		tb.Fatalf("not ready after %v\n%s", harness.Deadline, d.text())
	}
}

func (d *daemon) running() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// end waits until the daemon has ended.
func (d *daemon) end() {
	d.tb.Helper()
	select {
	case <-d.exited:
		return
	case <-time.After(harness.Deadline):
	}
	unix.Kill(d.pid, unix.SIGQUIT)
	<-d.exited
	d.tb.Errorf("process %d did not end within %v\n%s", d.pid, harness.Deadline, d.text())
}

// stop asks the daemon to end and returns its exit code.
func (d *daemon) stop() int {
	d.tb.Helper()
	unix.Kill(d.pid, unix.SIGTERM)
	d.end()
	return d.code
}

func (d *daemon) kill() {
	unix.Kill(d.pid, unix.SIGKILL)
	<-d.exited
}

func (d *daemon) text() string {
	text, _ := os.ReadFile(d.log)
	return string(text)
}

// says waits until the log has a text.
func (d *daemon) says(want string) {
	d.tb.Helper()
	harness.Poll(d.tb, want, func() bool { return strings.Contains(d.text(), want) })
}

func (s *site) status() harness.Status {
	s.tb.Helper()
	return harness.StatusOf(s.tb, s.dir)
}

// answeredBy fails the test unless the mount is answered by d.
func (s *site) answeredBy(d *daemon) {
	s.tb.Helper()
	if st := s.status(); st.PID != d.pid || st.Mount.PID != d.pid {
		s.tb.Errorf("process %d answers, want %d: %+v", st.PID, d.pid, st)
	}
}

// markedBy fails the test unless the mark of the mount names d.
func (s *site) markedBy(d *daemon) {
	s.tb.Helper()
	files, err := filepath.Glob("/run/kvfs/0/mount-*.mark")
	must(s.tb, err)
	for _, name := range files {
		text, _ := os.ReadFile(name) // that of another mount may go
		pid, rest, _ := strings.Cut(string(text), " ")
		if !strings.HasSuffix(rest, fmt.Sprintf(" %q\n", s.dir)) {
			continue
		}
		if pid != fmt.Sprint(d.pid) {
			s.tb.Errorf("the mark of the mount is of process %s, want %d", pid, d.pid)
		}
		return
	}
	s.tb.Errorf("no mark of %s", s.dir)
}

// block returns the bytes of block i.
func block(i int) []byte {
	b := make([]byte, 64<<10)
	for j := range b {
		b[j] = byte(i*31 + j + j>>8)
	}
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

func (s *site) path(i int) string { return filepath.Join(s.dir, "g", fmt.Sprintf("%04d", i)) }

// write commits blocks as an engine does: a temporary file, then rename.
func (s *site) write(from, to int) {
	s.tb.Helper()
	if err := os.MkdirAll(filepath.Join(s.dir, "g"), 0o755); err != nil {
		s.tb.Fatal(err)
	}
	for i := from; i < to; i++ {
		if err := put(s.path(i), i); err != nil {
			s.tb.Fatal(err)
		}
	}
}

func put(name string, i int) error {
	if err := os.WriteFile(name+".tmp", block(i), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".tmp", name)
}

// check reads blocks.
func (s *site) check(from, to int) {
	s.tb.Helper()
	for i := from; i < to; i++ {
		got, err := os.ReadFile(s.path(i))
		if err != nil {
			s.tb.Errorf("block %d: %v", i, err)
		} else if string(got) != string(block(i)) {
			s.tb.Errorf("block %d: wrong bytes", i)
		}
	}
}
