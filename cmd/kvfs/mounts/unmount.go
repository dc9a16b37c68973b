package mounts

import (
	"context"
	"errors"
	"fmt"
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

// detach unmounts point: by system call if we may, else by the set-uid helper of
// fuse. A stale mount has nothing to lose and is detached even if it is busy.
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
		// The helper has one exit code for everything: say what it said.
		return fmt.Errorf("%s: %s: %w", helper, strings.TrimSpace(string(out)), err)
	}
	return fmt.Errorf("neither fusermount3 nor fusermount is installed: %w", unix.EPERM)
}

// WaitGone waits until m has left the mount table. The kernel signals changes of
// the table to poll; the limit of each wait is for ctx.
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

// MarkPath is where m has its mark.
func MarkPath(m *mountinfo.Info) string {
	return handoff.MarkPath(handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR")), strconv.Itoa(m.Minor))
}

// Abandoned reports whether the process that served m is dead. It asks the mount nothing.
func Abandoned(m *mountinfo.Info) bool { return handoff.Abandoned(MarkPath(m), m.ID, m.Mountpoint) }

// GiveUp has the kernel fail all that waits for the process of m, which is dead, and takes the mount away.
func GiveUp(ctx context.Context, m *mountinfo.Info) error {
	defer os.Remove(MarkPath(m)) // nobody holds it
	abort, err := device.OpenAbort(m.Minor)
	if err != nil {
		if unix.Unmount(m.Mountpoint, unix.MNT_FORCE|unix.MNT_DETACH) == nil {
			return nil
		}
		return detach(ctx, m.Mountpoint, true)
	}
	_, err = abort.WriteString("1") // it may be given up already, which is no error
	return errors.Join(err, abort.Close(), detach(ctx, m.Mountpoint, true))
}

// Unmount unmounts the kvfs mount at dir and waits, until ctx is done, for two things: that it has left the
// mount table, and, unless lazy, that the process which served it has ended. If only that is missing at the
// end, Unmount returns its number, else 0.
func Unmount(ctx context.Context, dir string, lazy bool) (ending int, err error) {
	m, err := Find(dir)
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
