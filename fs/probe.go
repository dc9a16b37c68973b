package fs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers/block"
)

// The probe is a file of the control directory that no listing shows. Each open of it puts known bytes
// into the memory tier and opens them as a block is opened. They are removed when it is closed.
const (
	probeName = "probe"
	probeIno  = controlBase + 1<<20
)

var probeFile = &control.File{Name: probeName}

// probeTime bounds the self-test: a mount that answers does so in a millisecond.
const probeTime = 10 * time.Second

// probeContent returns the bytes of the probe: many pages, and a part of one. They are the same in all
// versions of kvfs, for the process that mounts and the one that answers may be of two.
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

// ErrSelfTest: what is read through the mount is not what memory holds.
var ErrSelfTest = errors.New("self-test: the mount does not give back what memory holds")

// noVerdict are errors that say nothing about the way of the bytes: an owner of an earlier version has no
// probe, a process that is not root may not open it, memory is full, the mount is gone or slow.
var noVerdict = []error{
	unix.ENOENT, unix.EACCES, unix.ENOSPC, unix.ESTALE, unix.ENOTCONN, unix.ECONNABORTED, os.ErrDeadlineExceeded,
}

// SelfTest reads the probe through the mount at dir, which answers, and compares. It is called by who
// mounts. passthrough says how the mount reads now. If that fails, and auto is set, SelfTest calls fall,
// which has the mount read in the other way, and tries that. tested is false if nothing could be compared.
func SelfTest(dir string, passthrough, auto bool, log *zap.Logger, fall func(why error) error) (tested bool, err error) {
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

// selfTest is SelfTest of a mount of this process. Without passthrough the kernel refuses (EIO) to open
// what a client has had open with it, until that is closed.
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

// Tested reports whether what is read through the mount was compared with what memory holds.
func (s *Server) Tested() bool { return s.tested }

// readBack is readProbe for no longer than probeTime.
func readBack(dir string, mapped bool) error {
	done := make(chan error, 1)
	go func() { // ends when the mount has answered, or is gone
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

// readProbe compares the probe at path. What waits for the daemon, which may be this process, is a system
// call each: Go's runtime can do without its thread. It cannot while a page fault waits, so mapped is for
// what the kernel maps without the daemon.
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

// sameMapped compares a mapping. Bytes that cannot be had (SIGBUS) are others.
func sameMapped(m, want []byte) (same bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { same = recover() == nil && same }()
	return bytes.Equal(m, want)
}
