package mem

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

const (
	buckets = 256

	// leaseIDs is how many BlobIDs one write to kvfs-memory reserves.
	leaseIDs = 1 << 32

	// teardownWait bounds how long Close waits for another process that attaches
	// or lists a store, which takes milliseconds.
	teardownWait = 10 * time.Second
)

// Store is the primary tier in one directory; see the package comment. Its
// methods may be called in parallel; Close waits for those in progress.
type Store struct {
	// Constant after Open.
	log       *zap.Logger
	opts      Options
	place     place
	dir       string
	root      *os.File
	lock      *os.File
	bucket    [buckets]int // descriptors of b/<xx>
	mounted   bool
	fresh     bool   // made by Open: there is nothing of an earlier process
	attr      string // name of the record attribute; empty if there is none
	discarded string
	first     tiers.BlobID // this process gives out ids from here
	oversize  bool         // the tmpfs is still larger than Options say; used by Adopt only

	// Atomic.
	next    atomic.Uint64 // id of the next blob
	limit   atomic.Uint64 // what kvfs-memory says; INVARIANT: ids given out are below
	adopted atomic.Bool
	counts  struct{ adopted, refused, uncommitted, damaged atomic.Int64 }
	bufs    sync.Pool // *[]byte for records
	removed sync.Once // tells that the directories are gone

	// Mutable. See "Locks" in the package comment.
	gate struct {
		sync.RWMutex
		closed bool
	}
	mu struct { // below gate
		sync.Mutex
		format format // as written last
	}
}

var _ tiers.Primary = (*Store)(nil)

// Status is what a store says about itself.
type Status struct {
	Dir       string
	Mounted   bool   // a tmpfs of its own
	Adoptable bool   // records work: a later process can adopt the blocks
	Attr      string // extended attribute of the records; empty if not Adoptable
	Discarded string // why Open discarded an earlier store; empty if it did not

	// What Adopt found. Uncommitted and damaged files were removed.
	Adopted, Refused, Uncommitted, Damaged int64
}

// Open opens the store, mounting what must be mounted. What an earlier process
// left is kept for Adopt, or discarded if it cannot be trusted.
//
// It fails with ErrInvalid for bad Options, a NUMA policy that cannot be, or a directory with other files in
// it, *BusyError if another process has the store open, ErrNoSpace, the error of
// ctx while another process attaches or takes down a store beside it, and
// *os.PathError. What Open mounted or made it then takes down again.
func Open(ctx context.Context, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	places := o.places()
	for i, p := range places {
		s := &Store{log: o.Logger, opts: o, place: p, dir: p.dir()}
		s.bufs.New = func() any { b := make([]byte, 0, maxRecord); return &b }
		err = s.open(ctx)
		if err == nil {
			return s, nil
		}
		refused := errors.Is(err, errNoMount) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES)
		if i == len(places)-1 || !p.mount || !refused {
			break
		}
		o.Logger.Warn("no tmpfs of its own for the memory tier: using one that is there", zap.Error(err))
	}
	return nil, kindOf("open", err)
}

// open attaches the directory under the setup lock.
func (s *Store) open(ctx context.Context) error {
	parent, err := openParent(ctx, s.place, true)
	if err != nil {
		return err
	}
	defer parent.Close()
	a, err := attach(parent, s.place, &s.opts)
	if err != nil {
		return err
	}
	s.root, s.mounted, s.fresh = a.root, a.mounted, a.fresh
	if err = s.load(a.fresh); err == nil {
		return nil
	}
	s.release()
	if a.fresh {
		if root, e := openDirAt(parent, s.place.name, s.dir); e == nil {
			err = errors.Join(err, detach(parent, s.place, root, s.mounted))
		}
	}
	return err
}

// load takes the store's lock and gets ready what is inside.
func (s *Store) load(fresh bool) error {
	var err error
	if err = s.checkForeign(); err != nil {
		return err
	}
	if s.lock, err = openLock(s.root, unix.O_RDWR|unix.O_CREAT); err != nil {
		return err
	}
	if err = writePID(s.lock); err != nil {
		return err
	}
	if err = checkNUMA(s.dir, s.mounted, fresh, &s.opts); err != nil {
		return err
	}
	if s.mounted && !fresh {
		s.oversize = !remountTmpfs(s.dir, &s.opts)
	}
	s.warnFileSystem()
	s.probeAttr()
	f, err := s.loadFormat(fresh)
	if err != nil {
		return err
	}
	s.first = tiers.BlobID(max(f.next, 1))
	s.next.Store(uint64(s.first))
	s.limit.Store(uint64(s.first))
	s.mu.format = f
	if err = s.extendLease(uint64(s.first)); err != nil {
		return err
	}
	return s.openBuckets()
}

