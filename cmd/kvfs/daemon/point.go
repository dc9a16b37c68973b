package daemon

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// mountPoint returns dir as a clean absolute path. It first unmounts what a killed daemon left
// at dir. It fails if dir is not an empty directory or has a live mount.
func mountPoint(dir string, log *zap.Logger) (string, error) {
	for {
		m, err := mounts.Find(dir)
		if errors.Is(err, iofs.ErrNotExist) {
			return "", fmt.Errorf("mount point %s does not exist: to make it, run: mkdir -p %[1]s", dir)
		}
		if err != nil {
			return "", fmt.Errorf("mount point: %w", err)
		}
		if !mounts.IsOurs(m) {
			break
		}
		if !mounts.Abandoned(m) {
			switch err := mounts.Answers(m.Mountpoint); {
			case err == nil:
				return "", servedAlready(dir)
			case errors.Is(err, mounts.ErrSilent):
				return "", fmt.Errorf("mount point %w", err)
			}
		}
		log.Warn("unmounting the mount of a dead daemon", zap.String("dir", m.Mountpoint))
		if err := mounts.GiveUp(context.Background(), m); err != nil {
			return "", fmt.Errorf("mount point %s: stale mount: %w", dir, err)
		}
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	entries, err := os.ReadDir(abs)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return "", fmt.Errorf("mount point %s: not a directory: name an empty one", dir)
	case err != nil:
		return "", fmt.Errorf("mount point: %w", err)
	case len(entries) > 0:
		return "", fmt.Errorf("mount point %s: not empty (%s): name an empty directory, because a mount hides what is in it", dir, entries[0].Name())
	}
	if err := unix.Access("/dev/fuse", unix.F_OK); err != nil {
		return "", &os.PathError{Op: "mount: open", Path: "/dev/fuse", Err: err}
	}
	return abs, nil
}

// servedAlready returns the error about a mount point with a live daemon.
func servedAlready(dir string) error {
	return fmt.Errorf("mount point %s: a kvfs daemon serves it already. To replace it without a pause, run kvfs mount --takeover %[1]s; to end it, kvfs umount %[1]s", dir)
}

// checkApart fails if the mount point is a directory of the SSD tier, or in one: the mount
// would hide files of the tier, and the tier refuses directories with foreign files.
func checkApart(cfg *config.Config, dir string) error {
	for _, d := range cfg.Disk.Dirs {
		ssd, err := filepath.Abs(d.Path)
		if err == nil {
			if real, err := filepath.EvalSymlinks(ssd); err == nil { // else the directory does not exist yet
				ssd = real
			}
		}
		if err == nil && (dir == ssd || strings.HasPrefix(dir, ssd+"/")) {
			return fmt.Errorf("mount point %s: it is in the directory of the SSD tier, %s (disk.dirs)", dir, d.Path)
		}
	}
	return nil
}
