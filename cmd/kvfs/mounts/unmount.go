package mounts

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/fs/device"
)

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

// fusermount unmounts as an ordinary user.
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
// has left the mount table, and, unless lazy, the process that served it has ended. If only the
// latter is missing, Unmount returns the number of that process, else 0.
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
	var by *server
	if !lazy {
		by = findServer(m)
		defer by.close()
	}
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
	return by.wait(ctx), nil
}
