package names

import (
	"context"
	"errors"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// names is the room of the tree of names: what a name means to a process, and how names come and go.
type names struct {
	*core

	dirFiles int64 // directories with a file of their own; guarded by State.Mu
}

// ResolveLocked returns the file or directory of a name, 0 if there is none, or only a private file of another process.
// stable is false if other callers get another answer, now or soon.
func (e *names) ResolveLocked(parent index.ID, name string, by state.Caller) (id index.ID, stable bool) {
	id = e.elsewhere.FindLocked(parent, name)
	if id == 0 {
		// Otherwise another node, kernel or user of a tier can make it at any time.
		return 0, e.Remote == nil && len(e.Finders) == 0 && !e.Opts.Kernels
	}
	if e.Mu.Ix.At(id).Committed() {
		return id, true
	}
	if !e.Mu.Files[id].MineLocked(by) {
		return 0, false
	}
	return id, false
}

// Lookup returns the entry called name in the directory parent, as the caller's process sees it. It counts one
// reference by the kernel and grants the lease. It fails with ErrNotFound; Attr.Stable then says whether the kernel
// may cache the absence. With Options.Kernels it fails with ErrStale if the path to parent must be looked up again.
//
// It waits only if there is nothing of the name here and the Remote is a driver.Asker that does not know the name: for
// half a second at most, or until the engine closes.
func (e *names) Lookup(parent index.ID, name string, by state.Caller) (a state.Attr, err error) {
	a, l, err := e.lookup(parent, name, &by, false)
	if l.unknown != "" {
		state.Announce(by.Waits)
		e.elsewhere.Ask(e.Ctx, []string{l.unknown})
		a, l, err = e.lookup(parent, name, &by, true)
	}
	if err != nil {
		e.missed(parent, name, &by, err)
		return a, err
	}
	if l.live != nil {
		a = l.live.Refresh(a)
	}
	if l.hollow && e.Opts.PromoteOnLookup {
		e.lower.Promote(e.Ctx, nil, a.ID, true)
	}
	return a, nil
}

// missed counts a look-up that ended with an error. A reader's process is not known before it matters.
func (e *names) missed(parent index.ID, name string, by *state.Caller, err error) {
	if !errors.Is(err, block.ErrNotFound) {
		return // the kernel looks up again
	}
	who := by.Proc()
	if who.PID == 0 && by.See != nil {
		who.PID = by.See.ProcessOf(by.Thread)
	}
	e.Mu.Lock()
	e.MissedLocked(parent, name, who)
	e.Mu.Unlock()
}

// looked is what a look-up finds besides attributes.
type looked struct {
	live   state.WriteSide // as liveLocked
	hollow bool

	unknown string // not empty: nothing was found nor counted, and other nodes must be asked about this path
}

// lookup is one try of Lookup. asked: it is the last one, because other nodes were asked or need not be.
func (e *names) lookup(parent index.ID, name string, by *state.Caller, asked bool) (state.Attr, looked, error) {
	g := e.NewGone()
	defer e.Finish(g)
	e.Mu.Lock()
	defer e.Mu.Unlock()
	defer e.elsewhere.TellOutdatedLocked(g)
	id, stable := e.ResolveLocked(parent, name, *by)
	if id != 0 && e.ExpiredLocked(id) {
		id, stable = 0, false
	}
	if id == 0 {
		if !asked {
			if path := e.elsewhere.UnknownLocked(parent, name); path != "" {
				return state.Attr{}, looked{unknown: path}, block.ErrNotFound
			}
		}
		return state.Attr{Stable: stable}, looked{}, e.absentLocked(parent, by)
	}
	en := e.Mu.Ix.At(id)
	en.Lookups++
	e.elsewhere.UseDirLocked(en)
	hollow := e.HollowLocked(id, en)
	if e.Opts.LookupLease > 0 && (hollow || en.Ranked()) {
		en.Lease = e.Now() + int64(e.Opts.LookupLease)
	}
	e.Mu.Counters.LookupHit++
	state.CountFound(e.State, en)
	a := e.AttrLocked(id, en)
	a.Stable = a.Stable && stable
	return a, looked{live: e.liveLocked(id), hollow: hollow}, nil
}

// absentLocked returns the error of a look-up that found nothing.
func (e *names) absentLocked(parent index.ID, by *state.Caller) error {
	if e.Opts.Kernels && !by.Told && parent != index.Root && !e.Mu.Ix.Linked(parent) {
		return state.ErrStale // another directory may have its name
	}
	return block.ErrNotFound
}

// liveLocked returns the write side of an entry whose bytes may have changed since they were last accounted, else
// nil.
func (e *names) liveLocked(id index.ID) state.WriteSide {
	f := e.Mu.Files[id]
	if f == nil || f.HandlesLocked() == 0 {
		return nil
	}
	return f
}

// Forget takes back n references by the kernel.
func (e *names) Forget(id index.ID, n uint64) {
	if id == index.Root {
		return
	}
	g := e.NewGone()
	e.Mu.Lock()
	en := e.Mu.Ix.At(id)
	en.Lookups -= uint32(min(n, uint64(en.Lookups)))
	e.ReapLocked(id, en, g)
	e.Mu.Unlock()
	e.Finish(g)
}

// AttrLocked returns the attributes of an entry.
func (e *names) AttrLocked(id index.ID, en *index.Entry) state.Attr {
	a := state.Attr{
		ID: id, Mode: uint32(en.Mode), UID: en.UID, GID: en.GID, Nlink: 1,
		Size: en.Size, Mtime: en.Mtime, Atime: en.Atime, Ctime: en.Ctime,
		Stable: en.Stable(),
		Temp:   en.IsTemp(),
	}
	f := e.Mu.Files[id]
	if en.IsDir() {
		a.Nlink, a.Size = 1, state.PageBytes // 1: subdirectories are not counted
		return e.linkedAttrLocked(id, en, f, a)
	}
	a.Changing = f != nil && f.HandlesLocked() > 0
	if e.Remote != nil && e.FarLocked(id, en) {
		a.Stable = false // other nodes may change the attributes of their files
	}
	return e.linkedAttrLocked(id, en, f, a)
}

// linkedAttrLocked returns a, with Nlink 0 and Gone set as they must be if the name is gone.
func (e *names) linkedAttrLocked(id index.ID, en *index.Entry, f state.WriteSide, a state.Attr) state.Attr {
	if !e.Mu.Ix.Linked(id) && id != index.Root {
		a.Nlink = 0
		a.Gone = f == nil && en.Opens == 0 && !en.InLimbo() && !en.IsDir()
	}
	return a
}

// Attr returns the attributes of an entry that the kernel holds a reference to.
func (e *names) Attr(id index.ID) state.Attr {
	e.Mu.Lock()
	a, live := e.AttrLocked(id, e.Mu.Ix.At(id)), e.liveLocked(id)
	e.Mu.Unlock()
	if live != nil {
		a = live.Refresh(a)
	}
	return a
}

// CheckNewLocked checks that name may be made in parent.
func (e *names) CheckNewLocked(parent index.ID, name string) error {
	if err := block.CheckName(name); err != nil {
		return err
	}
	if parent == index.Root && name == block.Reserved {
		return block.ErrReserved
	}
	if err := e.DirLocked(parent); err != nil {
		return err
	}
	e.Mu.Scratch = e.Mu.Ix.AppendPath(e.Mu.Scratch[:0], parent)
	if len(e.Mu.Scratch)+1+len(name) > block.MaxPath {
		return block.ErrNameTooLong
	}
	return nil
}

// A directory has a file of its own in memory, with its record, for each dirShare bytes of the capacity. Blocks need
// most of the files that a tmpfs may have, so further directories are names only.
const (
	dirShare    = 8 << 10
	minDirFiles = 1 << 14
)

// dirFile makes the file of a directory. blob is 0 if the directory must do without.
func (e *names) dirFile() (blob driver.BlobID, file *os.File, err error) {
	e.Mu.Lock()
	full := e.dirFiles >= max(e.Opts.CapacityBytes/dirShare, minDirFiles)
	e.Mu.Unlock()
	if full {
		return 0, nil, nil
	}
	blob, file, err = e.Primary.Create()
	if errors.Is(err, block.ErrNoSpace) {
		return 0, nil, nil
	}
	return blob, file, err
}

// AddDirFile counts a directory with a file of its own.
func (e *names) AddDirFile() { e.dirFiles++ }

// Mkdir makes a directory for a process and counts one reference by the kernel. It fails with ErrExist, ErrNotDir,
// ErrNotFound, ErrReserved, ErrInvalid or ErrNameTooLong.
func (e *names) Mkdir(parent index.ID, name string, mode, uid, gid uint32, by state.Process) (state.Attr, error) {
	blob, file, err := e.dirFile()
	if err != nil {
		return state.Attr{}, err
	}
	defer file.Close()
	var g state.Gone
	e.Mu.Lock()
	e.StoresLocked(parent, name, by, e.Now())
	e.DropExpiredLocked(parent, name, &g)
	err = e.CheckNewLocked(parent, name)
	if err == nil && e.elsewhere.FindLocked(parent, name) != 0 {
		err = block.ErrExist
	}
	e.elsewhere.TellOutdatedLocked(&g)
	if err != nil {
		e.Mu.Unlock()
		if blob != 0 {
			g.Blobs = append(g.Blobs, blob)
		}
		e.Finish(&g)
		return state.Attr{}, err
	}
	id := e.Mu.Ix.Alloc()
	en := e.Mu.Ix.At(id)
	now := e.Now()
	en.Mode, en.UID, en.GID = uint16(state.ModeDir|mode&0o7777), uid, gid
	e.InheritGroupLocked(parent, en)
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob, en.Lookups = uint64(blob), 1
	if blob != 0 {
		e.dirFiles++
	}
	en.Seq = e.NextSeqLocked()
	e.Mu.Ix.Link(id, parent, name)
	e.MarkDirLocked(id, en)
	e.ChangedLocked(parent)
	e.elsewhere.OwnDirsLocked(id)
	e.DirEventLocked(event.DirCreated, id)
	a := e.AttrLocked(id, en)
	e.Mu.Unlock()
	e.Finish(&g)
	return a, e.writing.WriteRecord(id, file)
}

// DropExpiredLocked removes a file that is past its time to live, so that its name can be made again.
func (e *names) DropExpiredLocked(parent index.ID, name string, g *state.Gone) {
	id := e.Mu.Ix.Lookup(parent, name)
	if id == 0 || !e.ExpiredLocked(id) || !e.Mu.Ix.At(id).Committed() {
		return
	}
	e.Mu.Counters.Expired++
	e.DropNameLocked(id, e.Mu.Ix.At(id), event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
}

// Rmdir removes an empty directory. It fails with ErrNotFound, ErrNotDir or ErrNotEmpty.
func (e *names) Rmdir(ctx context.Context, parent index.ID, name string, by state.Caller) error {
	if err := e.elsewhere.EmptyElsewhere(ctx, parent, name); err != nil {
		return err
	}
	var g state.Gone
	e.Mu.Lock()
	err := e.rmdirLocked(parent, name, &by, &g)
	e.elsewhere.TellOutdatedLocked(&g)
	e.Mu.Unlock()
	e.Finish(&g)
	return err
}

func (e *names) rmdirLocked(parent index.ID, name string, by *state.Caller, g *state.Gone) error {
	id := e.elsewhere.FindLocked(parent, name)
	if id == 0 {
		return block.ErrNotFound
	}
	en := e.Mu.Ix.At(id)
	if !en.IsDir() {
		return block.ErrNotDir
	}
	if !e.writing.EmptyLocked(id, *by, g) {
		return block.ErrNotEmpty
	}
	if e.Remote != nil {
		e.Far.Bury([]driver.Grave{{Path: e.Mu.Ix.Path(id), Dir: true, Seq: e.NextSeqLocked()}})
	}
	e.NameLeftLocked(id, en, by.Proc(), g)
	e.DropDirLocked(id, en, g)
	e.ChangedLocked(parent)
	return nil
}

// DropDirLocked removes the name and the record of an empty directory. It does not tell the kernel, because the
// kernel asked for it.
func (e *names) DropDirLocked(id index.ID, en *index.Entry, g *state.Gone) {
	e.DirEventLocked(event.DirRemoved, id)
	e.ClearTiersLocked(id, en, en.Tiers)
	e.Mu.Ix.Unlink(id)
	if en.InMemory() {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
		en.Blob = 0
		e.dirFiles--
	}
	e.ReapLocked(id, en, g)
}

// UnlinkLocked drops a name because a kernel asked for it, so that only the other kernels are told. by is as in
// Options.Invalidate.
func (e *names) UnlinkLocked(id index.ID, why fate.Cause, by state.Process, g *state.Gone) {
	en := e.Mu.Ix.At(id)
	e.NameLeftLocked(id, en, by, g)
	n := len(g.Names)
	e.DropNameLocked(id, en, event.Removed, why, g)
	g.Names = g.Names[:n]
}

// readdirBatch bounds how many entries one hold of the lock copies.
const readdirBatch = 1024

// ReadDir appends to buf up to readdirBatch entries of dir that come after a cookie, in a stable order, and returns
// the longer slice. If it appended nothing, there are no more. hint is the ID of the entry whose cookie is after, or
// 0. ReadDir leaves out files that another process writes under their final name, and with HideElsewhere the names
// that only other nodes have.
func (e *names) ReadDir(dir index.ID, after uint64, hint index.ID, by state.Caller, buf []state.Dirent) []state.Dirent {
	start := len(buf)
	e.Mu.Lock()
	defer e.Mu.Unlock()
	now := e.Now()
	e.Mu.Ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
		name := e.Mu.Ix.Name(id)
		if !en.Committed() && !e.Mu.Files[id].MineLocked(by) {
			return true
		}
		if at := e.Mu.Ix.Expires(id); at != 0 && at <= now || e.Opts.HideElsewhere && e.elsewhere.ElsewhereLocked(id, en) {
			return true
		}
		buf = append(buf, state.Dirent{ID: id, Mode: uint32(en.Mode), Name: name, Cookie: cookie})
		return len(buf)-start < readdirBatch
	})
	return buf
}

