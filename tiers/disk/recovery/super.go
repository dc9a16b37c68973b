package recovery

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// Options configures Open. The zero value opens a directory that is there.
type Options struct {
	Create     bool  // make the last component of the path, and the superblock, if absent
	SlabBytes  int64 // size of the slabs of a new directory
	AllowTmpfs bool  // for tests
	// RequireMount says whether the directory must be on a mount of its own: RequireAuto, RequireTrue or
	// RequireFalse. Empty is RequireAuto.
	RequireMount string
	// StateDir is where it is remembered on which file system a directory was. Empty: only in the
	// directory itself.
	StateDir string
	Logger   *zap.Logger // nil means none
}

// errDeleted: the directory of a device was deleted. Its files keep their content until the process
// ends, but no later process finds them.
var errDeleted = errors.New("the directory was deleted")

// CheckThere fails with errDeleted and block.ErrUnavailable if the directory or its superblock has been deleted.
func (d *Dir) CheckThere() error {
	for _, f := range []*os.File{d.root, d.file} {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return &os.PathError{Op: "stat", Path: f.Name(), Err: err}
		}
		if st.Nlink == 0 {
			return fmt.Errorf("%s: %w: %w", f.Name(), errDeleted, block.ErrUnavailable)
		}
	}
	return nil
}

// Dir is one directory of the tier: its lock and its superblock. The caller opens the files
// of slabs, by SlabPath.
//
// Its methods do I/O through the page cache and sync. They never return if the device does not
// answer. They may be called in parallel.
type Dir struct {
	path  string   // absolute
	root  *os.File // the directory
	file  *os.File // kvfs-disk, locked
	log   *zap.Logger
	Fresh bool // made by this Open
	// Direct is the result of the test of direct I/O. It is zero if the file system was full.
	Direct directio.ProbeResult

	// writing orders the writes of the superblock. It is the only lock here that is held across
	// I/O. Nothing else waits for it.
	writing sync.Mutex
	mu      struct {
		sync.Mutex
		super format.Superblock // as on disk, or as the write under way will leave it
		at    int               // which copy holds it
		other format.Superblock // the other copy; zero if it is not good
		since *format.SlabSet   // slabs marked since the Checkpoint under way began; nil: there is none
	}
}

// superState is the superblock as it was read.
type superState struct {
	super format.Superblock
	at    int               // the copy that counts
	other format.Superblock // the other copy; zero if it is not good
	bad   [2]error          // what is wrong with each copy
}

// SuperblockError says that neither copy of the superblock is usable.
type SuperblockError struct {
	Path string   // of kvfs-disk
	Bad  [2]error // what is wrong with each copy
}

// Error names the command that repairs the superblock.
func (e *SuperblockError) Error() string {
	return fmt.Sprintf("%s: both copies of the superblock are damaged (%v; %v). To repair them, run `kvfs fsck --repair %s`",
		e.Path, e.Bad[0], e.Bad[1], filepath.Dir(e.Path))
}

// Unwrap returns ErrCorrupt.
func (e *SuperblockError) Unwrap() error { return block.ErrCorrupt }

// errSuperBlank: nothing was ever written to kvfs-disk.
var errSuperBlank = errors.New("superblock not written yet")

// readSuper reads both copies. It fails with errSuperBlank if the file is empty or zeros, with a
// VersionError if a copy has a later version, and with a SuperblockError if neither is good.
func readSuper(f *os.File) (superState, error) {
	var buf [2 * format.PageBytes]byte
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return superState{}, err
	}
	if format.IsZero(buf[:format.PageBytes]) && format.IsZero(buf[format.PageBytes:]) {
		return superState{}, errSuperBlank
	}
	st := superState{at: -1}
	for i := range st.bad {
		// Beyond the end there are zeros, which are no superblock.
		sb, err := format.DecodeSuperblock(buf[i*format.PageBytes : (i+1)*format.PageBytes])
		var later *format.VersionError
		if errors.As(err, &later) {
			later.Path = f.Name()
			return superState{}, later
		}
		if err != nil && n < (i+1)*format.PageBytes {
			err = format.Corrupt("superblock", "file of %d bytes", n)
		}
		st.bad[i] = err
		if err == nil && (st.at < 0 || sb.Seq > st.super.Seq) {
			st.other = st.super
			st.super, st.at = sb, i
		} else if err == nil {
			st.other = sb
		}
	}
	if st.at < 0 {
		return st, &SuperblockError{Path: f.Name(), Bad: st.bad}
	}
	return st, nil
}

