// Package mounts is about the kvfs mounts of this machine, as the mount table has them: to find one, to see
// whether its daemon lives, to take it away. It asks no daemon for more than a sign of life, and never waits
// for long, since a dead or stuck one answers nothing.
package mounts

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/fs/device"
)

// Type is the type of kvfs mounts in mount tables.
const Type = "fuse.kvfs"

// IsOurs reports whether m is not nil and is a kvfs mount.
func IsOurs(m *mountinfo.Info) bool { return m != nil && m.FSType == Type }

// Find returns the mount at dir, with dir as in the mount table, or nil if there is none. It
// reads the table before it touches dir, because a dead or stuck mount does not answer.
func Find(dir string) (m *mountinfo.Info, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if m, err = device.TopMount(abs); m != nil || err != nil {
		return m, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	resolved := filepath.Join(parent, filepath.Base(abs))
	if m, err = device.TopMount(resolved); m != nil || err != nil {
		return m, err
	}
	if resolved, err = filepath.EvalSymlinks(resolved); err != nil {
		if errors.Is(err, iofs.ErrNotExist) {
			err = &iofs.PathError{Op: "stat", Path: dir, Err: iofs.ErrNotExist}
		}
		return nil, err
	}
	return device.TopMount(resolved)
}

// List returns the kvfs mounts whose source, the first column of the mount table, begins with prefix. It asks no mount.
func List(prefix string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !IsOurs(m) || !strings.HasPrefix(m.Source, prefix), false
	})
}

// ReadOnly reports whether m refuses changes.
func ReadOnly(m *mountinfo.Info) bool { return slices.Contains(strings.Split(m.VFSOptions, ","), "ro") }

// ErrSilent reports that a daemon seems to live but has not answered in time.
var ErrSilent = errors.New("its daemon has not answered")

// Answers returns nil if the daemon of the mount at point answers, even with an error. It returns ENOTCONN
// or ECONNABORTED if the daemon is dead, and ErrSilent if it is silent for Timeout, as a stopped one is.
func Answers(point string) error { return answersWithin(context.Background(), point) }

// answersWithin is Answers until ctx ends.
func answersWithin(ctx context.Context, point string) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { // ends when the daemon answers or dies; else with the process
		var st unix.Statfs_t
		done <- unix.Statfs(point, &st)
	}()
	select {
	case err := <-done:
		if Dead(err) {
			return err
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", point, ErrSilent)
	}
}

// DeadText says that the daemon of a mount is dead, and what to do: to restart it comes first, because that keeps the
// blocks in memory.
func DeadText(dir string) string {
	return fmt.Sprintf("the daemon of %s is dead. kvfs mount %[1]s, with the settings it had, starts it again with its blocks. kvfs umount %[1]s gives them up", dir)
}

// Dead reports whether an error of an operation on a mount says that its daemon is dead.
func Dead(err error) bool { return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) }

// Timeout bounds the wait for a daemon that does not answer.
const Timeout = 10 * time.Second

// lastWords is the time that a call which heeds its context has to say why it ends.
const lastWords = 5 * time.Second

// Within makes calls, all at a time. It returns their results when all have returned, or lastWords after the deadline, at
// which their context ends. The result of a call that hangs, as one on a dead mount may, is nil; its goroutine ends with
// the process.
func Within[T any](ctx context.Context, deadline time.Duration, calls []func(context.Context) T) []*T {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	type result struct {
		i int
		v T
	}
	done := make(chan result, len(calls))
	for i, call := range calls {
		go func() { done <- result{i, call(ctx)} }()
	}
	results := make([]*T, len(calls))
	late := time.NewTimer(deadline + lastWords)
	defer late.Stop()
	for range calls {
		select {
		case r := <-done:
			results[r.i] = &r.v
		case <-late.C:
			return results
		}
	}
	return results
}

// detach unmounts point: by system call if we may, else by the set-uid helper of fuse. A stale
// mount holds nothing more, so it is detached even if it is busy.
func detach(ctx context.Context, point string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(point, flags)
	if errors.Is(err, unix.EPERM) {
		err = fusermount(ctx, point, lazy)
	}
	if err == nil || lazy {
		return err
	}
	switch silent := answersWithin(ctx, point); {
	case errors.Is(silent, ErrSilent):
		return fmt.Errorf("%w, and %w; --lazy detaches the mount", err, ErrSilent)
	case silent != nil:
		return detach(ctx, point, true)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: files are open or someone works in it; close them, or use --lazy", err)
	}
	return err
}

