package mem

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

const tierName = "mem"

// Create implements driver.Primary. Ids ascend. A failed call may skip one. It fails with EIO if
// another program has removed the store's directories.
func (s *Store) Create() (driver.BlobID, *os.File, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return 0, nil, closedErr("create")
	}
	id, err := s.lease.take()
	if err != nil {
		return 0, nil, s.createErr(err)
	}
	f, err := s.openFile(id, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return 0, nil, s.createErr(err)
	}
	return id, f, nil
}

// createErr is kindOf for Create. It hides that something is not there: the caller would take that
// as said of the block or its directory.
func (s *Store) createErr(err error) error {
	if !errors.Is(err, unix.ENOENT) {
		return kindOf("create", err)
	}
	s.removed.Do(func() {
		s.log.Error("somebody has removed the directories of the memory tier: nothing can be written until it is opened anew",
			zap.String("dir", s.dir), zap.Error(err))
	})
	return kindOf("create", &os.PathError{Op: "create a file in a directory that was removed", Path: s.dir, Err: unix.EIO})
}

// Open implements driver.Primary.
func (s *Store) Open(id driver.BlobID) (*os.File, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return nil, closedErr("open")
	}
	f, err := s.openFile(id, unix.O_RDWR)
	if err != nil {
		return nil, kindOf("open", err)
	}
	return f, nil
}

// Commit implements driver.Primary with one system call. It fails with ErrInvalid, ErrNameTooLong or
// ErrReserved for a record that Adopt would not believe. r.Mtime must be the file's st_mtime, see
// the package comment. Commit does not check that.
func (s *Store) Commit(id driver.BlobID, f *os.File, r *driver.Record) error {
	if err := checkRecord(r); err != nil {
		return kindOf("commit", err)
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	switch {
	case s.gate.closed:
		return closedErr("commit")
	case s.attr == "":
		return nil
	}
	buf := s.bufs.Get().(*[]byte)
	*buf = appendRecord((*buf)[:0], id, r)
	err := unix.Fsetxattr(int(f.Fd()), s.attr, *buf, 0)
	s.bufs.Put(buf)
	runtime.KeepAlive(f)
	if err != nil {
		return kindOf("commit", &os.PathError{Op: "fsetxattr", Path: s.path(id), Err: err})
	}
	return nil
}

// Uncommit implements driver.Primary. It succeeds if there is no record.
func (s *Store) Uncommit(id driver.BlobID, f *os.File) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	switch {
	case s.gate.closed:
		return closedErr("uncommit")
	case s.attr == "":
		return nil
	}
	err := unix.Fremovexattr(int(f.Fd()), s.attr)
	runtime.KeepAlive(f)
	if err != nil && err != unix.ENODATA {
		return kindOf("uncommit", &os.PathError{Op: "fremovexattr", Path: s.path(id), Err: err})
	}
	return nil
}

// Remove implements driver.Primary. It fails with ErrNotFound if the file does not exist.
func (s *Store) Remove(id driver.BlobID) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return closedErr("remove")
	}
	return kindOf("remove", s.unlink(id))
}

// FreeBytes implements driver.Primary. It returns the free bytes of the tmpfs, including the
// headroom.
func (s *Store) FreeBytes() (int64, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return 0, closedErr("statfs")
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.root.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// openFile opens a blob's file. os.NewFile costs one fcntl. os.OpenFile costs fstat and epoll_ctl,
// since it offers regular files to the poller, which refuses them. The caller holds the gate.
func (s *Store) openFile(id driver.BlobID, flags int) (*os.File, error) {
	path := s.path(id)
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	for {
		fd, err := unix.Openat(s.bucket[byte(id)], path[len(path)-16:], flags, 0o600)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), path), nil
		case unix.EINTR:
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// unlink removes a blob's file. The caller holds the gate.
func (s *Store) unlink(id driver.BlobID) error {
	path := s.path(id)
	if err := unix.Unlinkat(s.bucket[byte(id)], path[len(path)-16:], 0); err != nil {
		return &os.PathError{Op: "unlink", Path: path, Err: err}
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// path returns the path of a blob's file. Its last 16 bytes are the name.
func (s *Store) path(id driver.BlobID) string {
	b := make([]byte, 0, len(s.dir)+len("/b/xx/0123456789abcdef"))
	b = append(b, s.dir...)
	b = append(b, '/')
	b = append(b, bucketName(id)...)
	b = append(b, '/')
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[id>>shift&15])
	}
	return string(b)
}

// bucketName returns "b/<xx>".
func bucketName(id driver.BlobID) string {
	return string([]byte{'b', '/', hexDigits[id>>4&15], hexDigits[id&15]})
}

// parseName is the inverse of the last component of path. It returns 0 if no blob has that name, or
// if the name is in the wrong bucket.
func parseName(name string, bucket int) driver.BlobID {
	if len(name) != 16 {
		return 0
	}
	var id driver.BlobID
	for _, c := range []byte(name) {
		switch {
		case c >= '0' && c <= '9':
			id = id<<4 | driver.BlobID(c-'0')
		case c >= 'a' && c <= 'f':
			id = id<<4 | driver.BlobID(c-'a'+10)
		default:
			return 0
		}
	}
	if int(byte(id)) != bucket {
		return 0
	}
	return id
}

func closedErr(op string) error {
	return &block.Error{Op: op, Tier: tierName, Err: block.ErrClosed}
}

// kindOf adds the kind to the kernel's error, if the engine has one for it. Nothing else in the
// package does so.
func kindOf(op string, err error) error {
	var kind error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		kind = block.ErrNotFound
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		kind = block.ErrNoSpace
	case errors.Is(err, block.ErrInvalid), errors.Is(err, block.ErrNameTooLong), errors.Is(err, block.ErrReserved):
		return &block.Error{Op: op, Tier: tierName, Err: err}
	default:
		return err
	}
	return &block.Error{Op: op, Tier: tierName, Err: fmt.Errorf("%w: %w", kind, err)}
}
