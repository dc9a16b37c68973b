package tiers

import (
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
)

// Change says which attributes SetAttr sets.
type Change struct {
	Mode         *uint32 // permission bits
	UID, GID     *uint32
	Atime, Mtime *int64 // nanoseconds since the epoch
}

// SetAttr changes attributes. Setting the time of last access marks the block as recently used.
// Other nodes do not learn of the other changes. So SetAttr first promotes a block that only other nodes
// have, and waits for that; so it does for a new mode or owner if a tier has to store the block anew. It fails as the
// promotion does, or with ErrNoSpace.
func (e *Engine) SetAttr(id index.ID, c Change) (state.Attr, error) {
	anew := c.Mode != nil || c.UID != nil || c.GID != nil
	record := anew || c.Mtime != nil
	if record {
		done, err := e.makeOwn("setattr", id, anew)
		if err != nil {
			return state.Attr{}, err
		}
		defer done()
	}
	e.st.Mu.Lock()
	en := e.st.Mu.Ix.At(id)
	e.changeLocked(id, en, &c)
	isDir := en.IsDir()
	blob, f := driver.BlobID(en.Blob()), e.st.Mu.Files[id]
	onFile := c.Mtime != nil && !isDir && !e.st.NonresidentLocked(id, en)
	if c.Mtime != nil && !onFile {
		e.st.ApplyLocked(catalog.Times{ID: id, Mtime: *c.Mtime, Ctime: en.Ctime()})
	}
	e.st.Mu.Unlock()
	var err error
	if onFile {
		err = e.Files.SetMtime(id, f, blob, *c.Mtime)
	}
	if record {
		e.tellAttrs(id)
	}
	if err == nil && record {
		err = e.Files.WriteRecord(id, nil)
		e.recordCopies(id, anew)
		if isDir {
			e.recordCopiesBelow(id)
		}
	}
	return e.Names.Attr(id), err
}

// changeLocked makes the changes of c to an entry, but for the time of modification. A new owner takes the setuid and
// setgid bits away, unless c sets the mode, too.
func (e *Engine) changeLocked(id index.ID, en *index.Entry, c *Change) {
	a := catalog.AttrsOf(id, en)
	if c.Mode != nil {
		a.Mode = a.Mode&state.ModeType | uint16(*c.Mode&0o7777)
	} else if c.UID != nil || c.GID != nil {
		a.Mode = unprivileged(a.Mode)
	}
	if c.UID != nil {
		a.UID = *c.UID
	}
	if c.GID != nil {
		a.GID = *c.GID
	}
	if c.Atime != nil {
		a.Atime, a.Use = *c.Atime, true
	}
	a.Ctime = e.st.Now()
	e.st.ApplyLocked(&a)
}

// unprivileged returns the mode of an entry without the setuid and setgid bits that let a file run as somebody else.
func unprivileged(mode uint16) uint16 {
	if mode&state.ModeType != state.ModeRegular {
		return mode
	}
	if mode&unix.S_IXGRP != 0 {
		mode &^= unix.S_ISGID
	}
	return mode &^ unix.S_ISUID
}

// DropPrivileges takes the setuid and setgid bits of a file away, because somebody without the right to keep them may change
// its bytes. It reports whether there were any. It fails as SetAttr does.
func (e *Engine) DropPrivileges(id index.ID) (bool, error) {
	e.st.Mu.Lock()
	was := e.st.Mu.Ix.At(id).Mode()
	e.st.Mu.Unlock()
	mode := uint32(unprivileged(was))
	if mode == uint32(was) {
		return false, nil
	}
	_, err := e.SetAttr(id, Change{Mode: &mode})
	return true, err
}

// ownTries bounds how often makeOwn looks again because a promotion was of an earlier version.
const ownTries = 16

// makeOwn gets a block or directory that only others have for this node, too; and, if anew, a block that a tier has to
// store anew. The block stays in memory until done is called. It waits for one promotion at most, that is up to
// PromoteTimeout.
func (e *Engine) makeOwn(op string, id index.ID, anew bool) (done func(), err error) {
	done = func() {}
	for tries := 0; e.st.RemoteBit()|e.st.Anew != 0; tries++ {
		e.st.Mu.Lock()
		en := e.st.Mu.Ix.At(id)
		linked, far := e.st.Mu.Ix.Linked(id), e.st.FarLocked(id, en) || anew && e.st.NonresidentLocked(id, en) && en.Tiers()&e.st.Anew != 0
		if linked && en.IsDir() && en.Tiers()&e.st.RemoteBit() != 0 {
			e.Names.OwnDirLocked(id, en)
			e.Names.OwnDirsLocked(id)
		}
		e.st.Mu.Unlock()
		if !far {
			break
		}
		if done, err = e.hold(op, id, tries); err != nil {
			break
		}
	}
	return done, err
}

// SetPinned pins a file, so that it is never evicted, or unpins it. It fetches a block that only others have first,
// as SetAttr does. It fails with ErrNotFound for a file that is not committed, with ErrIsDir for a directory, and with
// ErrQuota if those who pay for the file may have no more that is pinned.
func (e *Engine) SetPinned(id index.ID, pinned bool) error {
	return e.change(id, func(en *index.Entry) error {
		if pinned && !e.st.Mu.PinFits(id, en) {
			return block.ErrQuota
		}
		e.st.ApplyLocked(catalog.Pinned{ID: id, On: pinned})
		return nil
	})
}

