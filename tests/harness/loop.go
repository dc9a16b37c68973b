package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// LoopOptions describe a file system on a loop device.
type LoopOptions struct {
	Type        string // "ext4", "xfs" or "btrfs". Empty means ext4.
	SizeBytes   int64  // of the device. Zero means 512 MiB; xfs needs 300 MiB.
	SectorBytes int    // logical sector. Zero means 512.
	Backing     string // directory of the backing file. Empty means a new one.
	User        *User  // owner of the root directory. nil means the test's own.
}

// LoopFS is a mounted file system on a loop device over a sparse file. The device detaches itself
// at the last unmount, so unmounting removes everything.
type LoopFS struct {
	Dir     string // mount point
	Backing string // path of the backing file
	Device  string // for example /dev/loop0, while mounted

	tb   testing.TB
	opts LoopOptions
}

// MountLoop makes a file system and mounts it. It is gone when the test ends. The test is skipped
// without root, mkfs, loop devices, or the file system in the kernel.
func MountLoop(tb testing.TB, opts LoopOptions) *LoopFS {
	tb.Helper()
	if opts.Type == "" {
		opts.Type = "ext4"
	}
	if opts.SizeBytes == 0 {
		opts.SizeBytes = 512 << 20
	}
	if opts.SectorBytes == 0 {
		opts.SectorBytes = 512
	}
	needLoop(tb, opts.Type)
	base := newDir(tb, diskParent(), "loop")
	l := &LoopFS{Dir: filepath.Join(base, "mnt"), tb: tb, opts: opts}
	if l.Backing = filepath.Join(base, "backing"); opts.Backing != "" {
		l.Backing = filepath.Join(opts.Backing, "backing")
	}
	f, err := os.OpenFile(l.Backing, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	must(tb, err)
	err = errors.Join(f.Truncate(opts.SizeBytes), f.Close(), os.Mkdir(l.Dir, 0o755))
	must(tb, err)
	// Cleanups run in reverse order, so daemons started after this have ended by then.
	tb.Cleanup(func() {
		for range MountPoints(l.Dir) {
			unmount(l.Dir)
		}
		os.Remove(l.Backing)
	})
	l.attach(true)
	if u := opts.User; u != nil {
		must(tb, os.Chown(l.Dir, int(u.UID), int(u.GID)))
	}
	return l
}

func needLoop(tb testing.TB, fstype string) {
	tb.Helper()
	if why := LacksLoop(fstype); why != "" {
		Skip(tb, "%s", why)
	}
}

// LacksLoop returns why MountLoop would skip a test; "" if no reason is known beforehand.
func LacksLoop(fstype string) string {
	if os.Getuid() != 0 {
		return "loop devices need root"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Sprintf("no loop devices: %v", err)
	}
	if _, err := exec.LookPath("mkfs." + fstype); err != nil {
		return fmt.Sprintf("mkfs.%s is not installed", fstype)
	}
	known, _ := os.ReadFile("/proc/filesystems")
	if !strings.Contains(string(known), "\t"+fstype+"\n") && exec.Command("modprobe", fstype).Run() != nil {
		return "this kernel has no " + fstype
	}
	return ""
}

// mkfs are the arguments that make a small file system quickly.
var mkfs = map[string][]string{
	"ext4":  {"-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"},
	"xfs":   {"-q", "-f", "-K"},
	"btrfs": {"-q", "-f", "-K"},
}

// attach gives the backing file to a free loop device, makes the file system if format is set, and
// mounts it.
func (l *LoopFS) attach(format bool) {
	l.tb.Helper()
	dev, err := l.device()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		Skip(l.tb, "loop devices are not allowed here: %v", err)
	}
	if err != nil {
		l.tb.Fatalf("loop device: %v", err)
	}
	defer dev.Close() // the mount keeps it attached
	l.Device = dev.Name()
	if format {
		args := append(append([]string{}, mkfs[l.opts.Type]...), l.Device)
		if out, err := exec.Command("mkfs."+l.opts.Type, args...).CombinedOutput(); err != nil {
			l.tb.Fatalf("mkfs.%s %q: %v\n%s", l.opts.Type, args, err, out)
		}
	}
	if err := unix.Mount(l.Device, l.Dir, l.opts.Type, 0, ""); err != nil {
		l.tb.Fatalf("mount %s: %v", l.opts.Type, err)
	}
}

