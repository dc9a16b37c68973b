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
func (nm *names) ResolveLocked(parent index.ID, name string, by state.Caller) (id index.ID, stable bool) {
	id = nm.elsewhere.FindLocked(parent, name)
	if id == 0 {
		// Otherwise another node, kernel or user of a tier can make it at any time.
		return 0, nm.Remote == nil && len(nm.Finders) == 0 && !nm.Opts.Kernels
	}
	if nm.Mu.Ix.At(id).Committed() {
		return id, true
	}
	if !nm.Mu.Files[id].MineLocked(by) {
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
func (nm *names) Lookup(parent index.ID, name string, by state.Caller) (a state.Attr, err error) {
	a, l, err := nm.lookup(parent, name, &by, false)
	if l.unknown != "" {
		state.Announce(by.Waits)
		nm.elsewhere.Ask(nm.Ctx, []string{l.unknown})
		a, l, err = nm.lookup(parent, name, &by, true)
	}
	if err != nil {
		nm.missed(parent, name, &by, err)
		return a, err
	}
	if l.live != nil {
		a = l.live.Refresh(a)
	}
	if l.hollow && nm.Opts.PromoteOnLookup {
		nm.lower.Promote(nm.Ctx, nil, a.ID, true)
	}
	return a, nil
}

// missed counts a look-up that ended with an error. A reader's process is not known before it matters.
func (nm *names) missed(parent index.ID, name string, by *state.Caller, err error) {
	if !errors.Is(err, block.ErrNotFound) {
		return // the kernel looks up again
	}
	who := by.Proc()
	if who.PID == 0 && by.See != nil {
		who.PID = by.See.ProcessOf(by.Thread)
	}
	nm.Mu.Lock()
	nm.MissedLocked(parent, name, who)
	nm.Mu.Unlock()
}

// looked is what a look-up finds besides attributes.
type looked struct {
	live   state.WriteSide // as liveLocked
	hollow bool

	unknown string // not empty: nothing was found nor counted, and other nodes must be asked about this path
}

// lookup is one try of Lookup. asked: it is the last one, because other nodes were asked or need not be.
func (nm *names) lookup(parent index.ID, name string, by *state.Caller, asked bool) (state.Attr, looked, error) {
	g := nm.NewGone()
	defer nm.Finish(g)
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	defer nm.elsewhere.TellOutdatedLocked(g)
	id, stable := nm.ResolveLocked(parent, name, *by)
	if id != 0 && nm.ExpiredLocked(id) {
		id, stable = 0, false
	}
	if id == 0 {
		if !asked {
			if path := nm.elsewhere.UnknownLocked(parent, name); path != "" {
				return state.Attr{}, looked{unknown: path}, block.ErrNotFound
			}
		}
		return state.Attr{Stable: stable}, looked{}, nm.absentLocked(parent, by)
	}
	en := nm.Mu.Ix.At(id)
	en.Lookups++
	nm.elsewhere.UseDirLocked(en)
	hollow := nm.HollowLocked(id, en)
	if nm.Opts.LookupLease > 0 && (hollow || en.Ranked()) {
		en.Lease = nm.Now() + int64(nm.Opts.LookupLease)
	}
	nm.Mu.Counters.LookupHit++
	state.CountFound(nm.State, en)
	a := nm.AttrLocked(id, en)
	a.Stable = a.Stable && stable
	return a, looked{live: nm.liveLocked(id), hollow: hollow}, nil
}

// absentLocked returns the error of a look-up that found nothing.
func (nm *names) absentLocked(parent index.ID, by *state.Caller) error {
	if nm.Opts.Kernels && !by.Told && parent != index.Root && !nm.Mu.Ix.Linked(parent) {
		return state.ErrStale // another directory may have its name
	}
	return block.ErrNotFound
}

// liveLocked returns the write side of an entry whose bytes may have changed since they were last accounted, else
// nil.
func (nm *names) liveLocked(id index.ID) state.WriteSide {
	f := nm.Mu.Files[id]
	if f == nil || f.HandlesLocked() == 0 {
		return nil
	}
	return f
}

// Forget takes back n references by the kernel.
func (nm *names) Forget(id index.ID, n uint64) {
	if id == index.Root {
		return
	}
	g := nm.NewGone()
	nm.Mu.Lock()
	en := nm.Mu.Ix.At(id)
	en.Lookups -= uint32(min(n, uint64(en.Lookups)))
	nm.ReapLocked(id, en, g)
	nm.Mu.Unlock()
	nm.Finish(g)
}

// AttrLocked returns the attributes of an entry.
func (nm *names) AttrLocked(id index.ID, en *index.Entry) state.Attr {
	a := state.Attr{
		ID: id, Mode: uint32(en.Mode), UID: en.UID, GID: en.GID, Nlink: 1,
		Size: en.Size, Mtime: en.Mtime, Atime: en.Atime, Ctime: en.Ctime,
		Stable: en.Stable(),
		Temp:   en.IsTemp(),
	}
	f := nm.Mu.Files[id]
	if en.IsDir() {
		a.Nlink, a.Size = 1, state.PageBytes // 1: subdirectories are not counted
		return nm.linkedAttrLocked(id, en, f, a)
	}
	a.Changing = f != nil && f.HandlesLocked() > 0
	if nm.Remote != nil && nm.FarLocked(id, en) {
		a.Stable = false // other nodes may change the attributes of their files
	}
	return nm.linkedAttrLocked(id, en, f, a)
}

// linkedAttrLocked returns a, with Nlink 0 and Gone set as they must be if the name is gone.
func (nm *names) linkedAttrLocked(id index.ID, en *index.Entry, f state.WriteSide, a state.Attr) state.Attr {
	if !nm.Mu.Ix.Linked(id) && id != index.Root {
		a.Nlink = 0
		a.Gone = f == nil && en.Opens == 0 && !en.InLimbo() && !en.IsDir()
	}
	return a
}

// Attr returns the attributes of an entry that the kernel holds a reference to.
func (nm *names) Attr(id index.ID) state.Attr {
	nm.Mu.Lock()
	a, live := nm.AttrLocked(id, nm.Mu.Ix.At(id)), nm.liveLocked(id)
	nm.Mu.Unlock()
	if live != nil {
		a = live.Refresh(a)
	}
	return a
}

// CheckNewLocked checks that name may be made in parent.
func (nm *names) CheckNewLocked(parent index.ID, name string) error {
	if err := block.CheckName(name); err != nil {
		return err
	}
	if parent == index.Root && name == block.Reserved {
		return block.ErrReserved
	}
	if err := nm.DirLocked(parent); err != nil {
		return err
	}
	nm.Mu.Scratch = nm.Mu.Ix.AppendPath(nm.Mu.Scratch[:0], parent)
	if len(nm.Mu.Scratch)+1+len(name) > block.MaxPath {
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
func (nm *names) dirFile() (blob driver.BlobID, file *os.File, err error) {
	nm.Mu.Lock()
	full := nm.dirFiles >= max(nm.Opts.CapacityBytes/dirShare, minDirFiles)
	nm.Mu.Unlock()
	if full {
		return 0, nil, nil
	}
	blob, file, err = nm.Primary.Create()
	if errors.Is(err, block.ErrNoSpace) {
		return 0, nil, nil
	}
	return blob, file, err
}

// AddDirFile counts a directory with a file of its own.
func (nm *names) AddDirFile() { nm.dirFiles++ }

// Mkdir makes a directory for a process and counts one reference by the kernel. It fails with ErrExist, ErrNotDir,
// ErrNotFound, ErrReserved, ErrInvalid or ErrNameTooLong.
func (nm *names) Mkdir(parent index.ID, name string, mode, uid, gid uint32, by state.Process) (state.Attr, error) {
	blob, file, err := nm.dirFile()
	if err != nil {
		return state.Attr{}, err
	}
	defer file.Close()
	var g state.Gone
	nm.Mu.Lock()
	nm.StoresLocked(parent, name, by, nm.Now())
	nm.DropExpiredLocked(parent, name, &g)
	err = nm.CheckNewLocked(parent, name)
	if err == nil && nm.elsewhere.FindLocked(parent, name) != 0 {
		err = block.ErrExist
	}
	nm.elsewhere.TellOutdatedLocked(&g)
	if err != nil {
		nm.Mu.Unlock()
		if blob != 0 {
			g.Blobs = append(g.Blobs, blob)
		}
		nm.Finish(&g)
		return state.Attr{}, err
	}
	id := nm.Mu.Ix.Alloc()
	en := nm.Mu.Ix.At(id)
	now := nm.Now()
	en.Mode, en.UID, en.GID = uint16(state.ModeDir|mode&0o7777), uid, gid
	nm.InheritGroupLocked(parent, en)
	en.Mtime, en.Atime, en.Ctime = now, now, now
	en.Blob, en.Lookups = uint64(blob), 1
	if blob != 0 {
		nm.dirFiles++
	}
	en.Seq = nm.NextSeqLocked()
	nm.Mu.Ix.Link(id, parent, name)
	nm.MarkDirLocked(id, en)
	nm.ChangedLocked(parent)
	nm.elsewhere.OwnDirsLocked(id)
	nm.DirEventLocked(event.DirCreated, id)
	a := nm.AttrLocked(id, en)
	nm.Mu.Unlock()
	nm.Finish(&g)
	return a, nm.writing.WriteRecord(id, file)
}

// DropExpiredLocked removes a file that is past its time to live, so that its name can be made again.
func (nm *names) DropExpiredLocked(parent index.ID, name string, g *state.Gone) {
	id := nm.Mu.Ix.Lookup(parent, name)
	if id == 0 || !nm.ExpiredLocked(id) || !nm.Mu.Ix.At(id).Committed() {
		return
	}
	nm.Mu.Counters.Expired++
	nm.DropNameLocked(id, nm.Mu.Ix.At(id), event.Removed, fate.Cause{Reason: fate.ReasonExpired}, g)
}

// Rmdir removes an empty directory. It fails with ErrNotFound, ErrNotDir or ErrNotEmpty.
func (nm *names) Rmdir(ctx context.Context, parent index.ID, name string, by state.Caller) error {
	if err := nm.elsewhere.EmptyElsewhere(ctx, parent, name); err != nil {
		return err
	}
	var g state.Gone
	nm.Mu.Lock()
	err := nm.rmdirLocked(parent, name, &by, &g)
	nm.elsewhere.TellOutdatedLocked(&g)
	nm.Mu.Unlock()
	nm.Finish(&g)
	return err
}

func (nm *names) rmdirLocked(parent index.ID, name string, by *state.Caller, g *state.Gone) error {
	id := nm.elsewhere.FindLocked(parent, name)
	if id == 0 {
		return block.ErrNotFound
	}
	en := nm.Mu.Ix.At(id)
	if !en.IsDir() {
		return block.ErrNotDir
	}
	if !nm.writing.EmptyLocked(id, *by, g) {
		return block.ErrNotEmpty
	}
	if nm.Remote != nil {
		nm.Far.Bury([]driver.Grave{{Path: nm.Mu.Ix.Path(id), Dir: true, Seq: nm.NextSeqLocked()}})
	}
	nm.NameLeftLocked(id, en, by.Proc(), g)
	nm.DropDirLocked(id, en, g)
	nm.ChangedLocked(parent)
	return nil
}

// DropDirLocked removes the name and the record of an empty directory. It does not tell the kernel, because the
// kernel asked for it.
func (nm *names) DropDirLocked(id index.ID, en *index.Entry, g *state.Gone) {
	nm.DirEventLocked(event.DirRemoved, id)
	nm.ClearTiersLocked(id, en, en.Tiers)
	nm.Mu.Ix.Unlink(id)
	if en.InMemory() {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob))
		en.Blob = 0
		nm.dirFiles--
	}
	nm.ReapLocked(id, en, g)
}

// UnlinkLocked drops a name because a kernel asked for it, so that only the other kernels are told. by is as in
// Options.Invalidate.
func (nm *names) UnlinkLocked(id index.ID, why fate.Cause, by state.Process, g *state.Gone) {
	en := nm.Mu.Ix.At(id)
	nm.NameLeftLocked(id, en, by, g)
	n := len(g.Names)
	nm.DropNameLocked(id, en, event.Removed, why, g)
	g.Names = g.Names[:n]
}

// readdirBatch bounds how many entries one hold of the lock copies.
const readdirBatch = 1024

// ReadDir appends to buf up to readdirBatch entries of dir that come after a cookie, in a stable order, and returns
// the longer slice. If it appended nothing, there are no more. hint is the ID of the entry whose cookie is after, or
// 0. ReadDir leaves out files that another process writes under their final name, and with HideElsewhere the names
// that only other nodes have.
func (nm *names) ReadDir(dir index.ID, after uint64, hint index.ID, by state.Caller, buf []state.Dirent) []state.Dirent {
	start := len(buf)
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	now := nm.Now()
	nm.Mu.Ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
		name := nm.Mu.Ix.Name(id)
		if !en.Committed() && !nm.Mu.Files[id].MineLocked(by) {
			return true
		}
		if at := nm.Mu.Ix.Expires(id); at != 0 && at <= now || nm.Opts.HideElsewhere && nm.elsewhere.ElsewhereLocked(id, en) {
			return true
		}
		buf = append(buf, state.Dirent{ID: id, Mode: uint32(en.Mode), Name: name, Cookie: cookie})
		return len(buf)-start < readdirBatch
	})
	return buf
}

