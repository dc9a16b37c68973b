package daemon

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/fs/device"
)

// A daemon that is killed while it notifies the kernel may not end: its notifying thread waits for a
// directory that a client holds, whose request nobody reads any more (fs/device/isolate.go). So each process
// with a mount has a watcher, a small child, which has the kernel give up the connection
// when the daemon has ended, however that was, and no other one holds the mark of the mount. In a takeover two
// do: each has the mark, and a watcher, from before it gets the mount until the other one answers it. Then
// its watcher is told to leave.
//
// A mount whose watcher was killed, too, is recovered by the next kvfs mount, or kvfs umount: they see
// by the mark of the mount that nobody serves it.

// watchCommand is the argument by which this program is a watcher: of the connection of descriptor 4,
// until descriptor 3 says goodbye, or ends and nobody holds the mark of descriptor 5.
const watchCommand = "watch-mount"

// parentDied is the signal that the kernel sends the watcher when the daemon's thread that started it has
// ended. It comes also if a stuck thread keeps the daemon's descriptors open.
const parentDied = unix.SIGUSR1

// freeEvery is how often a watcher looks whether anybody has the mark still.
const freeEvery = 100 * time.Millisecond

// Watcher is the life of a process that a process with a mount has started to watch it, with the given
// arguments (os.Args), and returns its exit code. It returns at once, with false, in every other process.
// A program that mounts calls it first of all.
func Watcher(args []string) (code int, is bool) {
	if len(args) != 2 || args[1] != watchCommand {
		return 0, false
	}
	return watchMount(os.NewFile(3, "goodbye"), os.NewFile(4, "abort"), os.NewFile(5, "mark")), true
}

// watchMount is Watcher with the descriptors that it was given.
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
	case <-died: // what it said before is in the pipe
	}
	if heard(said, 0) {
		return exit.OK
	}
	for !handoff.Free(mark) { // there is no event for the end of a process with a stuck thread
		time.Sleep(freeEvery)
	}
	if _, err := abort.WriteString("1"); err != nil {
		return exit.Runtime
	}
	return exit.OK
}

// heard waits up to that many milliseconds, for ever with -1, until something is in the pipe, or nobody
// has the other end, and reports whether something is.
func heard(said *os.File, wait int) bool {
	p := []unix.PollFd{{Fd: int32(said.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, wait)
		if err != unix.EINTR {
			return err == nil && p[0].Revents&unix.POLLIN != 0
		}
	}
}

// guard is what a process with a mount has others do should it die: the watcher, and the mark. The zero
// value is ready, and does nothing.
type guard struct {
	log   *zap.Logger
	mount *mountinfo.Info
	mark  *handoff.Mark
	tell  *os.File      // to the watcher; nil: there is none
	ended chan struct{} // closed when the watcher has ended
}

// watch has the mount at dir guarded. Without, it is as good as any other while this process lives.
func (g *guard) watch(dir string, log *zap.Logger) {
	g.log = log
	m, err := device.TopMount(dir)
	if err != nil || !mounts.IsOurs(m) {
		log.Warn("the mount is not in the mount table: should this process be killed, its clients may hang", zap.Error(err))
		return
	}
	g.mount = m
	if g.mark, err = handoff.NewMark(mounts.MarkPath(m), m.ID, m.Mountpoint); err != nil {
		log.Info("no mark of this mount: should it be left hanging, umount -f ends it", zap.Error(err))
	}
	if err := g.start(m.Minor); err != nil {
		log.Warn("no watcher: should this process be killed, its clients may hang until the mount is taken away", zap.Error(err))
	}
}

// errAborted: the connection was given up while the mount is in the mount table, by umount -f or by the
// kernel's abort file.
var errAborted = errors.New("the connection of the mount was aborted: start again to mount anew")

// aborted reports whether the mount, of which the connection has ended, stays in the mount table.
func (g *guard) aborted() bool {
	// umount -f gives the connection up first.
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
	mark := said // which nobody locks: without a mark this process is the only one
	if g.mark != nil {
		if mark, err = g.mark.Open(); err != nil {
			tell.Close()
			return err
		}
		defer mark.Close()
	}
	cmd := exec.Command("/proc/self/exe", watchCommand)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", []string{"GOMAXPROCS=1"}, []*os.File{said, abort, mark}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: parentDied}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() { // ends with the watcher
		defer close(ended)
		runtime.LockOSThread() // the parent of which the kernel tells the watcher the end is a thread
		defer runtime.UnlockOSThread()
		err := startBlocked(cmd, parentDied)
		started <- err
		if err != nil {
			return
		}
		if err := cmd.Wait(); err != nil {
			g.log.Warn("the watcher of this mount has ended: should this process be killed, its clients may hang", zap.Error(err))
		}
	}()
	if err := <-started; err != nil {
		tell.Close()
		return err
	}
	g.tell, g.ended = tell, ended
	return nil
}

// startBlocked starts cmd with sig blocked, from the calling thread: one that comes before the child waits
// for it stays pending, where it would end the child.
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
	_, _ = g.tell.WriteString("g") // it may have been killed
	g.tell.Close()
	<-g.ended
	g.tell = nil
}

// close ends the guard with the mount, or after leave. The watcher ends when nobody else has the mark.
func (g *guard) close() {
	if err := g.mark.Close(); err != nil {
		g.log.Warn("remove the mark of the mount", zap.Error(err))
	}
	if g.tell != nil {
		g.tell.Close()
	}
}
