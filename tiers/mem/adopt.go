package mem

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// found is a committed file.
type found struct {
	id       driver.BlobID
	record   *driver.Record
	modified bool
}

// Adopt implements driver.Primary. fn gets the present Size and Mtime of a file. Sum is that of the
// commit, so it is void if the file was modified. A directory counts as modified only if its file
// has bytes, since its Mtime is not that of the file.
//
// The order is that of the kernel's directories. After a crash between a commit and the removal of
// the replaced file, two records may have one path. The caller keeps the one with the higher Seq.
// It removes the other itself if it has already accepted that one. A file is removed, counted and
// logged if its record is bad, or if no process of this store gave out its name.
//
// Up to GOMAXPROCS goroutines read the 256 buckets. They have ended when Adopt returns. fn is
// called under no lock. A second call fails with ErrInvalid.
func (s *Store) Adopt(fn func(id driver.BlobID, r *driver.Record, modified bool) bool) error {
	if s.adopted.Swap(true) {
		return kindOf("adopt", fmt.Errorf("a second time: %w", block.ErrInvalid))
	}
	start := time.Now()
	out := make(chan []found, 4)
	stop := make(chan struct{})
	errs := s.scan(out, stop)
	defer func() { // also if fn panics
		close(stop)
		for range out {
		}
	}()
	var refuse []error
	for batch := range out {
		for _, f := range batch {
			if fn(f.id, f.record, f.modified) {
				s.counts.adopted.Add(1)
				continue
			}
			s.counts.refused.Add(1)
			if err := s.Remove(f.id); err != nil && !errors.Is(err, block.ErrNotFound) {
				refuse = append(refuse, err)
			}
		}
	}
	if s.oversize {
		s.oversize = !remountTmpfs(s.dir, &s.opts)
	}
	st := s.Status()
	level := zap.DebugLevel
	if st.Adopted+st.Refused+st.Uncommitted+st.Damaged > 0 {
		level = zap.InfoLevel
	}
	s.log.Log(level, "memory of an earlier process read", zap.String("dir", s.dir), zap.Int64("adopted", st.Adopted),
		zap.Int64("refused", st.Refused), zap.Int64("uncommitted", st.Uncommitted),
		zap.Int64("damaged", st.Damaged), zap.Duration("took", time.Since(start)))
	return errors.Join(append(refuse, *errs...)...)
}

// scan starts the readers. They end when all buckets are read or stop is closed. The last one
// closes out. After that errs may be read.
func (s *Store) scan(out chan<- []found, stop <-chan struct{}) (errs *[]error) {
	next := make(chan int, buckets)
	for i := range buckets {
		next <- i
	}
	close(next)
	var mu sync.Mutex
	errs = new([]error)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), buckets) {
		wg.Go(func() {
			buf := make([]byte, maxRecord)
			for i := range next {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.scanBucket(i, buf, out); err != nil {
					mu.Lock()
					*errs = append(*errs, err)
					mu.Unlock()
					if errors.Is(err, block.ErrClosed) {
						return
					}
				}
			}
		})
	}
	go func() { // ends with the readers, which Adopt's drain of out waits for
		wg.Wait()
		close(out)
	}()
	return errs
}

// scanBatch is how many files are read under one hold of the gate.
const scanBatch = 512

// scanBucket sends the committed files of one bucket and removes the others.
func (s *Store) scanBucket(i int, buf []byte, out chan<- []found) error {
	names, err := s.bucketNames(i)
	for len(names) > 0 && err == nil {
		n := min(len(names), scanBatch)
		var batch []found
		batch, err = s.readBatch(i, names[:n], buf)
		names = names[n:]
		if len(batch) > 0 {
			out <- batch
		}
	}
	return err
}

// bucketNames lists a bucket in full first, so that removals do not disturb it.
func (s *Store) bucketNames(i int) ([]string, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return nil, closedErr("adopt")
	}
	fd, err := unix.Openat(s.bucket[i], ".", dirFlags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: s.dir + "/" + bucketName(driver.BlobID(i)), Err: err}
	}
	f := os.NewFile(uintptr(fd), s.dir+"/"+bucketName(driver.BlobID(i)))
	defer f.Close()
	return f.Readdirnames(-1)
}

func (s *Store) readBatch(i int, names []string, buf []byte) ([]found, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return nil, closedErr("adopt")
	}
	batch := make([]found, 0, len(names))
	for _, name := range names {
		f, err := s.readFile(i, name, buf)
		switch {
		case err == nil:
			batch = append(batch, f)
			continue
		case err == unix.ENODATA:
			s.counts.uncommitted.Add(1)
		default:
			level := zap.WarnLevel
			if s.counts.damaged.Add(1) > 10 { // the count at the end includes the rest
				level = zap.DebugLevel
			}
			s.log.Log(level, "file in the memory tier removed",
				zap.String("file", bucketName(driver.BlobID(i))+"/"+name), zap.Error(err))
		}
		if err := unlinkAny(s.bucket[i], name); err != nil {
			return batch, &os.PathError{Op: "unlink", Path: s.dir + "/" + bucketName(driver.BlobID(i)) + "/" + name, Err: err}
		}
	}
	return batch, nil
}

// readFile returns a committed file, ENODATA if it has no record, or an error with the damage. It
// reads the attribute by path, with two system calls per file; opening the file takes four. The
// caller holds the gate.
func (s *Store) readFile(i int, name string, buf []byte) (found, error) {
	id := parseName(name, i)
	if id == 0 || id >= s.lease.first {
		return found{}, fmt.Errorf("name %q: %w", name, block.ErrCorrupt)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(s.bucket[i], name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return found{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return found{}, fmt.Errorf("file type %#o: %w", st.Mode&unix.S_IFMT, block.ErrCorrupt)
	}
	if s.attr == "" {
		return found{}, unix.ENODATA
	}
	n, err := unix.Lgetxattr(s.path(id), s.attr, buf)
	if err != nil {
		return found{}, err
	}
	owner, r, err := decodeRecord(buf[:n])
	switch {
	case err != nil:
		return found{}, err
	case owner != id:
		return found{}, fmt.Errorf("record of blob %016x: %w", uint64(owner), block.ErrCorrupt)
	case r.Dir:
		return found{id: id, record: r, modified: st.Size != 0}, nil
	}
	mtime := time.Unix(st.Mtim.Sec, st.Mtim.Nsec)
	modified := st.Size != r.Size || !mtime.Equal(r.Mtime)
	r.Size, r.Mtime = st.Size, mtime
	return found{id: id, record: r, modified: modified}, nil
}

// unlinkAny removes a name from a bucket, also that of an empty directory.
func unlinkAny(fd int, name string) error {
	err := unix.Unlinkat(fd, name, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}
