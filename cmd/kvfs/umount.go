package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// umountWait is the default of umount --timeout.
const umountWait = 10 * time.Second

func newUmountCommand() *cobra.Command {
	var lazy bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "umount DIR",
		Short: "Unmount, also what a dead daemon left behind",
		Long: "Unmount DIR, which must be a kvfs mount, and wait until it is gone. " +
			"The daemon stops by itself then. A mount whose daemon is dead is cleaned up too.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return umount(ctx, args[0], lazy)
		},
	}
	cmd.Flags().BoolVar(&lazy, "lazy", false, "detach at once, even if files are open; they stay usable until they are closed")
	cmd.Flags().DurationVar(&timeout, "timeout", umountWait, "how long to wait until the mount is gone")
	return cmd
}

// umount unmounts the kvfs mount at dir and waits until it has left the mount
// table or ctx is done.
func umount(ctx context.Context, dir string, lazy bool) error {
	m, err := findMount(dir)
	if err != nil {
		return exit.With(exit.NotMount, err)
	}
	if m == nil {
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: nothing is mounted there", dir))
	}
	if m.FSType != fsType {
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: its type is %s", dir, m.FSType))
	}
	if abandoned(m) {
		err = giveUp(ctx, m)
	} else {
		err = detach(ctx, m.Mountpoint, lazy)
	}
	if err != nil {
		return fmt.Errorf("umount %s: %w", dir, err)
	}
	if err := waitGone(ctx, m); err != nil {
		return fmt.Errorf("umount %s: %w", dir, err)
	}
	return nil
}

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
	case errors.Is(silent, errSilent):
		return fmt.Errorf("%w, and %w; --lazy detaches the mount", err, errSilent)
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

// waitGone waits until m has left the mount table. The kernel signals changes of
// the table to poll; the limit of each wait is for ctx.
func waitGone(ctx context.Context, m *mountinfo.Info) error {
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