// writeSuperCopy writes one copy and waits until it is durable.
func writeSuperCopy(f *os.File, s *format.Superblock, at int) error {
	var page [format.PageBytes]byte
	s.Encode(page[:])
	if _, err := f.WriteAt(page[:], int64(at)*format.PageBytes); err != nil {
		return err
	}
	return fdatasync(f)
}

// Superblock returns the content of the superblock.
func (d *Dir) Superblock() format.Superblock {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.super
}

// updateSuper changes the superblock. It returns when the change is durable. After an error the old
// content counts, on disk and in memory: the write went to the other copy.
func (d *Dir) updateSuper(change func(*format.Superblock)) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	next := d.Superblock()
	change(&next)
	return d.writeOther(&next)
}

// writeOther writes s to the copy that does not count, which then does. It needs d.writing.
func (d *Dir) writeOther(s *format.Superblock) error {
	d.mu.Lock()
	at := 1 - d.mu.at
	d.mu.Unlock()
	s.Seq++
	if err := writeSuperCopy(d.file, s, at); err != nil {
		return err
	}
	d.mu.Lock()
	d.mu.super, d.mu.other, d.mu.at = *s, d.mu.super, at
	d.mu.Unlock()
	return nil
}

// withdraw makes a change after which a start believes less of the index. It returns when both copies say so: if the newer one
// is damaged later, the older one must not bring back an outdated index. It writes nothing if they say so already. It needs
// d.writing.
func (d *Dir) withdraw(change func(*format.Superblock)) error {
	for range 2 {
		d.mu.Lock()
		next := d.mu.super
		change(&next)
		done := next == d.mu.super && !d.mu.other.Outdated(&next)
		d.mu.Unlock()
		if done {
			return nil
		}
		if err := d.writeOther(&next); err != nil {
			return err
		}
	}
	return nil
}

// MarkDirty marks the index as invalid on disk. It, or KeepIndex, must have returned before the first change to
// any slab. It does nothing if the index is already invalid.
func (d *Dir) MarkDirty() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.withdraw(func(s *format.Superblock) { s.Clean, s.Partial = false, false })
}

// KeepIndex has the index, which Recover has read without an error, stay valid for slabs that do not change. From now on
// Mark must have returned before the first change to a slab that Recover took from the index.
func (d *Dir) KeepIndex() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.withdraw(func(s *format.Superblock) {
		if s.Clean {
			s.Clean, s.Partial, s.Changed = false, true, format.SlabSet{}
		}
	})
}

// Mark records durably that a slab changes, so that no start takes it from the present index, nor from the one that a
// Checkpoint under way is writing.
func (d *Dir) Mark(number uint32) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.mu.Lock()
	if d.mu.since != nil {
		d.mu.since.Add(number)
	}
	d.mu.Unlock()
	return d.withdraw(func(s *format.Superblock) {
		if s.Partial {
			s.Changed.Add(number)
		}
	})
}

// SetWritten records, durably, how many bytes were written on a day (days since the epoch, UTC).
func (d *Dir) SetWritten(day, bytes int64) error {
	return d.updateSuper(func(s *format.Superblock) { s.Day, s.DayBytes = day, bytes })
}

// FreeBytes returns how many bytes of room the file system has left.
func (d *Dir) FreeBytes() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.root.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: d.path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// SlabPath returns the path of a slab's file.
func (d *Dir) SlabPath(number uint32) string {
	return filepath.Join(d.path, format.SlabName(number))
}

// SyncDir makes names in the directory durable.
func (d *Dir) SyncDir() error { return d.root.Sync() }

// Close unlocks the directory. It writes nothing: see SaveIndex.
func (d *Dir) Close() error {
	var err error
	if d.file != nil {
		err = d.file.Close()
	}
	return errors.Join(err, d.root.Close())
}

// fdatasync waits until the bytes of f are on the device.
func fdatasync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