// SetTTL sets the time that a file has left to live; 0 means for ever. It fails as SetPinned does.
func (e *Engine) SetTTL(id index.ID, ttl time.Duration) error {
	var at int64
	if ttl > 0 {
		at = e.st.Now() + int64(ttl)
	}
	return e.change(id, func(*index.Entry) error {
		e.st.ApplyLocked(catalog.Expires{ID: id, At: at})
		return nil
	})
}

// change applies fn to a file under the lock and writes the record, unless fn fails.
func (e *Engine) change(id index.ID, fn func(en *index.Entry) error) error {
	if e.isDir(id) {
		return block.ErrIsDir
	}
	done, err := e.makeOwn("set", id, true)
	if err != nil {
		return err
	}
	defer done()
	e.st.Mu.Lock()
	en := e.st.Mu.Ix.At(id)
	if !e.st.Mu.Ix.Linked(id) {
		e.st.Mu.Unlock()
		return block.ErrNotFound
	}
	err = fn(en)
	e.st.ApplyLocked(catalog.Stays{ID: id})
	e.st.Mu.Unlock()
	if err != nil {
		return err
	}
	e.recordCopies(id, true)
	return e.Files.WriteRecord(id, nil)
}

// recordCopies has the tiers keep the present attributes of a file, and logs an event for other nodes. anew is as in
// makeOwn.
func (e *Engine) recordCopies(id index.ID, anew bool) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	if en := e.st.Mu.Ix.At(id); e.st.Mu.Ix.Linked(id) && en.IsDir() {
		e.st.DirEventLocked(event.DirCreated, id)
	} else if e.st.Remote != nil && e.st.Mu.Ix.Linked(id) && en.Committed() {
		e.st.EventLocked(event.Changed, "", id, outcome.Cause{})
	}
	if en := e.st.Mu.Ix.At(id); e.st.Mu.Ix.Linked(id) && en.IsRegular() && en.Tiers()|en.Storing() != 0 {
		e.Transfer.UpdateCopiesLocked(id, en, e.st.KeyLocked(id), anew)
	}
}

// recordCopiesBelow has the tiers keep the present attributes of a directory. They keep them with every block below it;
// a tier that would have to store all of them anew gets them with the next one that is stored.
func (e *Engine) recordCopiesBelow(dir index.ID) {
	var ids []index.ID
	e.st.Mu.Lock()
	if len(e.st.Tiers) > 0 && e.st.Mu.Ix.Linked(dir) {
		e.st.Mu.Ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
			if en.Tiers()|en.Storing() != 0 {
				ids = append(ids, id)
			}
			return true
		})
	}
	e.st.Mu.Unlock()
	for len(ids) > 0 {
		n := min(len(ids), state.RecordBatch)
		e.st.Mu.Lock()
		for _, id := range ids[:n] {
			if e.st.Mu.Ix.Valid(id) && e.st.Mu.Ix.Linked(id) {
				e.Transfer.UpdateCopiesLocked(id, e.st.Mu.Ix.At(id), e.st.KeyLocked(id), false)
			}
		}
		e.st.Mu.Unlock()
		ids = ids[n:]
	}
}

// Checksum returns the checksum of a committed block. If it is not known yet, Checksum reads the
// whole block. It fails with ErrNotFound, ErrIsDir or ErrPending (the block is being written).
func (e *Engine) Checksum(id index.ID) (block.Checksum, error) {
	e.st.Mu.Lock()
	en := e.st.Mu.Ix.At(id)
	blob, seq, size := driver.BlobID(en.Blob()), en.Seq(), en.Size()
	sum := block.Checksum{Sum: en.Sum(), Valid: en.HasSum()}
	busy := !en.Committed() || e.st.OpenForWritingLocked(id)
	isDir := en.IsDir()
	e.st.Mu.Unlock()
	switch {
	case isDir:
		return sum, block.ErrIsDir
	case busy:
		return block.Checksum{}, block.ErrPending
	case sum.Valid:
		return sum, nil
	case blob == 0:
		return sum, block.ErrNotFound
	}
	file, err := e.st.Primary.Open(blob)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	d := block.NewChecksum()
	if _, err := io.Copy(d, io.NewSectionReader(file, 0, size)); err != nil {
		return sum, err
	}
	sum = block.Checksum{Sum: d.Sum64(), Valid: true}
	e.st.Mu.Lock()
	if en := e.st.Mu.Ix.At(id); en.Seq() == seq && en.Blob() == uint64(blob) && en.Committed() {
		e.st.ApplyLocked(catalog.Summed{ID: id, Sum: sum.Sum})
	}
	e.st.Mu.Unlock()
	return sum, e.Files.WriteRecord(id, file)
}

// isDir reports whether an entry is a directory.
func (e *Engine) isDir(id index.ID) bool {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return e.st.Mu.Ix.At(id).IsDir()
}

// tellAttrs tells the kernels that the attributes of an entry have changed. It takes the lock.
func (e *Engine) tellAttrs(id index.ID) {
	if !e.st.Opts.Kernels {
		return
	}
	var g state.Gone
	e.st.Mu.Lock()
	e.st.TellAttrsLocked(id, &g)
	e.st.Mu.Unlock()
	e.st.Finish(&g)
}