// OpenDir notes that a process opens a directory.
func (e *names) OpenDir(id index.ID) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.elsewhere.UseDirLocked(e.Mu.Ix.At(id))
}

// LastCookie returns the highest cookie of an entry of dir, 0 if there is none.
func (e *names) LastCookie(dir index.ID) uint64 {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return e.Mu.Ix.Last(dir)
}

// Parent returns the directory that holds id. The root is its own parent.
func (e *names) Parent(id index.ID) index.ID {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if p := e.Mu.Ix.Parent(id); p != 0 {
		return p
	}
	return index.Root
}

// RefNamed counts one more reference by the kernel to id, as READDIRPLUS gives, if id is still the child of dir
// called name. Otherwise it returns false.
func (e *names) RefNamed(dir, id index.ID, name string) (state.Attr, bool) {
	e.Mu.Lock()
	if e.Mu.Ix.Lookup(dir, name) != id {
		e.Mu.Unlock()
		return state.Attr{}, false
	}
	en := e.Mu.Ix.At(id)
	if !en.Committed() {
		e.Mu.Unlock()
		return state.Attr{}, false // other processes may not find it
	}
	en.Lookups++
	a, live := e.AttrLocked(id, en), e.Mu.Files[id]
	e.Mu.Unlock()
	if live != nil {
		a = live.Refresh(a)
	}
	return a, true
}
