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

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

const buckets = 256

// Store is the primary tier in one directory; see the package comment. Its methods may be called in
// parallel. Close waits for the calls in progress.
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
	fresh     bool   // made by Open: no earlier process left anything
	attr      string // name of the record attribute; empty if there is none
	discarded string
	oversize  bool // the tmpfs is still larger than Options say; only Adopt uses it

	// Atomic.
	adopted atomic.Bool
	counts  struct{ adopted, refused, uncommitted, damaged atomic.Int64 }
	bufs    sync.Pool // *[]byte for records
	removed sync.Once // logs once that the directories are gone

	// Mutable. See "Locks" in the package comment.
	gate struct {
		sync.RWMutex
		closed bool
	}
	lease lease // its lock is below gate
}

var _ driver.Primary = (*Store)(nil)

// Status describes a store.
type Status struct {
	Dir       string
	Mounted   bool   // a tmpfs of its own
	Adoptable bool   // records work, so a later process can adopt the blocks
	Attr      string // extended attribute of the records; empty if not Adoptable
	Discarded string // why Open discarded an earlier store; empty if it did not

	// What Adopt found. Uncommitted and damaged files were removed.
	Adopted, Refused, Uncommitted, Damaged int64
}

// Open opens the store and mounts its tmpfs if needed. It keeps what an earlier process left for
// Adopt, or discards it if it cannot be trusted.
//
// If it fails, it undoes what it mounted or made. It fails with:
//   - ErrInvalid for bad Options, an impossible NUMA policy, or a directory with other files
//   - *BusyError if another process has the store open
//   - ErrNoSpace
//   - the error of ctx while another process attaches or removes a store beside it
//   - *os.PathError
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
	parent, err := openParent(ctx, s.place, true, unix.LOCK_EX)
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
			rest, e := detach(parent, s.place, root, s.mounted)
			rest.Close()
			err = errors.Join(err, e)
		}
	}
	return err
}

// load takes the store's lock and prepares the content.
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
	if err = s.lease.open(s.root, s.dir, f); err != nil {
		return err
	}
	return s.openBuckets()
}

// checkForeign refuses a directory with files of others before anything in it changes.
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

// loadFormat returns the format of a store that can be trusted. Else it empties the directory and
// returns a new format.
func (s *Store) loadFormat(fresh bool) (format, error) {
	f, err := readFormat(s.root)
	var st unix.Stat_t
	if e := unix.Fstat(int(s.root.Fd()), &st); e != nil {
		return f, &os.PathError{Op: "stat", Path: s.dir, Err: e}
	}
	reason := s.distrust(f, err, fresh, int(st.Uid))
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
	return format{id: s.opts.ID, label: s.opts.Label, uid: os.Geteuid(), attr: s.attr, next: 1}, nil
}

// distrust returns why the store in the directory of owner cannot be trusted, "" if it can, or if there is none. f and
// err are the results of readFormat.
func (s *Store) distrust(f format, err error, fresh bool, owner int) string {
	uid := os.Geteuid()
	switch {
	case err != nil && !errors.Is(err, iofs.ErrNotExist):
		return err.Error()
	case err != nil && !fresh && exists(s.root, bucketsName):
		return "no " + formatName
	case owner != uid:
		return fmt.Sprintf("directory of uid %d", owner)
	case err != nil:
		return ""
	case f.uid != uid:
		return fmt.Sprintf("store of uid %d", f.uid)
	case f.id != s.opts.ID:
		return fmt.Sprintf("store %q, not %q", f.id, s.opts.ID)
	case f.attr != s.attr:
		return fmt.Sprintf("records in attribute %q, not %q", f.attr, s.attr)
	}
	return ""
}

func exists(root *os.File, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(int(root.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// probeAttr finds the attribute for records. It tries each on the lock file.
func (s *Store) probeAttr() {
	var err error
	for _, attr := range []string{"user.kvfs.record", "trusted.kvfs.record"} {
		if err = unix.Fsetxattr(int(s.lock.Fd()), attr, []byte("probe"), 0); err == nil {
			unix.Fremovexattr(int(s.lock.Fd()), attr)
			s.attr = attr
			return
		}
		if err == unix.ENOSPC { // the attribute works, but the store is full
			s.attr = attr
			return
		}
	}
	s.log.Warn("no extended attributes here: a restart will lose the memory tier",
		zap.String("dir", s.dir), zap.Error(err))
}

// warnFileSystem warns about a directory that cannot do what Options ask.
func (s *Store) warnFileSystem() {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.root.Fd()), &st); err != nil {
		return
	}
	if st.Type != unix.TMPFS_MAGIC {
		s.log.Warn("memory tier not on tmpfs: blocks go to the device of this file system", zap.String("dir", s.dir))
	}
}

// RoomBytes returns how many bytes the store can hold. Without a tmpfs of its own these are the
// free bytes of the file system and those that the store has already. With one they are the bytes
// asked for.
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
			name = bucketName(driver.BlobID(i))
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

// Fresh reports whether Open has made the store. Then Close without keep loses nothing of an
// earlier process.
func (s *Store) Fresh() bool { return s.fresh }

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.dir }

// Status returns the status of the store. It makes no system call.
func (s *Store) Status() Status {
	return Status{
		Dir: s.dir, Mounted: s.mounted, Adoptable: s.attr != "", Attr: s.attr, Discarded: s.discarded,
		Adopted: s.counts.adopted.Load(), Refused: s.counts.refused.Load(),
		Uncommitted: s.counts.uncommitted.Load(), Damaged: s.counts.damaged.Load(),
	}
}

// Close waits for calls in progress and removes everything: files, mount and directory. With keep
// it only releases the store, so a later Open can adopt the committed files. keep means nothing if
// the store is not adoptable. Open files stay usable until they are closed. A second call does
// nothing.
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
	ctx, cancel := context.WithTimeout(context.Background(), setupWait)
	defer cancel()
	parent, err := openParent(ctx, s.place, false, unix.LOCK_SH) // not to wait for others that close
	if err != nil {
		// At least free the memory while the lock is still ours.
		err = errors.Join(err, wipe(s.root, s.mounted))
		s.release()
		return err
	}
	root := s.root
	s.root = nil
	s.release()
	rest, err := detach(parent, s.place, root, s.mounted)
	parent.Close()
	rest.Close()
	return err
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
