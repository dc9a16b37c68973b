package fs

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

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
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
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

// TestSameProcess shows that threads of one process know each other in both
// directions, and nobody else.
func TestSameProcess(t *testing.T) {
	self := uint32(os.Getpid())
	a, stopA := thread(t)
	defer stopA()
	b, stopB := thread(t)
	defer stopB()
	child := uint32(sleeper(t).Process.Pid)
	for _, c := range []struct {
		name string
		a, b uint32
		want bool
	}{
		{"itself", a, a, true},
		{"leader and thread", self, a, true},
		{"thread and leader", a, self, true},
		{"two threads", a, b, true},
		{"child", self, child, false},
		{"parent", child, self, false},
		{"thread and child", a, child, false},
		{"child itself", child, child, true},
		{"nobody", self, 0, false},
		{"of nobody", 0, self, false},
		{"number out of range", self, 1<<32 - 1, false},
	} {
		if got := ourProc.same(c.a, c.b); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	stopB()
	waitThreadGone(t, b)
	if ourProc.same(self, b) {
		t.Error("a thread that has ended is of our process")
	}
	if !ourProc.same(b, b) {
		t.Error("a number is not of its own process")
	}
}

// waitThreadGone waits until the kernel has reaped a thread whose goroutine has
// returned, which is no event for us.
func waitThreadGone(t *testing.T, tid uint32) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for unix.Tgkill(os.Getpid(), int(tid), 0) != unix.ESRCH {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the thread did not end")
		}
	}
}

// TestKilledBySignal shows that a live process is not taken for a killed one,
// nor one that ends by itself, whatever its code, and that one that a signal
// ended is recognised while the kernel still knows it.
func TestKilledBySignal(t *testing.T) {
	for _, tid := range []uint32{uint32(os.Getpid()), uint32(unix.Gettid()), uint32(sleeper(t).Process.Pid), 0} {
		if ourProc.killed(tid) {
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
			if err != nil {
				t.Fatal(err)
			}
			if got := ourProc.killed(uint32(pid)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestCloser shows that StillOpen finds another descriptor of the inode, a
// duplicate or a second open, until the last is closed, and that a live process
// is not killed.
func TestCloser(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	id := index.ID(st.Ino)
	if uint64(id) != st.Ino {
		t.Skipf("inode %d has more than 32 bits", st.Ino)
	}
	tid, stop := thread(t)
	defer stop()
	s := &Server{procs: ourProc}
	for _, c := range []closer{{s, uint32(os.Getpid())}, {s, tid}} {
		if !c.StillOpen(id) {
			t.Skip("fdinfo does not tell the inode: Linux before 5.14")
		}
		if c.Killed() {
			t.Error("a live process is killed")
		}
	}
	c := closer{s, tid}
	dup, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
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
		t.Error("all closed: still found")
	}
	if child := (closer{s, uint32(sleeper(t).Process.Pid)}); child.StillOpen(id) {
		t.Error("a process that never had it open has it")
	}
	if (closer{s, 0}).StillOpen(id) {
		t.Error("no process has it open")
	}
}