// OpenDir notes that a process opens a directory.
func (nm *names) OpenDir(id index.ID) {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	nm.elsewhere.UseDirLocked(nm.Mu.Ix.At(id))
}

// LastCookie returns the highest cookie of an entry of dir, 0 if there is none.
func (nm *names) LastCookie(dir index.ID) uint64 {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	return nm.Mu.Ix.Last(dir)
}

// Parent returns the directory that holds id. The root is its own parent.
func (nm *names) Parent(id index.ID) index.ID {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	if p := nm.Mu.Ix.Parent(id); p != 0 {
		return p
	}
	return index.Root
}

// RefNamed counts one more reference by the kernel to id, as READDIRPLUS gives, if id is still the child of dir
// called name. Otherwise it returns false.
func (nm *names) RefNamed(dir, id index.ID, name string) (state.Attr, bool) {
	nm.Mu.Lock()
	if nm.Mu.Ix.Lookup(dir, name) != id {
		nm.Mu.Unlock()
		return state.Attr{}, false
	}
	en := nm.Mu.Ix.At(id)
	if !en.Committed() {
		nm.Mu.Unlock()
		return state.Attr{}, false // other processes may not find it
	}
	en.Lookups++
	a, live := nm.AttrLocked(id, en), nm.Mu.Files[id]
	nm.Mu.Unlock()
	if live != nil {
		a = live.Refresh(a)
	}
	return a, true
}
