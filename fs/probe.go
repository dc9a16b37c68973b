package fs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/block"
)

// The probe is a file of the control directory that no listing shows. Each open puts known
// bytes into the memory tier and opens them like a block. The close removes them.
const (
	probeName = "probe"
	probeIno  = controlBase + 1<<20
)

var probeFile = &control.File{Name: probeName}

// probeTime bounds the self-test, which takes about a millisecond.
const probeTime = 10 * time.Second

// probeContent returns the bytes of the probe: many pages and a part of one. All versions of kvfs use the
// same bytes, because the mounting and the answering process may differ in version.
func probeContent() []byte {
	b := make([]byte, 1<<18+123)
	rand.NewChaCha8([32]byte{'k', 'v', 'f', 's'}).Read(b)
	return b
}

// openProbe opens the probe for reading.
func (f *files) openProbe(out *fuse.OpenOut) fuse.Status {
	blob, file, done, err := f.engine.Probe()
	if err != nil {
		return fuse.Status(syscall.ENOSPC)
	}
	if _, err := file.Write(probeContent()); err != nil {
		done()
		return fuse.Status(syscall.ENOSPC)
	}
	h := &handle{done: done}
	if f.direct.Load() {
		h.passthrough, h.blob, out.OpenFlags = true, blob, fuse.FOPEN_PASSTHROUGH
		out.BackingID, err = f.backings.acquire(blob, nil)
	} else {
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
		h.file, err = f.engine.OpenBlob(blob)
	}
	if err != nil {
		f.log.Error("open the probe", zap.Error(err))
		done()
		return fuse.EIO
	}
	out.OpenFlags |= fuse.FOPEN_NOFLUSH
	out.Fh = f.handles.add(h, fhHandle)
	return fuse.OK
}

// awaitTest holds the open of a block back until the self-test of a resumed mount has passed: clients ask before.
func (f *files) awaitTest(unique uint64) fuse.Status {
	if f.tested == nil {
		return fuse.OK
	}
	select {
	case <-f.tested:
		return fuse.OK
	default:
	}
	f.kernel.MayBlock(unique)
	select {
	case <-f.tested:
		return fuse.OK
	case <-f.ctx.Done(): // the next owner answers
		return fuse.EINTR
	}
}

// ErrSelfTest reports that a read through the mount differed from memory.
var ErrSelfTest = errors.New("self-test: the mount does not give back what memory holds")

// noVerdict lists errors that say nothing about the bytes: an owner of an earlier version has no probe, a
// process that is not root may not open it, memory is full, the mount is gone or slow.
var noVerdict = []error{
	unix.ENOENT, unix.EACCES, unix.ENOSPC, unix.ESTALE, unix.ENOTCONN, unix.ECONNABORTED, os.ErrDeadlineExceeded,
}

// SelfTest reads the probe through the mount at dir, which must answer, and compares the bytes.
// The mounting process calls it. passthrough says how the mount reads now. If that fails and
// auto is set, SelfTest calls fall, which switches the mount to the other way, and tries again.
// tested is false if nothing could be compared.
func SelfTest(dir string, passthrough, auto bool, log *zap.Logger, fall func(why error) error) (tested bool, err error) {
	log.Debug("self-test begins", zap.String("dir", dir))
	err = readBack(dir, passthrough)
	switch {
	case slices.ContainsFunc(noVerdict, func(e error) bool { return errors.Is(err, e) }):
		log.Warn("self-test: nothing could be compared", zap.String("dir", dir), zap.Error(err))
		return false, nil
	case err == nil || !passthrough:
		return true, err
	case !auto:
		return true, fmt.Errorf("%w: %w", ErrPassthrough, err)
	}
	log.Warn("passthrough fails: going on without", zap.String("dir", dir), zap.Error(err))
	if err := fall(err); err != nil {
		return true, err
	}
	return SelfTest(dir, false, auto, log, nil)
}

// selfTest is SelfTest for a mount of this process. After passthrough is switched off, the kernel answers
// EIO to opens of a file that a client has had open with passthrough, until that file is closed.
func (s *Server) selfTest() (err error) {
	s.tested, err = SelfTest(s.opts.Dir, s.files.direct.Load(), s.opts.Passthrough != On, s.log, func(why error) error {
		s.files.direct.Store(false)
		s.reason = why.Error()
		return nil
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.opts.Dir, err)
	}
	return nil
}

// Tested reports whether bytes read through the mount were compared with memory.
func (s *Server) Tested() bool { return s.tested }

// readBack calls readProbe and waits at most probeTime.
func readBack(dir string, mapped bool) error {
	done := make(chan error, 1)
	go func() { // ends when the mount has answered, or is gone
		runtime.LockOSThread() // and ends with the goroutine
		if err := ownDescriptors(); err != nil {
			done <- err
			return
		}
		done <- readProbe(filepath.Join(dir, block.Reserved, probeName), mapped)
	}()
	t := time.NewTimer(probeTime)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return os.ErrDeadlineExceeded
	}
}

// ownDescriptors gives the calling thread a table of descriptors of its own, and closes those in it. Call it with the
// thread locked.
//
// If this process is killed while the thread waits for an answer that the process itself has begun, the kernel lets the
// thread end only after the answer. With the descriptors of the process it would keep the lock of the memory and the
// connection to the daemon before, which then could not take the mount back and answer.
func ownDescriptors() error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return device.CloseOthers(-1)
}

// readProbe compares the probe at path. Each wait for the daemon is a system call, because the
// daemon may be this process and Go's runtime can release a thread in a system call. It cannot
// during a page fault, so set mapped only if the kernel maps the file without the daemon.
func readProbe(path string, mapped bool) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("%w: open: %w", ErrSelfTest, err)
	}
	defer unix.Close(fd)
	want := probeContent()
	got := make([]byte, len(want)+1)
	n, err := unix.Pread(fd, got, 0)
	for err == unix.EINTR {
		n, err = unix.Pread(fd, got, 0)
	}
	if err == nil && !bytes.Equal(got[:n], want) {
		err = errors.New("wrong bytes")
	}
	if err != nil {
		return fmt.Errorf("%w: read: %w", ErrSelfTest, err)
	}
	if !mapped {
		return nil
	}
	m, err := unix.Mmap(fd, 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("%w: mmap: %w", ErrSelfTest, err)
	}
	defer unix.Munmap(m)
	if !sameMapped(m, want) {
		return fmt.Errorf("%w: mmap: wrong bytes", ErrSelfTest)
	}
	return nil
}

// sameMapped compares a mapping. A page that raises SIGBUS counts as different.
func sameMapped(m, want []byte) (same bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { same = recover() == nil && same }()
	return bytes.Equal(m, want)
}
