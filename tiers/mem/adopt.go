package mem

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
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
// The order is about that of the ids. After a crash between a commit and the removal of the
// replaced file, two records may have one path. The caller keeps the one with the higher Seq. It
// removes the other itself if it has already accepted that one. A file is removed, counted and
// logged if its record is bad, or if no process of this store gave out its name.
//
// Up to GOMAXPROCS goroutines read the files. They have ended when Adopt returns. fn is called
// under no lock. A second call fails with ErrInvalid.
func (s *Store) Adopt(fn func(id driver.BlobID, r *driver.Record, modified bool) bool) error {
	if s.adopted.Swap(true) {
		return kindOf("adopt", fmt.Errorf("a second time: %w", block.ErrInvalid))
	}
	start := time.Now()
	out := make(chan []found, 4)
	stop := make(chan struct{})
	var failed error
	go func() { // ends when all files are read or stop is closed, which the drain of out waits for
		failed = s.scan(out, stop)
		close(out)
	}()
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
	return errors.Join(append(refuse, failed)...)
}

// scanBatch is how many files are read under one hold of the gate.
const scanBatch = 512

// scan sends the committed files and removes the others. It reads them in the order of their ids,
// which is about that in which the kernel has allocated what it keeps of them. The same system
// calls in the order of the directories take 1.4 times as long.
func (s *Store) scan(out chan<- []found, stop <-chan struct{}) error {
	var listed [buckets][]driver.BlobID
	err := each(buckets, stop, func(i int) (err error) {
		listed[i], err = s.bucketIDs(i)
		return err
	})
	ids := slices.Concat(listed[:]...)
	slices.Sort(ids)
	batches, at := slices.Collect(slices.Chunk(ids, scanBatch)), s.hasGetxattrat()
	return errors.Join(err, each(len(batches), stop, func(i int) error {
		batch, err := s.readBatch(batches[i], at)
		out <- batch
		return err
	}))
}

// each calls fn with the numbers below n in ascending order, on up to GOMAXPROCS goroutines, until
// stop is closed or the store is. It returns the errors when all calls have ended.
func each(n int, stop <-chan struct{}, fn func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, n)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				select {
				case <-stop:
					return
				default:
				}
				if errs[i] = fn(int(i)); errors.Is(errs[i], block.ErrClosed) {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// bucketIDs returns the ids in a bucket and removes files with other names. It lists the bucket in
// full first, so that removals do not disturb it.
func (s *Store) bucketIDs(i int) ([]driver.BlobID, error) {
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
	names, err := f.Readdirnames(-1)
	ids := make([]driver.BlobID, 0, len(names))
	for _, name := range names {
		id := parseName(name, i)
		if id != 0 && id < s.lease.first {
			ids = append(ids, id)
		} else if e := s.reject(i, name, fmt.Errorf("name %q: %w", name, block.ErrCorrupt)); e != nil {
			return ids, errors.Join(err, e)
		}
	}
	return ids, err
}

// reject removes a file that has no record, or the damage err. The caller holds the gate.
func (s *Store) reject(bucket int, name string, err error) error {
	path := bucketName(driver.BlobID(bucket)) + "/" + name
	if err == unix.ENODATA {
		s.counts.uncommitted.Add(1)
	} else {
		level := zap.WarnLevel
		if s.counts.damaged.Add(1) > 10 { // the count at the end includes the rest
			level = zap.DebugLevel
		}
		s.log.Log(level, "file in the memory tier removed", zap.String("file", path), zap.Error(err))
	}
	if err := unlinkAny(s.bucket[bucket], name); err != nil {
		return &os.PathError{Op: "unlink", Path: s.dir + "/" + path, Err: err}
	}
	return nil
}

// readBatch returns the committed files among ids and removes the others. at: the kernel has
// getxattrat.
func (s *Store) readBatch(ids []driver.BlobID, at bool) ([]found, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.gate.closed {
		return nil, closedErr("adopt")
	}
	r := reader{s: s, at: at, attr: append([]byte(s.attr), 0), buf: make([]byte, maxRecord)}
	batch := make([]found, 0, len(ids))
	for _, id := range ids {
		name := nameOf(id)
		f, err := r.read(id, &name)
		if err == nil {
			batch = append(batch, f)
		} else if err := s.reject(int(byte(id)), string(name[:16]), err); err != nil {
			return batch, err
		}
	}
	return batch, nil
}

// reader reads files of a store. The caller holds the gate.
type reader struct {
	s    *Store
	at   bool
	attr []byte // name of the record attribute, and a zero
	buf  []byte // of maxRecord bytes
}

// shortRecord holds most records. The kernel clears as many bytes as a caller has room for.
const shortRecord = 512

// record reads the record of a file into buf and returns its length.
func (r *reader) record(id driver.BlobID, name *fileName) (int, error) {
	if !r.at {
		return unix.Lgetxattr(r.s.path(id), r.s.attr, r.buf)
	}
	n, err := getxattrat(r.s.bucket[byte(id)], name, r.attr, r.buf[:shortRecord])
	if err == unix.ERANGE {
		n, err = getxattrat(r.s.bucket[byte(id)], name, r.attr, r.buf)
	}
	return n, err
}

// read returns a committed file, ENODATA if it has no record, or an error with the damage. It
// reads the attribute by name, with two system calls per file; opening the file takes four.
func (r *reader) read(id driver.BlobID, name *fileName) (found, error) {
	var st unix.Stat_t
	if err := fstatat(r.s.bucket[byte(id)], name, &st); err != nil {
		return found{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return found{}, fmt.Errorf("file type %#o: %w", st.Mode&unix.S_IFMT, block.ErrCorrupt)
	}
	if r.s.attr == "" {
		return found{}, unix.ENODATA
	}
	n, err := r.record(id, name)
	if err != nil {
		return found{}, err
	}
	owner, rec, err := decodeRecord(r.buf[:n])
	switch {
	case err != nil:
		return found{}, err
	case owner != id:
		return found{}, fmt.Errorf("record of blob %016x: %w", uint64(owner), block.ErrCorrupt)
	case rec.Dir:
		return found{id: id, record: rec, modified: st.Size != 0}, nil
	}
	mtime := time.Unix(st.Mtim.Sec, st.Mtim.Nsec)
	modified := st.Size != rec.Size || !mtime.Equal(rec.Mtime)
	rec.Size, rec.Mtime = st.Size, mtime
	return found{id: id, record: rec, modified: modified}, nil
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
