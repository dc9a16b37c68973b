package recovery

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// DirError says why a directory cannot hold blocks.
type DirError struct {
	Dir string
	Why string // what is wrong and what to do
	Err error  // the kind: ErrInvalid, ErrReadOnly, or an error of the system
}

// Error prints "<dir>: <why>".
func (e *DirError) Error() string { return e.Dir + ": " + e.Why }

// Unwrap returns the kind.
func (e *DirError) Unwrap() error { return e.Err }

// Open locks a directory and reads its superblock. With Create it makes what is absent. It fails
// with a DirError, a BusyError, a VersionError, a SuperblockError, or an error of the system. If it
// fails, it removes a directory that it made.
func Open(path string, o Options) (d *Dir, err error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if o.Create {
		if err := CheckPlace(path, o); err != nil {
			return nil, err
		}
		made, err := makeDir(path)
		if err != nil {
			return nil, err
		}
		defer func() {
			if made && d == nil {
				os.Remove(path) // fails if it is no longer empty
			}
		}()
	}
	d, err = lockDir(path, o, true)
	if err != nil {
		return nil, err
	}
	err = d.probe()
	if err == nil {
		err = d.load(o)
	}
	if err != nil {
		d.removeBlank()
		return nil, errors.Join(err, d.Close())
	}
	if o.Create {
		d.remember(o)
	}
	return d, nil
}

// removeBlank removes kvfs-disk from a directory that was refused before anything was written to
// it.
func (d *Dir) removeBlank() {
	if info, err := d.file.Stat(); err == nil && info.Size() == 0 {
		os.Remove(d.file.Name())
	}
}

// probe asks whether the file system does direct I/O. A full file system cannot be asked, but the
// slabs are already there.
func (d *Dir) probe() error {
	r, err := directio.Probe(d.path)
	switch {
	case errors.Is(err, directio.ErrNotDirect):
		return &DirError{d.path, fmt.Sprintf("is on %s without direct I/O, which the disk tier needs: %v", r.FileSystem, err), err}
	case errors.Is(err, directio.ErrSelfTest):
		return &DirError{d.path, fmt.Sprintf("is on %s, whose direct I/O is broken: %v", r.FileSystem, err), err}
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		if info, statErr := d.file.Stat(); statErr == nil && info.Size() > 0 {
			d.log.Warn("no space for the test of direct I/O: it is skipped", zap.String("dir", d.path), zap.Error(err))
			return nil
		}
		return &DirError{d.path, "is on a file system that is full", err}
	case err != nil:
		return err
	case !r.Direct:
		d.log.Warn("direct I/O is only a hint on this file system: data may go through the page cache",
			zap.String("dir", d.path), zap.String("filesystem", r.FileSystem))
	}
	d.Direct = r
	return nil
}

// makeDir makes the last component of path if it is absent.
func makeDir(path string) (made bool, err error) {
	err = os.Mkdir(path, 0o700)
	switch {
	case err == nil:
		return true, syncParent(path)
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case errors.Is(err, unix.ENOENT):
		return false, &DirError{path, fmt.Sprintf("its parent %s does not exist: make it, or mount the device that it is on",
			filepath.Dir(path)), err}
	case errors.Is(err, unix.EROFS):
		return false, &DirError{path, "cannot be made: the file system is mounted read-only", err}
	}
	return false, &DirError{path, fmt.Sprintf("cannot be made: %v", err), err}
}

func syncParent(path string) error {
	f, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// lockDir checks a directory and locks it. With write it makes kvfs-disk. Without write, and if
// there is no kvfs-disk, it returns nil and locks nothing.
func lockDir(path string, o Options, write bool) (d *Dir, err error) {
	root, err := openRoot(path)
	if err != nil {
		return nil, err
	}
	d = &Dir{path: path, root: root, log: o.Logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
			d = nil
		}
	}()
	if err := checkFilesystem(d.root, o.AllowTmpfs, write); err != nil {
		return d, err
	}
	if err := checkOwner(d.root, write, o.Logger); err != nil {
		return d, err
	}
	flags := unix.O_RDONLY
	if write {
		// Check before kvfs-disk is made: a refused directory stays unchanged.
		if err := d.refuseForeign(); err != nil {
			return d, err
		}
		flags = unix.O_RDWR | unix.O_CREAT
	}
	err = d.lockSuper(flags)
	if errors.Is(err, unix.ENOENT) && !write {
		return d, nil
	}
	return d, err
}

// openRoot opens a directory.
func openRoot(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
		return os.NewFile(uintptr(fd), path), nil
	case unix.ENOENT:
		return nil, &DirError{path, "does not exist", err}
	case unix.ENOTDIR:
		return nil, &DirError{path, "is not a directory", err}
	}
	return nil, &DirError{path, fmt.Sprintf("cannot be opened: %v", err), err}
}

// lockSuper opens and locks kvfs-disk.
func (d *Dir) lockSuper(flags int) (err error) {
	for {
		if d.file, err = d.openFile(format.SuperName, flags); err != nil {
			return err
		}
		if err := d.lock(); err != nil {
			return err
		}
		// The last holder may have removed it, see removeBlank.
		var st unix.Stat_t
		if err := unix.Fstat(int(d.file.Fd()), &st); err != nil || st.Nlink > 0 {
			return err
		}
		if err := d.file.Close(); err != nil {
			return err
		}
	}
}

