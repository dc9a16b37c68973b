package daemon

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/fs/device"
)

// A daemon that is killed while it sends a notice to the kernel may not end. Its notifying thread waits for a directory that
// a client holds, and nobody reads that client's request any more (fs/device/isolate.go). So each process with a mount has a
// watcher, a small child. When the daemon has ended in any way and no other process holds the mark of the mount, the watcher
// makes the kernel abort the connection. In a takeover two processes have the mark and a watcher: the new one from before it
// gets the mount, the old one until the new one answers. Then the old watcher is told to leave.
//
// If the watcher was killed, too, the next kvfs mount or kvfs umount recovers the mount: the
// mark shows that no process serves it.

// watchCommand is the argument that makes this program a watcher. It watches the connection of descriptor 4
// until descriptor 3 says goodbye, or until descriptor 3 ends and no process holds the mark of descriptor 5.
const watchCommand = "watch-mount"

// parentDied is the signal from the kernel to the watcher when the daemon's thread that started
// it has ended. The signal comes even if a stuck thread keeps the daemon's descriptors open.
const parentDied = unix.SIGUSR1

// freeEvery is how often a watcher checks whether a process still holds the mark.
const freeEvery = 100 * time.Millisecond

// Watcher is the life of the watcher process, which was started with the given arguments (os.Args). It returns
// its exit code. In any other process it returns false at once. A program that mounts calls it first.
func Watcher(args []string) (code int, is bool) {
	if len(args) != 2 || args[1] != watchCommand {
		return 0, false
	}
	return watchMount(os.NewFile(3, "goodbye"), os.NewFile(4, "abort"), os.NewFile(5, "mark")), true
}

func watchMount(said, abort, mark *os.File) int {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM) // it ends with the daemon
	died := make(chan os.Signal, 1)
	signal.Notify(died, parentDied)
	spoke := make(chan struct{})
	go func() { // ends with the process
		defer close(spoke)
		heard(said, -1)
	}()
	select {
	case <-spoke:
	case <-died: // earlier words of the daemon are in the pipe
	}
	if heard(said, 0) {
		return exit.OK
	}
	for !handoff.Free(mark) { // no event tells the end of a process with a stuck thread
		time.Sleep(freeEvery)
	}
	mark.Close() // and with it the lock, for which the next process of a mount with this number waits
	if _, err := abort.WriteString("1"); err != nil {
		return exit.Runtime
	}
	return exit.OK
}

// heard waits at most that many milliseconds, for ever with -1, until something is in the pipe
// or its other end is closed. It reports whether something is in the pipe.
func heard(said *os.File, wait int) bool {
	p := []unix.PollFd{{Fd: int32(said.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, wait)
		if err != unix.EINTR {
			return err == nil && p[0].Revents&unix.POLLIN != 0
		}
	}
}

// guard protects the clients of a mount from the death of its process: the watcher, and the
// mark. The zero value is ready, and does nothing.
type guard struct {
	log   *zap.Logger
	mount *mountinfo.Info
	mark  *handoff.Mark
	tell  *os.File      // to the watcher, or nil without one
	ended chan struct{} // closed when the watcher has ended
}

// watch guards the mount at dir. If that fails the mount works all the same while this process lives.
// newMark makes the mark: handoff.JoinMark if another process has the mount, too, else handoff.NewMark.
func (g *guard) watch(dir string, newMark func(path string, id int, point string) (*handoff.Mark, error), log *zap.Logger) {
	g.log = log
	m, err := device.TopMount(dir)
	if err != nil || !mounts.IsOurs(m) {
		log.Warn("the mount is not in the mount table: if this process is killed, its clients may hang", zap.Error(err))
		return
	}
	g.mount = m
	if g.mark, err = newMark(mounts.MarkPath(m), m.ID, m.Mountpoint); err != nil {
		log.Info("no mark for this mount: if it hangs after this process, run umount -f", zap.Error(err))
	}
	if err := g.start(m.Minor); err != nil {
		log.Warn("no watcher: if this process is killed, its clients may hang until somebody unmounts it", zap.Error(err))
	}
}

// serving notes that this process, and no other, serves the mount from now on.
func (g *guard) serving() {
	if err := g.mark.Serving(); err != nil {
		g.log.Warn("the mark of the mount names another process: kvfs umount does not wait for this one", zap.Error(err))
	}
}

// errAborted reports that the connection was aborted while the mount is in the mount table, by
// umount -f or through the kernel's abort file.
var errAborted = errors.New("the connection of the mount was aborted: start kvfs mount again")

// aborted reports whether the mount is still in the mount table although its connection has ended.
func (g *guard) aborted() bool {
	// umount -f aborts the connection before it unmounts.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return g.mount != nil && errors.Is(mounts.WaitGone(ctx, g.mount), context.DeadlineExceeded)
}

// start starts the watcher of the connection of the FUSE device with that minor number.
func (g *guard) start(minor int) error {
	abort, err := device.OpenAbort(minor)
	if err != nil {
		return err
	}
	defer abort.Close()
	said, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	mark := said // nobody locks it: without a mark this process is the only one
	if g.mark != nil {
		if mark, err = g.mark.Open(); err != nil {
			tell.Close()
			return err
		}
		defer mark.Close()
	}
	// The watcher must not keep the connection alive: go-fuse leaves its descriptor of a mount by root to children.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // since Linux 5.11
	cmd := exec.Command("/proc/self/exe", watchCommand)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", []string{"GOMAXPROCS=1"}, []*os.File{said, abort, mark}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: parentDied}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() { // ends with the watcher
		defer close(ended)
		runtime.LockOSThread() // the kernel tells the watcher the end of the thread that started it
		defer runtime.UnlockOSThread()
		err := startBlocked(cmd, parentDied)
		started <- err
		if err != nil {
			return
		}
		if err := cmd.Wait(); err != nil {
			g.log.Warn("the watcher of this mount has ended: if this process is killed, its clients may hang", zap.Error(err))
		}
	}()
	if err := <-started; err != nil {
		tell.Close()
		return err
	}
	g.tell, g.ended = tell, ended
	return nil
}

// startBlocked starts cmd from the calling thread with sig blocked. A signal that comes before
// the child waits for it stays pending, and does not end the child.
func startBlocked(cmd *exec.Cmd, sig unix.Signal) error {
	var set, was unix.Sigset_t
	set.Val[(sig-1)/64] = 1 << ((sig - 1) % 64)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, &was); err != nil {
		return os.NewSyscallError("sigmask", err)
	}
	err := cmd.Start()
	return errors.Join(err, os.NewSyscallError("sigmask", unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)))
}

// leave ends the watcher, because the mount goes on without this process.
func (g *guard) leave() {
	if g.tell == nil {
		return
	}
	_, _ = g.tell.WriteString("g") // the watcher may have been killed
	g.tell.Close()
	<-g.ended
	g.tell = nil
}

// close ends the guard with the mount, or after leave. The watcher ends once no other process has the mark.
func (g *guard) close() {
	if err := g.mark.Close(); err != nil {
		g.log.Warn("remove the mark of the mount", zap.Error(err))
	}
	if g.tell != nil {
		g.tell.Close()
	}
}
