package recovery

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// CheckOptions says what Check does.
type CheckOptions struct {
	// Repair changes the directory so that a second Check finds no errors. It frees bad slots and
	// writes the index anew. It rebuilds a lost superblock from the uuid of the slabs. It removes a
	// slab that is damaged beyond use. Good blocks stay. Data that a device refuses to read or
	// write stays too.
	Repair bool
	// Data reads all blocks and compares their checksums.
	Data bool
	// Progress is called now and then on the caller's goroutine, unless it is nil. It gets the
	// bytes read and the bytes to read. The total grows once, when the tables are read.
	Progress func(done, total int64)
}

// Check looks for damage in the directory of a disk tier that no process uses. The Report holds the
// damage. Check fails with:
//   - ErrBusy if a process uses the directory
//   - a VersionError if a later kvfs wrote anything in it
//   - a DirError if it is not such a directory
//   - the error of ctx
//
// After an error of the system the Report tells what was seen until then. It is nil if nothing was.
func Check(ctx context.Context, dir string, o CheckOptions) (_ *Report, err error) {
	start := time.Now()
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if o.Repair {
		if err := knownDir(dir); err != nil {
			return nil, err
		}
	}
	d, err := lockDir(dir, Options{AllowTmpfs: true, Logger: zap.NewNop()}, o.Repair)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if o.Repair {
		// First look, then repair: the last page seen may be of a later version.
		c := newChecker(ctx, d, dir, CheckOptions{})
		if err := c.run(c.super, c.files, c.tables, c.index); err != nil {
			return c.r, err
		}
	}
	c := newChecker(ctx, d, dir, o)
	defer func() { c.r.Took = time.Since(start) }()
	return c.r, c.run(c.super, c.files, c.tables, c.index, c.data, c.finish)
}

func newChecker(ctx context.Context, d *Dir, dir string, o CheckOptions) *checker {
	return &checker{ctx: ctx, d: d, o: o, r: &Report{Dir: dir, DataChecked: o.Data}, seed: maphash.MakeSeed(),
		base: map[*Slab]int64{}, freed: map[uint32]bool{}}
}

// run does the steps until one fails.
func (c *checker) run(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// knownDir fails if a directory has neither a superblock nor slabs. Such a directory is not
// repaired.
func knownDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return &DirError{dir, fmt.Sprintf("cannot be read: %v", err), err}
	}
	for _, e := range entries {
		if _, ok := format.ParseSlabName(e.Name()); ok || e.Name() == format.SuperName {
			return nil
		}
	}
	return &DirError{dir, "is not a directory of the disk tier: no " + format.SuperName + ", no slabs", block.ErrNotFound}
}

// checkEntry is a used slot.
type checkEntry struct {
	slab   *Slab
	slot   uint32
	gone   bool // freed, about to be freed, or unreadable
	seq    uint64
	size   int64
	sum    uint64
	digest uint64 // of all fields of an index entry
}

// checker is one run of Check.
type checker struct {
	ctx   context.Context
	d     *Dir
	o     CheckOptions
	r     *Report
	seed  maphash.Seed
	slabs []*Slab
	// entries are in the order of slabs and slots.
	entries []checkEntry
	base    map[*Slab]int64 // bytes of the tables before
	done    int64
	total   int64
	freed   map[uint32]bool // slabs with slots that free zeroed
	unread  bool            // a table cannot be read, so no index may be written
	changed bool            // Repair changed something: the index must be written anew
}

func (c *checker) note(path, format string, args ...any) {
	c.r.add(Finding{Severity: SeverityNote, Path: path, What: fmt.Sprintf(format, args...)})
}

// damage reports an error at a place. With Repair it runs fix, and counts the error as repaired if
// fix succeeds. A nil fix means that the error cannot be repaired.
func (c *checker) damage(f Finding, fix func() error) {
	f.Severity = SeverityError
	if c.o.Repair && fix != nil {
		err := c.change(fix)
		if f.Repaired = err == nil; err != nil {
			f.What += fmt.Sprintf("; repair failed: %v", err)
		}
	}
	c.r.add(f)
}

// change runs fn, which changes slabs. It marks the index as invalid first.
func (c *checker) change(fix func() error) error {
	if err := c.d.MarkDirty(); err != nil {
		return err
	}
	c.changed = true
	return fix()
}

