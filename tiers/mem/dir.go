package mem

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/tiers/block"
)

const (
	lockName    = "lock"
	bucketsName = "b"
	mountSource = "kvfs" // first field of the mount in /proc/mounts: identifies our mounts

	// noatime: the engine keeps atime in the record. Reads that the kernel serves alone need not
	// write to the inode.
	mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME

	dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// ErrBusy: another process has the store open. The error is a *BusyError.
var ErrBusy = errors.New("store in use")

// BusyError names the directory of a store and the process that has it open.
type BusyError struct {
	Dir string
	PID int // 0 if it could not be read
}

// Error prints "<dir>: store in use by process <pid>".
func (e *BusyError) Error() string { return fmt.Sprintf("%s: %v by process %d", e.Dir, ErrBusy, e.PID) }

// Unwrap returns ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// errNoMount: the kernel does not let us mount here.
var errNoMount = errors.New("tmpfs not mountable")

// openDirAt opens a directory, never through a symbolic link.
func openDirAt(at *os.File, name, path string) (*os.File, error) {
	fd, err := unix.Openat(int(at.Fd()), name, dirFlags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openParent opens the directory above the store. It makes the directory if asked to. It waits for
// the setup lock on it, LOCK_EX or LOCK_SH, until ctx is done. Closing the file unlocks.
func openParent(ctx context.Context, p place, create bool, lock int) (*os.File, error) {
	if create {
		if err := os.MkdirAll(p.parent, 0o700); err != nil {
			return nil, err
		}
	}
	flags := dirFlags
	if !p.own {
		flags &^= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(p.parent, flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p.parent, Err: err}
	}
	f := os.NewFile(uintptr(fd), p.parent)
	if create && p.own {
		err = claimDir(f, false)
	}
	if err == nil {
		err = waitLock(ctx, f, lock)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// claimDir makes sure that f is a directory of ours which no other user can enter. If another user
// owns it, claimDir takes it over if chown is set and we may, else refuses it.
func claimDir(f *os.File, chown bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		if !chown || uid != 0 {
			return &os.PathError{Op: "use directory of uid " + strconv.Itoa(int(st.Uid)), Path: f.Name(), Err: unix.EPERM}
		}
		if err := f.Chown(uid, os.Getegid()); err != nil {
			return err
		}
	}
	if st.Mode&0o077 != 0 {
		return f.Chmod(0o700)
	}
	return nil
}

// waitLock takes LOCK_EX or LOCK_SH on f, or fails with the error of ctx. Other processes hold it only
// while they attach, list or remove a store. The pauses grow, because fifty daemons that ask every few
// milliseconds take the processor from the one that has the lock.
func waitLock(ctx context.Context, f *os.File, lock int) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 64*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), lock|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the lock on %s: %w", f.Name(), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// attached is a store's directory as found or made.
type attached struct {
	root    *os.File
	mounted bool // a tmpfs of our own
	fresh   bool // made by this call
}

// attach opens the directory of a store below parent and mounts a tmpfs on it if p asks for one.
// The caller holds the setup lock of parent. If the mount is refused, attach fails with errNoMount
// and leaves nothing behind.
func attach(parent *os.File, p place, o *Options) (attached, error) {
	path := p.dir()
	err := unix.Mkdirat(int(parent.Fd()), p.name, 0o700)
	made := err == nil
	if err != nil && err != unix.EEXIST {
		return attached{}, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	root, err := openDirAt(parent, p.name, path)
	if err != nil {
		return attached{}, err
	}
	a := attached{root: root, fresh: made, mounted: ownMount(root)}
	if a.mounted || !p.mount {
		return a, nil
	}
	names, err := root.Readdirnames(-1)
	if err == nil && len(names) > 0 {
		// An earlier store without a mount, or a directory of someone else.
		o.Logger.Warn("directory in use without a mount of its own: not mounting", zap.String("dir", path))
		return a, nil
	}
	root.Close()
	if err = mountTmpfs(path, o); err == nil {
		if root, err = openDirAt(parent, p.name, path); err == nil {
			return attached{root: root, mounted: true, fresh: true}, nil
		}
		unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if made {
		unix.Unlinkat(int(parent.Fd()), p.name, unix.AT_REMOVEDIR)
	}
	return attached{}, err
}

// tmpfsSize returns the size options of the tmpfs. tmpfs counts an inode and its attributes against
// nr_inodes in units of 1 KiB. Two units for every 4 KiB suffice for the smallest blocks. The
// default, half the machine's pages, does not.
func tmpfsSize(o *Options) string {
	size := o.SizeBytes + o.HeadroomBytes
	return fmt.Sprintf("size=%d,nr_inodes=%d", size, max(size>>11, 1<<16))
}

// tmpfsMore returns the options other than size and huge pages.
func tmpfsMore(o *Options) string {
	if o.NUMA == "" {
		return ",mode=0700"
	}
	return ",mode=0700,mpol=" + o.NUMA
}

// numaNodes is the file in which Linux lists the NUMA nodes that have memory.
const numaNodes = "/sys/devices/system/node/has_memory"

// numaError explains the EINVAL of a mount with o.NUMA.
func numaError(path string, o *Options) error {
	nodes, err := os.ReadFile(numaNodes)
	if err != nil {
		return fmt.Errorf("%s: NUMA policy %q: this kernel has no NUMA: %w", path, o.NUMA, block.ErrInvalid)
	}
	return fmt.Errorf("%s: NUMA policy %q: the kernel refuses it; nodes with memory: %s: %w", path, o.NUMA, strings.TrimSpace(string(nodes)), block.ErrInvalid)
}

// checkNUMA applies o.NUMA to a tmpfs of an earlier process. It fails with ErrInvalid, also if the
// store has no tmpfs of its own.
func checkNUMA(path string, mounted, fresh bool, o *Options) error {
	switch {
	case o.NUMA == "":
		return nil
	case !mounted:
		return fmt.Errorf("%s: NUMA policy %q: it takes a tmpfs of the store's own, which root can mount: %w", path, o.NUMA, block.ErrInvalid)
	case !fresh && unix.Mount(mountSource, path, "tmpfs", mountFlags|unix.MS_REMOUNT, "mpol="+o.NUMA) != nil:
		return numaError(path, o)
	}
	return nil
}

// mountTmpfs mounts a tmpfs on path. It goes without huge pages if the kernel refuses them.
func mountTmpfs(path string, o *Options) error {
	data := tmpfsSize(o) + tmpfsMore(o)
	err := unix.Mount(mountSource, path, "tmpfs", mountFlags, data+",huge="+o.Huge)
	if err == unix.EINVAL {
		if err = unix.Mount(mountSource, path, "tmpfs", mountFlags, data); err == unix.EINVAL && o.NUMA != "" {
			return numaError(path, o)
		}
		o.Logger.Warn("kernel refuses huge pages for the memory tier: reads and transfers will be slower",
			zap.String("dir", path), zap.String("huge", o.Huge))
	}
	switch err {
	case nil:
		return nil
	case unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ENODEV:
		return fmt.Errorf("%w: %w", errNoMount, &os.PathError{Op: "mount", Path: path, Err: err})
	}
	return &os.PathError{Op: "mount", Path: path, Err: err}
}

// remountTmpfs gives an adopted tmpfs the size and huge-page policy of o. It returns false if the
// store uses more than the new size.
func remountTmpfs(path string, o *Options) bool {
	remount := func(data string) error {
		return unix.Mount(mountSource, path, "tmpfs", mountFlags|unix.MS_REMOUNT, data)
	}
	size := tmpfsSize(o)
	if remount(size+",huge="+o.Huge) == nil {
		return true
	}
	errHuge := remount("huge=" + o.Huge)
	errSize := remount(size)
	if errHuge != nil {
		o.Logger.Warn("huge-page policy of the memory tier not changed", zap.String("dir", path),
			zap.String("huge", o.Huge), zap.Error(errHuge))
	}
	if errSize != nil {
		o.Logger.Warn("size of the memory tier not changed: more is in use", zap.String("dir", path),
			zap.Int64("size_bytes", o.SizeBytes), zap.Error(errSize))
	}
	return errSize == nil
}

// ownMount reports whether dir is the root of a tmpfs that a Store mounted. It asks for the mount
// by its number, so mounts on top of dir do not matter.
func ownMount(dir *os.File) bool {
	var st unix.Statx_t
	err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	if err != nil || st.Mask&unix.STATX_MNT_ID == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false
	}
	own, _ := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return uint64(m.ID) != st.Mnt_id || m.FSType != "tmpfs" || m.Source != mountSource, false
	})
	return len(own) > 0
}

// openLock opens the lock file and takes it. It fails with *BusyError.
func openLock(root *os.File, flags int) (*os.File, error) {
	path := filepath.Join(root.Name(), lockName)
	fd, err := unix.Openat(int(root.Fd()), lockName, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	switch err {
	case nil:
		return f, nil
	case unix.EWOULDBLOCK:
		err = &BusyError{Dir: root.Name(), PID: lockPID(f)}
	default:
		err = &os.PathError{Op: "flock", Path: path, Err: err}
	}
	f.Close()
	return nil, err
}

// lockPID returns the pid in a lock file, 0 if there is none.
func lockPID(f *os.File) int {
	var b [32]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// writePID writes our pid. It always writes the same number of bytes, so it needs no new page.
func writePID(f *os.File) error {
	_, err := f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0)
	return err
}

// readFormat reads kvfs-memory. It fails with fs.ErrNotExist, or like parseFormat.
func readFormat(root *os.File) (format, error) {
	path := filepath.Join(root.Name(), formatName)
	fd, err := unix.Openat(int(root.Fd()), formatName, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return format{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4097))
	if err != nil {
		return format{}, err
	}
	return parseFormat(b)
}

// wipe removes the files of a store, except the lock. In a tmpfs of our own it removes everything
// else too. If a directory does not look like a store and holds other files, it fails with
// ErrInvalid and removes nothing.
func wipe(root *os.File, mounted bool) error {
	// By descriptor, so that no program can put another directory in its place.
	dir, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", root.Fd()))
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := iofs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !mounted && !looksOurs(names) {
		return fmt.Errorf("%s is not empty and no store: %w", root.Name(), block.ErrInvalid)
	}
	var errs []error
	for _, name := range names {
		if name != lockName && name != formatName && (mounted || name == bucketsName) {
			errs = append(errs, dir.RemoveAll(name))
		}
	}
	// Last: without kvfs-memory, a directory with buckets does not look like ours.
	return errors.Join(append(errs, dir.RemoveAll(formatName))...)
}

// looksOurs reports whether a directory with these names may be a store. It is one if it has
// kvfs-memory, which is made first and removed last, or nothing but the lock.
func looksOurs(names []string) bool {
	return slices.Contains(names, formatName) || !slices.ContainsFunc(names, func(n string) bool { return n != lockName })
}

// detach unmounts and removes the directory of a store. The caller holds the setup lock and has
// closed all its descriptors of the store but root. The memory becomes free when the caller closes
// rest, which is nil if it is free already. The caller unlocks first, because that can take seconds.
func detach(parent *os.File, p place, root *os.File, mounted bool) (rest *os.File, err error) {
	defer root.Close()
	if !mounted {
		if err := wipe(root, false); err != nil {
			return nil, err
		}
		unix.Unlinkat(int(root.Fd()), lockName, 0)
		return nil, rmdirEmpty(parent, p)
	}
	if fd, e := unix.OpenTree(int(root.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); e == nil {
		rest = os.NewFile(uintptr(fd), p.dir()) // a second mount of the tmpfs; before Linux 5.2 there is none
	}
	// A clean unmount frees everything with the last mount. If files are open, the whole tmpfs stays until
	// the last of them is closed. So unlink the others.
	root.Close()
	err = unix.Unmount(p.dir(), unix.UMOUNT_NOFOLLOW)
	if err == unix.EBUSY {
		var again *os.File
		if again, err = openDirAt(parent, p.name, p.dir()); err == nil {
			err = wipe(again, ownMount(again))
			again.Close()
		}
		if e := unix.Unmount(p.dir(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
			err = errors.Join(err, &os.PathError{Op: "unmount", Path: p.dir(), Err: e})
		}
	} else if err == unix.EINVAL {
		err = nil // another process was faster
	}
	return rest, errors.Join(err, rmdirEmpty(parent, p))
}

// rmdirEmpty removes the directory itself. It keeps the directory if others use it, or if another
// user made it in a place where we may not remove it.
func rmdirEmpty(parent *os.File, p place) error {
	switch err := unix.Unlinkat(int(parent.Fd()), p.name, unix.AT_REMOVEDIR); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST, unix.EBUSY, unix.EACCES, unix.EPERM:
		return nil
	default:
		return &os.PathError{Op: "rmdir", Path: p.dir(), Err: err}
	}
}