func fusermount(ctx context.Context, point string, lazy bool) error {
	arg := "-u"
	if lazy {
		arg = "-uz"
	}
	for _, helper := range []string{"fusermount3", "fusermount"} {
		path, err := exec.LookPath(helper)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, arg, "--", point).CombinedOutput()
		if err == nil {
			return nil
		}
		// The helper has one exit code for everything: pass its text on.
		return fmt.Errorf("%s: %s: %w", helper, strings.TrimSpace(string(out)), err)
	}
	return fmt.Errorf("neither fusermount3 nor fusermount is installed: %w", unix.EPERM)
}

// WaitGone waits until m has left the mount table. poll reports changes of the table; each wait
// is limited so that it sees the end of ctx.
func WaitGone(ctx context.Context, m *mountinfo.Info) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Seek(0, 0); err != nil {
			return err
		}
		same, err := mountinfo.GetMountsFromReader(f, func(o *mountinfo.Info) (skip, stop bool) {
			return o.ID != m.ID || o.Mountpoint != m.Mountpoint, false // ids are used again
		})
		if len(same) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("still mounted: %w", context.Cause(ctx))
		}
		poll := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(poll, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
}

// MarkPath returns the path of the mark of m.
func MarkPath(m *mountinfo.Info) string {
	return handoff.MarkPath(handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR")), strconv.Itoa(m.Minor))
}

// Server returns the process that serves m, or 0 if it is unknown or dead. It asks the mount nothing.
func Server(m *mountinfo.Info) int { return handoff.Server(MarkPath(m), m.ID, m.Mountpoint) }

// Abandoned reports whether the process that served m is dead. It asks the mount nothing.
func Abandoned(m *mountinfo.Info) bool { return handoff.Abandoned(MarkPath(m), m.ID, m.Mountpoint) }

// GiveUp makes the kernel fail all requests that wait for the dead process of m, and unmounts. It returns when the mount
// has left the mount table. The kernel may still be freeing the names of the mount then, which takes 3 s for a million.
func GiveUp(ctx context.Context, m *mountinfo.Info) error {
	defer handoff.RemoveMark(MarkPath(m), m.ID, m.Mountpoint) // what it left is in nobody's way
	abort, err := device.OpenAbort(m.Minor)
	if err != nil {
		if unix.Unmount(m.Mountpoint, unix.MNT_FORCE|unix.MNT_DETACH) == nil {
			return nil
		}
		return detachSoon(ctx, m)
	}
	_, err = abort.WriteString("1") // fails if it is aborted already, which is fine
	return errors.Join(err, abort.Close(), detachSoon(ctx, m))
}

// detachSoon detaches m, and does not wait for the end of the system call if m has left the mount table before.
func detachSoon(ctx context.Context, m *mountinfo.Info) error {
	waiting, stop := context.WithCancel(ctx)
	first := make(chan error, 2)
	go func() { first <- detach(ctx, m.Mountpoint, true); stop() }() // ends with the system call
	go func() {                                                      // ends when m is gone, or soon after the other one
		if err := WaitGone(waiting, m); err == nil {
			first <- nil
		}
	}()
	return <-first
}

// Unmount unmounts the kvfs mount at dir. It waits until ctx is done for two events: the mount
// has left the mount table, and, unless lazy, the process that served it has ended, with one that was taking it over. If only
// the latter is missing, Unmount returns the number of the former process, else 0.
func Unmount(ctx context.Context, dir string, lazy bool) (ending int, err error) {
	m, err := Find(dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return 0, exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: there is no such directory", dir))
	}
	if err != nil {
		return 0, exit.With(exit.NotMount, err)
	}
	if m == nil {
		return 0, exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: nothing is mounted there", dir))
	}
	if m.FSType != Type {
		return 0, exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: its type is %s", dir, m.FSType))
	}
	pid := Server(m) // which asks the mount nothing: an unanswered question would keep it busy
	pidfd, ended, hasEnded := WatchProcess(pid)
	mark, unmarked := os.Open(MarkPath(m))
	defer func() { pidfd.Close(); mark.Close() }() // on error they are nil, and Close does nothing
	if Abandoned(m) {
		err = GiveUp(ctx, m)
	} else {
		err = detach(ctx, m.Mountpoint, lazy)
	}
	if err != nil {
		return 0, fmt.Errorf("umount %s: %w", dir, err)
	}
	if err := WaitGone(ctx, m); err != nil {
		return 0, fmt.Errorf("umount %s: %w", dir, err)
	}
	if lazy || pid == 0 || pid == os.Getpid() {
		return 0, nil
	}
	if hasEnded == nil {
		select {
		case <-ended:
		case <-ctx.Done():
			return pid, nil
		}
	}
	for unmarked == nil && !handoff.Free(mark) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return pid, nil
		}
	}
	return 0, nil
}

