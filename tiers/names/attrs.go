package names

import (
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// attrs is the room of attributes. It sets them, keeps their records in the tiers, and tells kernels of changes.
type attrs struct{ *core }

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
func (e *attrs) SetAttr(id index.ID, c Change) (state.Attr, error) {
	anew := c.Mode != nil || c.UID != nil || c.GID != nil
	record := anew || c.Mtime != nil
	if record {
		done, err := e.makeOwn("setattr", id, anew)
		if err != nil {
			return state.Attr{}, err
		}
		defer done()
	}
	e.Mu.Lock()
	en := e.Mu.Ix.At(id)
	e.changeLocked(id, en, &c)
	isDir := en.IsDir()
	blob, f := driver.BlobID(en.Blob), e.Mu.Files[id]
	onFile := c.Mtime != nil && !isDir && !e.HollowLocked(id, en)
	if c.Mtime != nil && !onFile {
		en.Mtime = *c.Mtime
	}
	e.Mu.Unlock()
	var err error
	if onFile {
		err = e.writing.SetMtime(id, f, blob, *c.Mtime)
	}
	if record {
		e.tellAttrs(id)
	}
	if err == nil && record {
		err = e.writing.WriteRecord(id, nil)
		e.recordCopies(id, anew)
		if isDir {
			e.recordCopiesBelow(id)
		}
	}
	return e.names.Attr(id), err
}

// changeLocked makes the changes of c to an entry, but for the time of modification. A new owner takes the setuid and
// setgid bits away, unless c sets the mode, too.
func (e *attrs) changeLocked(id index.ID, en *index.Entry, c *Change) {
	if c.Mode != nil {
		en.Mode = en.Mode&state.ModeType | uint16(*c.Mode&0o7777)
	} else if c.UID != nil || c.GID != nil {
		en.Mode = unprivileged(en.Mode)
	}
	uid, gid := en.UID, en.GID
	if c.UID != nil {
		uid = *c.UID
	}
	if c.GID != nil {
		gid = *c.GID
	}
	e.ChownLocked(id, en, uid, gid)
	if c.Atime != nil {
		en.Atime = *c.Atime
		if en.Ranked() {
			e.Mu.Room.Touch(state.BillOf(e.Mu.Room, en), uint32(id))
		}
	}
	en.Ctime = e.Now()
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
func (e *attrs) DropPrivileges(id index.ID) (bool, error) {
	e.Mu.Lock()
	was := e.Mu.Ix.At(id).Mode
	e.Mu.Unlock()
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
func (e *attrs) makeOwn(op string, id index.ID, anew bool) (done func(), err error) {
	done = func() {}
	for tries := 0; e.RemoteBit()|e.Anew != 0; tries++ {
		e.Mu.Lock()
		en := e.Mu.Ix.At(id)
		linked, far := e.Mu.Ix.Linked(id), e.FarLocked(id, en) || anew && e.HollowLocked(id, en) && en.Tiers&e.Anew != 0
		if linked && en.IsDir() && en.Tiers&e.RemoteBit() != 0 {
			e.elsewhere.OwnDirLocked(id, en)
			e.elsewhere.OwnDirsLocked(id)
		}
		e.Mu.Unlock()
		if !far {
			break
		}
		switch err := e.lower.Promote(e.Ctx, nil, id, false); {
		case err == nil:
			return func() { e.writing.CloseRead(id) }, nil
		case !errors.Is(err, state.ErrStale) || tries == ownTries: // else it is here or gone: the next try shows it
			return done, state.BringError(op, err)
		}
	}
	return done, nil
}

// SetPinned pins a file, so that it is never evicted, or unpins it. It fetches a block that only others have first,
// as SetAttr does. It fails with ErrNotFound for a file that is not committed, with ErrIsDir for a directory, and with
// ErrQuota if those who pay for the file may have no more that is pinned.
func (e *attrs) SetPinned(id index.ID, pinned bool) error {
	return e.change(id, func(en *index.Entry) error {
		had := en.Pinned()
		state.Pin(e.State, id, en, pinned)
		if pinned && !had && state.BillOf(e.Mu.Room, en).OverPins(0) {
			state.Pin(e.State, id, en, false)
			return block.ErrQuota
		}
		return nil
	})
}

// SetTTL sets the time that a file has left to live; 0 means for ever. It fails as SetPinned does.
func (e *attrs) SetTTL(id index.ID, ttl time.Duration) error {
	var at int64
	if ttl > 0 {
		at = e.Now() + int64(ttl)
	}
	return e.change(id, func(*index.Entry) error {
		e.Mu.Ix.SetExpires(id, at)
		return nil
	})
}

// change applies fn to a file under the lock and writes the record, unless fn fails.
func (e *attrs) change(id index.ID, fn func(en *index.Entry) error) error {
	if e.isDir(id) {
		return block.ErrIsDir
	}
	done, err := e.makeOwn("set", id, true)
	if err != nil {
		return err
	}
	defer done()
	e.Mu.Lock()
	en := e.Mu.Ix.At(id)
	if !e.Mu.Ix.Linked(id) {
		e.Mu.Unlock()
		return block.ErrNotFound
	}
	err = fn(en)
	e.ClassifyLocked(id, en)
	e.Mu.Unlock()
	if err != nil {
		return err
	}
	e.recordCopies(id, true)
	return e.writing.WriteRecord(id, nil)
}

// recordCopies has the tiers keep the present attributes of a file, and logs an event for other nodes. anew is as in
// makeOwn.
func (e *attrs) recordCopies(id index.ID, anew bool) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if en := e.Mu.Ix.At(id); e.Mu.Ix.Linked(id) && en.IsDir() {
		e.DirEventLocked(event.DirCreated, id)
	} else if e.Remote != nil && e.Mu.Ix.Linked(id) && en.Committed() {
		e.TierEventLocked(event.Changed, "", id, fate.Cause{})
	}
	if en := e.Mu.Ix.At(id); e.Mu.Ix.Linked(id) && en.IsRegular() && en.Tiers|en.Storing != 0 {
		e.lower.UpdateCopiesLocked(id, en, e.KeyLocked(id), anew)
	}
}

// recordCopiesBelow has the tiers keep the present attributes of a directory. They keep them with every block below it;
// a tier that would have to store all of them anew gets them with the next one that is stored.
func (e *attrs) recordCopiesBelow(dir index.ID) {
	var ids []index.ID
	e.Mu.Lock()
	if len(e.Tiers) > 0 && e.Mu.Ix.Linked(dir) {
		e.Mu.Ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
			if en.Tiers|en.Storing != 0 {
				ids = append(ids, id)
			}
			return true
		})
	}
	e.Mu.Unlock()
	for len(ids) > 0 {
		n := min(len(ids), state.RecordBatch)
		e.Mu.Lock()
		for _, id := range ids[:n] {
			if e.Mu.Ix.Valid(id) && e.Mu.Ix.Linked(id) {
				e.lower.UpdateCopiesLocked(id, e.Mu.Ix.At(id), e.KeyLocked(id), false)
			}
		}
		e.Mu.Unlock()
		ids = ids[n:]
	}
}