// openFile opens a file of the directory. It never follows a link.
func (d *Dir) openFile(name string, flags int) (*os.File, error) {
	path := filepath.Join(d.path, name)
	for {
		fd, err := unix.Openat(int(d.root.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		switch err {
		case nil:
		case unix.EINTR:
			continue
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			err = unix.EINVAL // a device or a pipe
		}
		f := os.NewFile(uintptr(fd), path)
		if err != nil {
			return nil, errors.Join(&os.PathError{Op: "open", Path: path, Err: err}, f.Close())
		}
		return f, nil
	}
}

// The file systems that keep files in memory.
var memoryFilesystems = map[int64]string{
	unix.TMPFS_MAGIC:     "tmpfs",
	unix.RAMFS_MAGIC:     "ramfs",
	unix.HUGETLBFS_MAGIC: "hugetlbfs",
}

func checkFilesystem(root *os.File, allowTmpfs, write bool) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return &os.PathError{Op: "statfs", Path: root.Name(), Err: err}
	}
	if name := memoryFilesystems[int64(st.Type)]; name != "" && !(allowTmpfs && name == "tmpfs") {
		return &DirError{root.Name(), "is on " + name + ", which is memory: choose a directory on a disk", block.ErrInvalid}
	}
	if write && st.Flags&unix.ST_RDONLY != 0 {
		return &DirError{root.Name(), "is on a file system that is mounted read-only", unix.EROFS}
	}
	return nil
}

// checkOwner refuses a directory of another user, which could change its files at will.
func checkOwner(root *os.File, write bool, log *zap.Logger) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: root.Name(), Err: err}
	}
	if uid := os.Geteuid(); write && int(st.Uid) != uid {
		return &DirError{root.Name(), fmt.Sprintf("belongs to uid %d and kvfs runs as uid %d: chown the directory, or run as its owner",
			st.Uid, uid), unix.EPERM}
	}
	if write {
		if err := unix.Faccessat(int(root.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return &DirError{root.Name(), fmt.Sprintf("is not writable (mode %04o): %v", st.Mode&0o7777, err), err}
		}
	}
	if st.Mode&0o002 != 0 {
		log.Warn("every user can write to the directory of the disk tier: run chmod o-w on it",
			zap.String("dir", root.Name()), zap.String("mode", fmt.Sprintf("%04o", st.Mode&0o7777)))
	}
	return nil
}

// names lists the directory, sorted.
func (d *Dir) names() ([]string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, errors.Join(err, f.Close())
}

// refuseForeign fails if there is neither a superblock nor a slab, but some other file.
func (d *Dir) refuseForeign() error {
	names, err := d.names()
	if err != nil {
		return err
	}
	if slices.Contains(names, format.SuperName) || hasSlabs(names) {
		return nil
	}
	return d.refuseOthers(names)
}

func (d *Dir) refuseOthers(names []string) error {
	for _, name := range names {
		if !format.Ours(name) {
			return &DirError{d.path, fmt.Sprintf("is not kvfs's and holds other files, such as %q: choose an empty directory", name),
				block.ErrInvalid}
		}
	}
	return nil
}

func hasSlabs(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, ok := format.ParseSlabName(name)
		return ok
	})
}

// load reads the superblock or makes one.
func (d *Dir) load(o Options) error {
	st, err := readSuper(d.file)
	if errors.Is(err, errSuperBlank) {
		return d.initSuper(o)
	}
	if err != nil {
		return err
	}
	if bad := errors.Join(st.bad[:]...); bad != nil {
		d.log.Warn("one copy of the superblock is damaged; the other is used", zap.String("file", d.file.Name()), zap.Error(bad))
	}
	d.mu.super, d.mu.at, d.mu.other = st.super, st.at, st.other
	d.warnForeign()
	// A crash may have left an unfinished index or slab.
	for _, name := range []string{format.IndexTmpName, format.SlabTmpName} {
		if err := os.Remove(filepath.Join(d.path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (d *Dir) warnForeign() {
	names, _ := d.names()
	for _, name := range names {
		if !format.Ours(name) {
			d.log.Warn("file in the disk tier's directory is not ours and is left alone",
				zap.String("dir", d.path), zap.String("name", name))
			return
		}
	}
}

// initSuper writes the first superblock. If there are slabs, there was one, and it is lost.
func (d *Dir) initSuper(o Options) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	if hasSlabs(names) {
		lost := format.Corrupt("superblock", "nothing there")
		return &SuperblockError{Path: d.file.Name(), Bad: [2]error{lost, lost}}
	}
	if err := d.refuseOthers(names); err != nil {
		return err
	}
	if !o.Create {
		return &DirError{d.path, "was never used by kvfs", block.ErrNotFound}
	}
	d.Fresh = true
	return d.writeFirstSuper(format.Superblock{UUID: format.NewUUID(), SlabBytes: o.SlabBytes})
}

// writeFirstSuper writes both copies of a superblock over whatever was there.
func (d *Dir) writeFirstSuper(s format.Superblock) error {
	for at := range 2 {
		s.Seq++
		if err := writeSuperCopy(d.file, &s, at); err != nil {
			return err
		}
		d.mu.super, d.mu.at, d.mu.other = s, at, format.Superblock{}
	}
	return d.SyncDir()
}