// WatchProcess returns a pidfd of process pid, which need not be a child, and a channel that is
// closed when the process has ended. Close the file to end the watch.
func WatchProcess(pid int) (*os.File, chan struct{}, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	ended := make(chan struct{})
	go func() { // ends with the process, or when the file is closed
		err := raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
		if err == nil {
			close(ended)
		}
	}()
	return file, ended, nil
}

// Inside returns the kvfs mount that path leads into, through symbolic links and bind mounts, or nil. What is absent of
// path counts as a file of the last directory that exists. Inside asks no kvfs mount: it goes no further than its root.
func Inside(path string) (*mountinfo.Info, error) {
	ours, err := devices()
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	var found *mountinfo.Info
	_, err = walk(path, func(st *unix.Statx_t) bool {
		found = ours[deviceOf(st)]
		return found != nil
	})
	return found, err
}

// Holds returns the kvfs mount of an open file of this process, or nil.
func Holds(fd int) (*mountinfo.Info, error) {
	ours, err := devices()
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	st, err := look(fd)
	return ours[deviceOf(&st)], err
}

// Below reports whether path is dir, which exists, or leads into it, as Inside does. A mount at dir would hide path.
func Below(path, dir string) (bool, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	at, err := look(fd)
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	return walk(path, func(st *unix.Statx_t) bool { return st.Ino == at.Ino && deviceOf(st) == deviceOf(&at) })
}

// devices returns the kvfs mounts of this machine by their devices. All mounts of one device are one file system.
func devices() (map[uint64]*mountinfo.Info, error) {
	list, err := List("")
	ours := map[uint64]*mountinfo.Info{}
	for _, m := range list {
		if dev := unix.Mkdev(uint32(m.Major), uint32(m.Minor)); ours[dev] == nil {
			ours[dev] = m
		}
	}
	return ours, err
}

func deviceOf(st *unix.Statx_t) uint64 { return unix.Mkdev(st.Dev_major, st.Dev_minor) }

// look returns what the kernel knows of a file. It does not ask the file system.
func look(fd int) (st unix.Statx_t, err error) {
	return st, os.NewSyscallError("statx", unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st))
}

// maxLinks bounds the symbolic links of a path, as the kernel does.
const maxLinks = 40

// walk goes the way of path and calls stop for each directory, link and file on it, from the first directory on. It ends when
// stop returns true, and returns that. It ends with false at a name that is absent or that this process may not look up. It
// takes single steps because a look-up of a whole path would wait for a mount on its way that does not answer.
func walk(path string, stop func(*unix.Statx_t) bool) (stopped bool, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at := unix.AT_FDCWD
	defer func() { unix.Close(at) }() // fails for AT_FDCWD
	names := append([]string{start(path)}, strings.Split(path, "/")...)
	for links := 0; len(names) > 0 && links <= maxLinks; names = names[1:] {
		if names[0] == "" {
			continue
		}
		fd, err := unix.Openat(at, names[0], flags, 0)
		if err != nil {
			return false, nil
		}
		st, err := look(fd)
		if err != nil || stop(&st) {
			unix.Close(fd)
			return err == nil, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(at)
			at = fd
			continue
		}
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", text)
		unix.Close(fd)
		if err != nil {
			return false, nil
		}
		links++
		target := string(text[:n])
		names = append(append([]string{"", start(target)}, strings.Split(target, "/")...), names[1:]...)
	}
	return false, nil
}

// start returns the name of the directory at which a path starts, for openat.
func start(path string) string {
	if strings.HasPrefix(path, "/") {
		return "/"
	}
	return "."
}
