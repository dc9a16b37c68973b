package directio

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ProbeResult describes the direct I/O of a directory.
type ProbeResult struct {
	FileSystem string // "ext4", "xfs", "tmpfs", ...; the magic number in hex if unknown

	// Direct says that the file system states its alignment (statx STATX_DIOALIGN). File systems
	// with real direct I/O do so. On others O_DIRECT works but is only a hint: data may go through
	// the page cache (btrfs), or there is no device at all (tmpfs).
	Direct bool

	MemAlignBytes    int // required by the file system; 0 unless Direct
	OffsetAlignBytes int
}

// String returns the same in words.
func (r ProbeResult) String() string {
	if !r.Direct {
		return r.FileSystem + ": O_DIRECT is only a hint here"
	}
	return fmt.Sprintf("%s: direct I/O, memory aligned to %d bytes, offsets to %d", r.FileSystem, r.MemAlignBytes, r.OffsetAlignBytes)
}

// Probe tests O_DIRECT in dir. It makes a file there without a name, or removes the name at once.
// It writes a pattern directly, reads it back and compares.
//
// It fails with:
//   - ErrNotDirect if the file system refuses O_DIRECT or needs more than Alignment
//   - ErrSelfTest if it read other bytes than it wrote
//   - the errno of any other failure: ENOENT, EACCES, EROFS, ENOSPC, EIO
func Probe(dir string) (ProbeResult, error) {
	var r ProbeResult
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return r, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	r.FileSystem = fileSystemName(fs.Type)
	f, err := openProbe(dir)
	if err != nil {
		return r, err
	}
	err = r.align(f)
	if err == nil {
		err = selfTest(f)
	}
	if err != nil {
		err = fmt.Errorf("directio: probe of %s on %s: %w", dir, r.FileSystem, err)
	}
	return r, errors.Join(err, f.Close())
}

// ErrSelfTest says that Probe read other bytes than it had written.
var ErrSelfTest = errors.New("read back other bytes than were written")

// openProbe makes the file of Probe, without a name if the file system can do that.
func openProbe(dir string) (*File, error) {
	f, err := OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, ErrNotDirect) {
		return f, err
	}
	// Make the file without O_DIRECT first: a file system that refuses O_DIRECT at open has created
	// the file by then.
	named, err := os.CreateTemp(dir, ".kvfs-probe-*")
	if err != nil {
		return nil, err
	}
	f, err = OpenFile(named.Name(), os.O_RDWR, 0)
	if err = errors.Join(err, os.Remove(named.Name()), named.Close()); err != nil && f != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, err
}

// align asks the file system for its alignment.
func (r *ProbeResult) align(f *File) error {
	var st unix.Statx_t
	err := unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return os.NewSyscallError("statx", err)
	}
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return nil
	}
	if st.Dio_offset_align == 0 {
		return fmt.Errorf("statx says that direct I/O is not supported: %w", ErrNotDirect)
	}
	r.Direct = true
	r.MemAlignBytes, r.OffsetAlignBytes = int(st.Dio_mem_align), int(st.Dio_offset_align)
	if r.MemAlignBytes > Alignment || r.OffsetAlignBytes > Alignment {
		return fmt.Errorf("memory must be aligned to %d bytes and offsets to %d, above %d: %w",
			r.MemAlignBytes, r.OffsetAlignBytes, Alignment, ErrNotDirect)
	}
	return nil
}

// selfTest writes two pages, reads them back and compares.
func selfTest(f *File) (err error) {
	const size = 2 * Alignment
	mem, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mem))) }()
	written, read := mem[:size], mem[size:]
	for i := range written {
		written[i] = byte(i*7 + i>>8)
	}
	for _, step := range []struct {
		name string
		call func(int, []byte, int64) (int, error)
		mem  []byte
	}{{"write", unix.Pwrite, written}, {"read", unix.Pread, read}} {
		n, err := step.call(f.fd, step.mem, 0)
		for errors.Is(err, unix.EINTR) {
			n, err = step.call(f.fd, step.mem, 0)
		}
		if err != nil {
			return fmt.Errorf("self-test: %w", os.NewSyscallError(step.name, err))
		}
		if n != size {
			return fmt.Errorf("self-test: %s of %d bytes moved %d: %w", step.name, size, n, ErrSelfTest)
		}
	}
	if !bytes.Equal(written, read) {
		return fmt.Errorf("self-test: %w", ErrSelfTest)
	}
	return nil
}

// fileSystemName returns the name for the magic number of statfs.
//
// Source: linux/magic.h.
func fileSystemName(magic int64) string {
	switch uint32(magic) {
	case unix.EXT4_SUPER_MAGIC: // ext2 and ext3 have the same number
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case unix.RAMFS_MAGIC:
		return "ramfs"
	case unix.CEPH_SUPER_MAGIC:
		return "ceph"
	case 0x2fc12fc1:
		return "zfs"
	}
	return fmt.Sprintf("%#x", uint32(magic))
}