// checkForeign refuses a directory of someone else's files before it is touched.
func (s *Store) checkForeign() error {
	f, err := openDirAt(s.root, ".", s.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	if !s.mounted && !looksOurs(names) {
		return fmt.Errorf("%s is not empty and no store: %w", s.dir, block.ErrInvalid)
	}
	return nil
}

// loadFormat returns the format of a store that can be trusted, or empties the
// directory and returns a new one.
func (s *Store) loadFormat(fresh bool) (format, error) {
	uid := os.Geteuid()
	f, err := readFormat(s.root)
	var st unix.Stat_t
	if e := unix.Fstat(int(s.root.Fd()), &st); e != nil {
		return f, &os.PathError{Op: "stat", Path: s.dir, Err: e}
	}
	reason := ""
	switch {
	case err != nil && !errors.Is(err, iofs.ErrNotExist):
		reason = err.Error()
	case err != nil && !fresh && exists(s.root, bucketsName):
		reason = "no " + formatName
	case int(st.Uid) != uid:
		reason = fmt.Sprintf("directory of uid %d", st.Uid)
	case err == nil && f.uid != uid:
		reason = fmt.Sprintf("store of uid %d", f.uid)
	case err == nil && f.id != s.opts.ID:
		reason = fmt.Sprintf("store %q, not %q", f.id, s.opts.ID)
	case err == nil && f.attr != s.attr:
		reason = fmt.Sprintf("records in attribute %q, not %q", f.attr, s.attr)
	}
	if err == nil && reason == "" {
		return f, nil
	}
	if err := claimDir(s.root, true); err != nil {
		return f, err
	}
	if reason != "" {
		s.discarded = reason
		s.log.Warn("memory of an earlier process discarded", zap.String("dir", s.dir), zap.String("reason", reason))
		if err := wipe(s.root, s.mounted); err != nil {
			return f, err
		}
	}
	return format{id: s.opts.ID, label: s.opts.Label, uid: uid, attr: s.attr, next: 1}, nil
}

func exists(root *os.File, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(int(root.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// probeAttr finds the attribute that records go into, by trying on the lock file.
func (s *Store) probeAttr() {
	var err error
	for _, attr := range []string{"user.kvfs.record", "trusted.kvfs.record"} {
		if err = unix.Fsetxattr(int(s.lock.Fd()), attr, []byte("probe"), 0); err == nil {
			unix.Fremovexattr(int(s.lock.Fd()), attr)
			s.attr = attr
			return
		}
		if err == unix.ENOSPC { // the kind is supported, and the store full
			s.attr = attr
			return
		}
	}
	s.log.Warn("no extended attributes here: a restart will lose the memory tier",
		zap.String("dir", s.dir), zap.Error(err))
}

// warnFileSystem tells about a directory that will not do what is asked of it.
func (s *Store) warnFileSystem() {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.root.Fd()), &st); err != nil {
		return
	}
	if st.Type != unix.TMPFS_MAGIC {
		s.log.Warn("memory tier not on tmpfs: blocks go to the device of this file system", zap.String("dir", s.dir))
	}
}

// RoomBytes returns how much the file system of a store without a tmpfs of its own can hold of the
// store's: what is free, and what the store has already. Of one with its own that is what was asked for.
func (s *Store) RoomBytes() (int64, error) {
	if s.mounted {
		return s.opts.SizeBytes + s.opts.HeadroomBytes, nil
	}
	free, err := s.FreeBytes()
	if err != nil {
		return 0, err
	}
	used, err := usedBytes(s.root, false)
	return free + used, err
}

// openBuckets makes and opens the 256 directories.
func (s *Store) openBuckets() error {
	for i := -1; i < buckets; i++ {
		name := bucketsName
		if i >= 0 {
			name = bucketName(tiers.BlobID(i))
		}
		err := unix.Mkdirat(int(s.root.Fd()), name, 0o700)
		if err != nil && err != unix.EEXIST {
			return &os.PathError{Op: "mkdir", Path: filepath.Join(s.dir, name), Err: err}
		}
		fd, err := unix.Openat(int(s.root.Fd()), name, dirFlags, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: filepath.Join(s.dir, name), Err: err}
		}
		if i < 0 {
			unix.Close(fd)
			continue
		}
		s.bucket[i] = fd // never 0: standard input, root and lock are open
	}
	return nil
}

// extendLease makes the limit exceed id. A crash after the write only skips ids.
func (s *Store) extendLease(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < s.limit.Load() {
		return nil
	}
	f := s.mu.format
	f.next = id + leaseIDs
	path := filepath.Join(s.dir, formatName)
	fd, err := unix.Openat(int(s.root.Fd()), formatName, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b := f.encode()
	if n, err := unix.Pwrite(fd, b, 0); err != nil || n != len(b) {
		return &os.PathError{Op: "write", Path: path, Err: errors.Join(err, unix.Ftruncate(fd, 0))}
	}
	s.mu.format = f
	s.limit.Store(f.next)
	return nil
}

// Fresh reports whether Open has made the store: then Close without keep loses nothing of an earlier process.
func (s *Store) Fresh() bool { return s.fresh }

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.dir }

// Status returns what the store says about itself. It does no system call.
func (s *Store) Status() Status {
	return Status{
		Dir: s.dir, Mounted: s.mounted, Adoptable: s.attr != "", Attr: s.attr, Discarded: s.discarded,
		Adopted: s.counts.adopted.Load(), Refused: s.counts.refused.Load(),
		Uncommitted: s.counts.uncommitted.Load(), Damaged: s.counts.damaged.Load(),
	}
}

// Close waits for calls in progress and removes everything: files, mount and
// directory. With keep it only lets go, so that a later Open can adopt what is
// committed; if the store is not adoptable, keep means nothing. Files that are
// open stay usable until they are closed. A second call does nothing.
func (s *Store) Close(keep bool) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.gate.closed {
		return nil
	}
	s.gate.closed = true
	if keep && s.attr != "" {
		s.release()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownWait)
	defer cancel()
	parent, err := openParent(ctx, s.place, false)
	if err != nil {
		// At least free the memory, while the lock is still ours.
		err = errors.Join(err, wipe(s.root, s.mounted))
		s.release()
		return err
	}
	defer parent.Close()
	root := s.root
	s.root = nil
	s.release()
	return detach(parent, s.place, root, s.mounted)
}

// release closes all descriptors, the lock's last.
func (s *Store) release() {
	for i, fd := range s.bucket {
		if fd != 0 {
			unix.Close(fd)
			s.bucket[i] = 0
		}
	}
	if s.root != nil {
		s.root.Close()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}
