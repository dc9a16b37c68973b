package fs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/index"
)

// thread starts a thread that ends soon after stop. It is not the first thread of
// the process, which the runtime does not let go.
func thread(t *testing.T) (tid uint32, stop func()) {
	t.Helper()
	ready, quit := make(chan uint32), make(chan struct{})
	for {
		go func() { // ends with stop, and its thread with it, because it stays locked
			runtime.LockOSThread()
			ready <- uint32(unix.Gettid())
			<-quit
		}()
		if tid = <-ready; tid != uint32(os.Getpid()) {
			return tid, sync.OnceFunc(func() { close(quit) })
		}
	}
}

// sleeper starts another process that lives until its input is closed.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	if err := cmd.Start(); err != nil {
		t.Skipf("no cat: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := in.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it runs by now
		t.Fatal(err)
	}
	return cmd
}

// views are ways to see the processes that run here: our own, and one that another process may have
// passed on.
func views() map[string]*procfs {
	return map[string]*procfs{"ours": ourProc(), "theirs": {root: "/proc"}}
}

// TestProcessOf shows that every thread is known by its process, whichever asks first and how often, and
// that what is remembered of a number does not outlive the thread that had it.
func TestProcessOf(t *testing.T) {
	for name, p := range views() {
		self := uint32(os.Getpid())
		a, stopA := thread(t)
		defer stopA()
		b, stopB := thread(t)
		defer stopB()
		child := uint32(sleeper(t).Process.Pid)
		for range 2 {
			for _, c := range []struct {
				name      string
				tid, want uint32
			}{
				{"first thread", self, self}, {"thread", a, self}, {"other thread", b, self}, {"child", child, child},
				{"nobody", 0, 0}, {"number out of range", 1<<32 - 1, 0},
			} {
				if got := p.of(c.tid); got != c.want {
					t.Errorf("%s: %s is of process %d, want %d", name, c.name, got, c.want)
				}
			}
		}
		for _, c := range []struct {
			pid, tid uint32
			want     bool
		}{{self, self, true}, {self, a, true}, {child, child, true}, {self, child, false}, {child, a, false}, {0, a, false}} {
			if got := p.has(c.pid, c.tid); got != c.want {
				t.Errorf("%s: process %d has thread %d: %v, want %v", name, c.pid, c.tid, got, c.want)
			}
		}
		p.mu.pids[child] = self // as if the number had been that of a thread of ours
		if got := p.of(child); got != child {
			t.Errorf("%s: a number that another process has now is of process %d, want %d", name, got, child)
		}
		stopB()
		waitFor(t, func() string { // the kernel reaps it after the goroutine's return
			if unix.Tgkill(os.Getpid(), int(b), 0) != unix.ESRCH {
				return "the thread did not end"
			}
			return ""
		})
		if got := p.of(b); got != 0 {
			t.Errorf("%s: a thread that has ended is of process %d", name, got)
		}
		for tid := range uint32(maxPids) {
			p.mu.pids[1<<30+tid] = self
		}
		delete(p.mu.pids, a)
		if p.of(a); len(p.mu.pids) > maxPids {
			t.Errorf("%s: %d threads are remembered, want %d at most", name, len(p.mu.pids), maxPids)
		}
	}
}