// Checksum returns the checksum of a committed block. If it is not known yet, Checksum reads the
// whole block. It fails with ErrNotFound, ErrIsDir or ErrPending (the block is being written).
func (e *attrs) Checksum(id index.ID) (block.Checksum, error) {
	e.Mu.Lock()
	en := e.Mu.Ix.At(id)
	blob, seq, size := driver.BlobID(en.Blob), en.Seq, en.Size
	sum := block.Checksum{Sum: en.Sum, Valid: en.HasSum()}
	busy := !en.Committed() || e.OpenForWritingLocked(id)
	isDir := en.IsDir()
	e.Mu.Unlock()
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
	file, err := e.Primary.Open(blob)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	d := block.NewChecksum()
	if _, err := io.Copy(d, io.NewSectionReader(file, 0, size)); err != nil {
		return sum, err
	}
	sum = block.Checksum{Sum: d.Sum64(), Valid: true}
	e.Mu.Lock()
	if en := e.Mu.Ix.At(id); en.Seq == seq && en.Blob == uint64(blob) && en.Committed() {
		en.Sum = sum.Sum
		en.Flags |= index.FlagSum
	}
	e.Mu.Unlock()
	return sum, e.writing.WriteRecord(id, file)
}

// isDir reports whether an entry is a directory.
func (e *attrs) isDir(id index.ID) bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return e.Mu.Ix.At(id).IsDir()
}

// tellAttrs is AttrsChangedLocked for a caller that does not hold the lock.
func (e *attrs) tellAttrs(id index.ID) {
	if !e.Opts.Kernels {
		return
	}
	var g state.Gone
	e.Mu.Lock()
	e.AttrsChangedLocked(id, e.Mu.Ix.At(id), &g)
	e.Mu.Unlock()
	e.Finish(&g)
}