// device opens a free loop device and gives it the backing file. Another process may take the same
// device, so it tries again.
func (l *LoopFS) device() (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	backing, err := os.OpenFile(l.Backing, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Size: uint32(l.opts.SectorBytes)}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		dev, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) || try == 100 {
			return nil, fmt.Errorf("configure %s: %w", dev.Name(), err)
		}
	}
}

// openLoop opens loop device n. In a container /dev may lack the node.
func openLoop(n int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(7, uint32(n)))); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// DropCaches makes the kernel forget the clean pages of the device and of the
// backing file.
func (l *LoopFS) DropCaches() {
	l.tb.Helper()
	for _, path := range []string{l.Device, l.Backing} {
		f, err := os.Open(path)
		if err != nil {
			l.tb.Fatal(err)
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		f.Close()
		if err != nil {
			l.tb.Fatalf("fadvise %s: %v", path, err)
		}
	}
}

// Fill writes files until less than leave bytes are free, and returns a
// function that removes them.
func (l *LoopFS) Fill(leave int64) (empty func()) {
	l.tb.Helper()
	var vfs unix.Statfs_t
	if err := unix.Statfs(l.Dir, &vfs); err != nil {
		l.tb.Fatal(err)
	}
	path := filepath.Join(l.Dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		l.tb.Fatal(err)
	}
	defer f.Close()
	n := int64(vfs.Bavail)*int64(vfs.Bsize) - leave
	if n > 0 {
		err = unix.Fallocate(int(f.Fd()), 0, 0, n)
	}
	if err != nil {
		l.tb.Fatalf("fill %s with %d bytes: %v", l.Dir, n, err)
	}
	return func() { os.Remove(path) }
}

// unused calls fn, which needs closed files in the file system, until fn no longer fails because
// files are in use. Files of an ended process may stay open for a moment, because the kernel
// removes io_uring rings in the background.
func (l *LoopFS) unused(fn func() error) {
	l.tb.Helper()
	var err error
	Poll(l.tb, "files on "+l.Dir+" are closed", func() bool {
		err = fn()
		return !errors.Is(err, unix.EBUSY)
	})
	if err != nil {
		l.tb.Fatalf("%s: %v", l.Dir, err)
	}
}

// Freeze makes writes to the file system wait, as on a device without an answer, until thaw is
// called or the test ends. Reads go on.
func (l *LoopFS) Freeze() (thaw func()) {
	l.tb.Helper()
	f, err := os.Open(l.Dir)
	if err != nil {
		l.tb.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0); err != nil {
		f.Close()
		l.tb.Fatalf("freeze %s: %v", l.Dir, err)
	}
	thaw = sync.OnceFunc(func() {
		defer f.Close()
		if err := unix.IoctlSetInt(int(f.Fd()), fiThaw, 0); err != nil {
			l.tb.Errorf("thaw %s: %v", l.Dir, err)
		}
	})
	l.tb.Cleanup(thaw)
	return thaw
}

// Requests of ioctl. Source: FIFREEZE and FITHAW in linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// Remount unmounts the file system, as at a shutdown of the machine, and mounts it again. No
// process may use it.
func (l *LoopFS) Remount() {
	l.tb.Helper()
	l.Unmount()
	l.Mount()
}

// Mount mounts the file system after Unmount, on any loop device.
func (l *LoopFS) Mount() {
	l.tb.Helper()
	l.attach(false)
}

// Unmount unmounts the file system and waits until its device is free.
func (l *LoopFS) Unmount() {
	l.tb.Helper()
	l.unused(func() error { return unix.Unmount(l.Dir, 0) })
	// A mount namespace that another process has just made keeps the file system for a moment, and with
	// it what was not yet written.
	Poll(l.tb, "the device is detached", func() bool {
		file, err := os.ReadFile("/sys/block/" + filepath.Base(l.Device) + "/loop/backing_file")
		return err != nil || strings.TrimSpace(string(file)) != l.Backing
	})
}
