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
func (atr *attrs) SetAttr(id index.ID, c Change) (state.Attr, error) {
	anew := c.Mode != nil || c.UID != nil || c.GID != nil
	record := anew || c.Mtime != nil
	if record {
		done, err := atr.makeOwn("setattr", id, anew)
		if err != nil {
			return state.Attr{}, err
		}
		defer done()
	}
	atr.Mu.Lock()
	en := atr.Mu.Ix.At(id)
	atr.changeLocked(id, en, &c)
	isDir := en.IsDir()
	blob, f := driver.BlobID(en.Blob), atr.Mu.Files[id]
	onFile := c.Mtime != nil && !isDir && !atr.HollowLocked(id, en)
	if c.Mtime != nil && !onFile {
		en.Mtime = *c.Mtime
	}
	atr.Mu.Unlock()
	var err error
	if onFile {
		err = atr.writing.SetMtime(id, f, blob, *c.Mtime)
	}
	if record {
		atr.tellAttrs(id)
	}
	if err == nil && record {
		err = atr.writing.WriteRecord(id, nil)
		atr.recordCopies(id, anew)
		if isDir {
			atr.recordCopiesBelow(id)
		}
	}
	return atr.names.Attr(id), err
}

// changeLocked makes the changes of c to an entry, but for the time of modification. A new owner takes the setuid and
// setgid bits away, unless c sets the mode, too.
func (atr *attrs) changeLocked(id index.ID, en *index.Entry, c *Change) {
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
	atr.ChownLocked(id, en, uid, gid)
	if c.Atime != nil {
		en.Atime = *c.Atime
		if en.Ranked() {
			atr.Mu.Room.Touch(state.BillOf(atr.Mu.Room, en), uint32(id))
		}
	}
	en.Ctime = atr.Now()
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
func (atr *attrs) DropPrivileges(id index.ID) (bool, error) {
	atr.Mu.Lock()
	was := atr.Mu.Ix.At(id).Mode
	atr.Mu.Unlock()
	mode := uint32(unprivileged(was))
	if mode == uint32(was) {
		return false, nil
	}
	_, err := atr.SetAttr(id, Change{Mode: &mode})
	return true, err
}

// ownTries bounds how often makeOwn looks again because a promotion was of an earlier version.
const ownTries = 16

// makeOwn gets a block or directory that only others have for this node, too; and, if anew, a block that a tier has to
// store anew. The block stays in memory until done is called. It waits for one promotion at most, that is up to
// PromoteTimeout.
func (atr *attrs) makeOwn(op string, id index.ID, anew bool) (done func(), err error) {
	done = func() {}
	for tries := 0; atr.RemoteBit()|atr.Anew != 0; tries++ {
		atr.Mu.Lock()
		en := atr.Mu.Ix.At(id)
		linked, far := atr.Mu.Ix.Linked(id), atr.FarLocked(id, en) || anew && atr.HollowLocked(id, en) && en.Tiers&atr.Anew != 0
		if linked && en.IsDir() && en.Tiers&atr.RemoteBit() != 0 {
			atr.elsewhere.OwnDirLocked(id, en)
			atr.elsewhere.OwnDirsLocked(id)
		}
		atr.Mu.Unlock()
		if !far {
			break
		}
		switch err := atr.lower.Promote(atr.Ctx, nil, id, false); {
		case err == nil:
			return func() { atr.writing.CloseRead(id) }, nil
		case !errors.Is(err, state.ErrStale) || tries == ownTries: // else it is here or gone: the next try shows it
			return done, state.BringError(op, err)
		}
	}
	return done, nil
}

// SetPinned pins a file, so that it is never evicted, or unpins it. It fetches a block that only others have first,
// as SetAttr does. It fails with ErrNotFound for a file that is not committed, with ErrIsDir for a directory, and with
// ErrQuota if those who pay for the file may have no more that is pinned.
func (atr *attrs) SetPinned(id index.ID, pinned bool) error {
	return atr.change(id, func(en *index.Entry) error {
		had := en.Pinned()
		state.Pin(atr.State, id, en, pinned)
		if pinned && !had && state.BillOf(atr.Mu.Room, en).OverPins(0) {
			state.Pin(atr.State, id, en, false)
			return block.ErrQuota
		}
		return nil
	})
}

// SetTTL sets the time that a file has left to live; 0 means for ever. It fails as SetPinned does.
func (atr *attrs) SetTTL(id index.ID, ttl time.Duration) error {
	var at int64
	if ttl > 0 {
		at = atr.Now() + int64(ttl)
	}
	return atr.change(id, func(*index.Entry) error {
		atr.Mu.Ix.SetExpires(id, at)
		return nil
	})
}

// change applies fn to a file under the lock and writes the record, unless fn fails.
func (atr *attrs) change(id index.ID, fn func(en *index.Entry) error) error {
	if atr.isDir(id) {
		return block.ErrIsDir
	}
	done, err := atr.makeOwn("set", id, true)
	if err != nil {
		return err
	}
	defer done()
	atr.Mu.Lock()
	en := atr.Mu.Ix.At(id)
	if !atr.Mu.Ix.Linked(id) {
		atr.Mu.Unlock()
		return block.ErrNotFound
	}
	err = fn(en)
	atr.ClassifyLocked(id, en)
	atr.Mu.Unlock()
	if err != nil {
		return err
	}
	atr.recordCopies(id, true)
	return atr.writing.WriteRecord(id, nil)
}

// recordCopies has the tiers keep the present attributes of a file, and logs an event for other nodes. anew is as in
// makeOwn.
func (atr *attrs) recordCopies(id index.ID, anew bool) {
	atr.Mu.Lock()
	defer atr.Mu.Unlock()
	if en := atr.Mu.Ix.At(id); atr.Mu.Ix.Linked(id) && en.IsDir() {
		atr.DirEventLocked(event.DirCreated, id)
	} else if atr.Remote != nil && atr.Mu.Ix.Linked(id) && en.Committed() {
		atr.TierEventLocked(event.Changed, "", id, fate.Cause{})
	}
	if en := atr.Mu.Ix.At(id); atr.Mu.Ix.Linked(id) && en.IsRegular() && en.Tiers|en.Storing != 0 {
		atr.lower.UpdateCopiesLocked(id, en, atr.KeyLocked(id), anew)
	}
}

// recordCopiesBelow has the tiers keep the present attributes of a directory. They keep them with every block below it;
// a tier that would have to store all of them anew gets them with the next one that is stored.
func (atr *attrs) recordCopiesBelow(dir index.ID) {
	var ids []index.ID
	atr.Mu.Lock()
	if len(atr.Tiers) > 0 && atr.Mu.Ix.Linked(dir) {
		atr.Mu.Ix.Descend(dir, func(id index.ID, en *index.Entry) bool {
			if en.Tiers|en.Storing != 0 {
				ids = append(ids, id)
			}
			return true
		})
	}
	atr.Mu.Unlock()
	for len(ids) > 0 {
		n := min(len(ids), state.RecordBatch)
		atr.Mu.Lock()
		for _, id := range ids[:n] {
			if atr.Mu.Ix.Valid(id) && atr.Mu.Ix.Linked(id) {
				atr.lower.UpdateCopiesLocked(id, atr.Mu.Ix.At(id), atr.KeyLocked(id), false)
			}
		}
		atr.Mu.Unlock()
		ids = ids[n:]
	}
}

// Checksum returns the checksum of a committed block. If it is not known yet, Checksum reads the
// whole block. It fails with ErrNotFound, ErrIsDir or ErrPending (the block is being written).
func (atr *attrs) Checksum(id index.ID) (block.Checksum, error) {
	atr.Mu.Lock()
	en := atr.Mu.Ix.At(id)
	blob, seq, size := driver.BlobID(en.Blob), en.Seq, en.Size
	sum := block.Checksum{Sum: en.Sum, Valid: en.HasSum()}
	busy := !en.Committed() || atr.OpenForWritingLocked(id)
	isDir := en.IsDir()
	atr.Mu.Unlock()
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
	file, err := atr.Primary.Open(blob)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	d := block.NewChecksum()
	if _, err := io.Copy(d, io.NewSectionReader(file, 0, size)); err != nil {
		return sum, err
	}
	sum = block.Checksum{Sum: d.Sum64(), Valid: true}
	atr.Mu.Lock()
	if en := atr.Mu.Ix.At(id); en.Seq == seq && en.Blob == uint64(blob) && en.Committed() {
		en.Sum = sum.Sum
		en.Flags |= index.FlagSum
	}
	atr.Mu.Unlock()
	return sum, atr.writing.WriteRecord(id, file)
}

// isDir reports whether an entry is a directory.
func (atr *attrs) isDir(id index.ID) bool {
	atr.Mu.Lock()
	defer atr.Mu.Unlock()
	return atr.Mu.Ix.At(id).IsDir()
}

// tellAttrs tells the kernels that the attributes of an entry have changed. It takes the lock.
func (atr *attrs) tellAttrs(id index.ID) {
	if !atr.Opts.Kernels {
		return
	}
	var g state.Gone
	atr.Mu.Lock()
	atr.AttrsChangedLocked(id, atr.Mu.Ix.At(id), &g)
	atr.Mu.Unlock()
	atr.Finish(&g)
}