func (c *checker) progress(n int64) {
	c.done += n
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.total)
	}
}

// super checks the superblock. If there is none, it continues with one made from the slabs. Repair
// writes that one.
func (c *checker) super() error {
	d, path := c.d, c.d.Join(format.SuperName)
	st, err := superState{}, error(errSuperBlank)
	if d.file != nil {
		st, err = readSuper(d.file)
	}
	var bad *SuperblockError
	switch {
	case err == nil:
		d.mu.super, d.mu.at, d.mu.other = st.super, st.at, st.other
		for i, err := range st.bad {
			if err != nil {
				c.damage(Finding{Path: path, Offset: int64(i) * format.PageBytes, What: err.Error()},
					func() error { return d.updateSuper(func(*format.Superblock) {}) })
			}
		}
	case errors.Is(err, errSuperBlank) || errors.As(err, &bad):
		super, slabs, err2 := c.makeSuper()
		if err2 != nil {
			return err2
		}
		if bad == nil && slabs == 0 {
			return &DirError{d.path, "is not a directory of the disk tier: no superblock, no slabs", block.ErrNotFound}
		}
		d.mu.super = super
		what := "superblock: " + err.Error()
		if bad != nil {
			what = fmt.Sprintf("both copies: %v; %v", bad.Bad[0], bad.Bad[1])
		}
		c.damage(Finding{Path: path, What: what}, func() error { return d.writeFirstSuper(super) })
	default:
		return err
	}
	c.r.UUID, c.r.Clean = d.Superblock().UUID.String(), d.Superblock().Clean
	return nil
}

// makeSuper makes a superblock with the uuid that most slabs have.
func (c *checker) makeSuper() (s format.Superblock, slabs int, err error) {
	names, err := c.d.names()
	if err != nil {
		return s, 0, err
	}
	mem, err := mapMemory(format.PageBytes)
	if err != nil {
		return s, 0, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	s.UUID = format.NewUUID()
	votes := map[format.UUID]int{}
	for _, name := range names {
		if _, ok := format.ParseSlabName(name); !ok {
			continue
		}
		slabs++
		h, err := c.d.readSlabHeader(name, mem)
		var later *format.VersionError
		if errors.As(err, &later) {
			return s, 0, later
		}
		if err != nil {
			continue
		}
		votes[h.UUID]++
		if votes[h.UUID] > votes[s.UUID] {
			s.UUID = h.UUID
		}
		s.SlabBytes = max(s.SlabBytes, h.WantBytes())
	}
	// No index on disk has this generation, so none is believed.
	s.IndexGen = uint64(time.Now().UnixNano())
	return s, slabs, nil
}

// files checks what is in the directory and the headers of the slabs.
func (c *checker) files() error {
	names, err := c.d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case name == format.IndexTmpName, name == format.SlabTmpName:
			c.note(c.d.Join(name), "an index or slab that was never finished")
			if c.o.Repair {
				if err := os.Remove(c.d.Join(name)); err != nil {
					return err
				}
			}
		case !format.Ours(name):
			c.note(c.d.Join(name), "not a file of kvfs: left alone")
		}
	}
	slabs, aside, err := c.d.findSlabs(c.ctx)
	if err != nil {
		return err
	}
	c.slabs = slabs
	for _, p := range aside {
		var fix func() error
		if errors.Is(p.Err, block.ErrCorrupt) { // a page that the device cannot read is no damage to repair
			fix = func() error { return errors.Join(os.Remove(p.Path), c.d.SyncDir()) }
		}
		c.damage(Finding{Path: p.Path, What: "slab cannot be used: " + p.Err.Error()}, fix)
	}
	var sparse, sparseBytes int64
	for _, s := range slabs {
		c.r.Slots += int64(s.Slots)
		c.base[s] = c.total
		c.total += format.PageBytes * int64(s.Slots)
		var st unix.Stat_t
		if err := unix.Stat(s.Path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: s.Path, Err: err}
		}
		if hole := min(s.FileBytes, s.WantBytes()) - st.Blocks*512; hole > 0 {
			sparse, sparseBytes = sparse+1, sparseBytes+hole
		}
		if s.FileBytes > s.WantBytes() {
			c.note(s.Path, "%d bytes, %d more than the slab has", s.FileBytes, s.FileBytes-s.WantBytes())
		}
	}
	if sparse > 0 {
		c.note(c.d.path, "%d slabs have holes of %d bytes: a store may find the device full", sparse, sparseBytes)
	}
	c.r.Slabs = int64(len(slabs))
	return nil
}