// TestProcessAlive shows that a process is alive until the last of its threads has ended, though its
// first one may have ended long ago, and not until its parent waits for it; and that one which cannot be
// seen is not taken for dead.
func TestProcessAlive(t *testing.T) {
	c := startClient(t)
	child := sleeper(t)
	pid := uint32(child.Process.Pid)
	c.begin("end-first-thread", "")
	waitStatus(t, c.pid, "\nState:\tZ")
	for name, p := range views() {
		for who, pid := range map[string]uint32{"this process": uint32(os.Getpid()), "a child": pid, "one without its first thread": c.pid, "one that cannot be seen": 0} {
			if !p.alive(pid) {
				t.Errorf("%s: %s is not alive", name, who)
			}
		}
		if p.alive(1<<32 - 1) {
			t.Errorf("%s: a number out of range is alive", name)
		}
	}
	c.do("stat", "/")
	must(t, child.Process.Kill())
	waitStatus(t, pid, "\nState:\tZ")
	for name, p := range views() {
		if p.alive(pid) {
			t.Errorf("%s: a process that nobody has waited for yet is alive", name)
		}
		if got := p.of(pid); got != pid {
			t.Errorf("%s: it is of process %d, want %d", name, got, pid)
		}
	}
	child.Wait()
	for name, p := range views() {
		if p.alive(pid) {
			t.Errorf("%s: a process that has ended is alive", name)
		}
	}
	for _, err := range []error{unix.ENOENT, unix.ESRCH} { // the second comes between two steps of a look-up
		if !ended(&os.PathError{Op: "readdirent", Path: "/proc/1/task", Err: err}) {
			t.Errorf("a process of which /proc says %v has not ended", err)
		}
	}
}

// waitStatus waits until the status of a process has a line, which is no event for us.
func waitStatus(t *testing.T, pid uint32, line string) {
	t.Helper()
	waitFor(t, func() string {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || strings.Contains(string(status), line) {
			return ""
		}
		return fmt.Sprintf("no line %q in\n%s", line, status)
	})
}

// TestKilledBySignal shows that a live process is not taken for a killed one,
// nor one that ends by itself, whatever its code, and that one that a signal
// ended is recognised while the kernel still knows it.
func TestKilledBySignal(t *testing.T) {
	for _, tid := range []uint32{uint32(os.Getpid()), uint32(unix.Gettid()), uint32(sleeper(t).Process.Pid), 0} {
		if ourProc().killed(tid) {
			t.Errorf("live process or none, %d: killed", tid)
		}
	}
	for _, c := range []struct {
		name, script string
		want         bool
	}{
		{"exit 0", "exit 0", false},
		{"exit 9", "exit 9", false},
		{"exit 137, as a shell reports a kill", "exit 137", false},
		{"SIGKILL", "kill -9 $$", true},
		{"SIGTERM", "kill -15 $$", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script)
			if err := cmd.Start(); err != nil {
				t.Skipf("no sh: %v", err)
			}
			defer cmd.Wait()
			pid := cmd.Process.Pid
			// Leave it a zombie: its state can still be read.
			var info unix.Siginfo
			err := error(unix.EINTR)
			for errors.Is(err, unix.EINTR) {
				err = unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
			}
			must(t, err)
			if got := ourProc().killed(uint32(pid)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestCloser shows that StillOpen finds another descriptor to write the inode by, a
// duplicate or a second open, until the last is closed, and none that only reads, and that a live process
// is not killed.
func TestCloser(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "a"))
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	id := index.ID(st.Ino)
	if uint64(id) != st.Ino {
		t.Skipf("inode %d has more than 32 bits", st.Ino)
	}
	tid, stop := thread(t)
	defer stop()
	of := &files{procs: ourProc()}
	for _, c := range []closer{{of, uint32(os.Getpid())}, {of, tid}} {
		if !c.StillOpen(id) {
			t.Skip("fdinfo does not tell the inode: Linux before 5.14")
		}
		if c.Killed() {
			t.Error("a live process is killed")
		}
	}
	c := closer{of, tid}
	dup, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	again, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	must(t, err)
	reader, err := os.Open(f.Name())
	must(t, err)
	defer reader.Close()
	f.Close()
	if !c.StillOpen(id) {
		t.Error("two descriptors: not found")
	}
	again.Close()
	if !c.StillOpen(id) {
		t.Error("the duplicate: not found")
	}
	unix.Close(dup)
	if c.StillOpen(id) {
		t.Error("all but one to read are closed: still found")
	}
	if child := (closer{of, uint32(sleeper(t).Process.Pid)}); child.StillOpen(id) {
		t.Error("a process that never had it open has it")
	}
	if (closer{of, 0}).StillOpen(id) {
		t.Error("no process has it open")
	}
}