// tables checks all slot headers and collects the used slots.
func (c *checker) tables() error {
	var same error // of a table that cannot be read: reported once, not for each slot
	bySum := map[uint64]int{}
	var entry []byte
	stale := map[*Slab]int64{}
	err := c.d.readTables(c.ctx, c.slabs, func(s *Slab, slot uint32, st pageState, h *format.SlotHeader, err error) {
		at := Finding{Path: s.Path, Offset: s.HeaderOff(slot)}
		switch {
		case st == pageStale:
			stale[s]++
		case st == pageBad && !errors.Is(err, block.ErrCorrupt):
			if err != same {
				c.unread = true
				same, at.What = err, fmt.Sprintf("table cannot be read: %v", err)
				c.damage(at, nil)
			}
		case st == pageBad:
			at.What = fmt.Sprintf("slot %d: %v", slot, err)
			c.damage(at, func() error { return c.free(s, slot) })
		case slot >= s.Usable:
			at.Key, at.What = string(h.Key), fmt.Sprintf("slot %d: data beyond the end of the file", slot)
			c.damage(at, func() error { return c.free(s, slot) })
		default:
			entry = slices.Grow(entry[:0], format.PageBytes)[:format.EntryBytes(h, h.Attrs.Dirs)]
			h.EncodeEntry(entry, h.Attrs.Dirs)
			c.entries = append(c.entries, checkEntry{slab: s, slot: slot, seq: h.Attrs.Seq, size: h.Size, sum: h.Sum,
				digest: maphash.Bytes(c.seed, entry)})
			c.distinct(bySum, len(c.entries)-1, h.Key)
		}
		if done := c.base[s] + format.PageBytes*int64(slot); done-c.done >= pieceBytes {
			c.progress(done - c.done)
		}
	})
	if err != nil {
		return err
	}
	for _, s := range c.slabs {
		if n := stale[s]; n > 0 {
			c.note(s.Path, "%d free slots have what is left of other epochs", n)
		}
		c.extend(s)
	}
	c.r.TableBytes = c.total
	c.progress(c.total - c.done)
	return nil
}

// extend reports a slab that is too short and extends it to its full size. What was beyond the end
// is free by now.
func (c *checker) extend(s *Slab) {
	want := s.WantBytes()
	if s.FileBytes >= want {
		return
	}
	c.damage(Finding{Path: s.Path, Offset: s.FileBytes, What: fmt.Sprintf("slab truncated to %d of %d bytes", s.FileBytes, want)},
		func() (err error) {
			f, err := c.d.openFile(format.SlabName(s.Number), unix.O_RDWR)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			// The table may end within a page. The rest of that page is cut off.
			if end := s.FileBytes &^ (format.PageBytes - 1); end < s.DataOff(0) {
				if err := f.Truncate(end); err != nil {
					return err
				}
			}
			if err := unix.Fallocate(int(f.Fd()), 0, 0, want); err != nil {
				return os.NewSyscallError("fallocate", err)
			}
			return f.Sync()
		})
}

// distinct looks for an entry with the key of entry i and frees the older one.
func (c *checker) distinct(bySum map[uint64]int, i int, key []byte) {
	sum := maphash.Bytes(c.seed, key)
	j, ok := bySum[sum]
	if !ok {
		bySum[sum] = i
		return
	}
	other, err := c.key(&c.entries[j])
	if err != nil || other != string(key) {
		return // two keys with one hash: happens once in 10^19
	}
	older := j
	if c.entries[i].seq <= c.entries[j].seq {
		older = i
	} else {
		bySum[sum] = i
	}
	e := &c.entries[older]
	e.gone = true
	f := Finding{Severity: SeverityNote, Path: e.slab.Path, Offset: e.slab.HeaderOff(e.slot), Key: other,
		What: fmt.Sprintf("slot %d: superseded by a later version", e.slot)}
	if c.o.Repair {
		err := c.change(func() error { return c.free(e.slab, e.slot) })
		if f.Repaired = err == nil; err != nil {
			f.What += fmt.Sprintf("; not freed: %v", err)
		}
	}
	c.r.add(f)
}
