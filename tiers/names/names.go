package names

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// Names says what a name means, here and on other nodes, and how names come and go. All methods may be called in parallel.
type Names struct {
	*state.State
	Copies Copies // set before all calls

	listings    listings      // leaf lock of its own
	implausible atomic.Uint64 // version numbers of other nodes that cannot be right

	// Guarded by State.Mu.
	links    links
	retained []retained  // oldest first
	leases   room.Leases // of requests
	strays   []index.ID  // entries made for files and directories of other nodes, perhaps without a reference
}

// Copies are what the tiers below memory have of a block. They follow its name.
type Copies interface {
	// DisownLocked removes what Finders have at the path of a name that a process takes away or replaces, and of which the
	// engine did not know: else a look-up would find that again. known are the tiers that are told of the name anyway.
	DisownLocked(path string, known uint16)
	// DropCopiesLocked takes a block that is gone out of the tiers, voids its stores, and parts its promotion from the entry.
	DropCopiesLocked(id index.ID, en *index.Entry)
	// PromotingLocked returns the name of the tier that is asked for the block of an entry, "" if the block is not on its
	// way into memory.
	PromotingLocked(id index.ID) (tier string)
}

// New returns a Names. The caller sets Copies.
func New(st *state.State) *Names { return &Names{State: st} }

// ResolveLocked returns the file or directory of a name, 0 if there is none, or only a private file of another process.
// stable is false if other callers get another answer, now or soon.
func (nm *Names) ResolveLocked(parent index.ID, name string, by state.Caller, g *state.Gone) (id index.ID, stable bool) {
	id = nm.FindLocked(parent, name, g)
	if id == 0 {
		// Otherwise another node, kernel or user of a tier can make it at any time.
		return 0, nm.Remote == nil && len(nm.Finders) == 0 && !nm.Opts.Kernels
	}
	if nm.Mu.Ix.At(id).Committed() {
		return id, !nm.IsLinkLocked(catalog.Name{Parent: parent, Name: name})
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
// half a second at most, or until the engine closes. nonresident: the block is in lower tiers only.
func (nm *Names) Lookup(parent index.ID, name string, by state.Caller) (a state.Attr, nonresident bool, err error) {
	a, l, err := nm.lookup(parent, name, &by, false)
	if l.unknown != "" {
		state.Announce(by.Waits)
		nm.Ask(nm.Ctx, []string{l.unknown})
		a, l, err = nm.lookup(parent, name, &by, true)
	}
	if err != nil {
		nm.missed(parent, name, &by, err)
		return a, false, err
	}
	if l.live != nil {
		a = l.live.Refresh(a)
	}
	return a, l.nonresident, nil
}

// missed counts a look-up that ended with an error. A reader's process is not known before it matters.
func (nm *Names) missed(parent index.ID, name string, by *state.Caller, err error) {
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
	live        state.WriteSide // as liveLocked
	nonresident bool

	unknown string // not empty: nothing was found nor counted, and other nodes must be asked about this path
}

// lookup is one try of Lookup. asked: it is the last one, because other nodes were asked or need not be.
func (nm *Names) lookup(parent index.ID, name string, by *state.Caller, asked bool) (state.Attr, looked, error) {
	g := nm.NewGone()
	defer nm.Finish(g)
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	id, stable := nm.ResolveLocked(parent, name, *by, g)
	if id != 0 && nm.ExpiredLocked(id) {
		id, stable = 0, false
	}
	if id == 0 {
		if !asked {
			if path := nm.UnknownLocked(parent, name); path != "" {
				return state.Attr{}, looked{unknown: path}, block.ErrNotFound
			}
		}
		return state.Attr{Stable: stable}, looked{}, nm.absentLocked(parent)
	}
	en := nm.Mu.Ix.At(id)
	nm.UseDirLocked(id, en)
	nonresident, until := nm.NonresidentLocked(id, en), int64(0)
	if now := nm.Now(); nonresident || en.Ranked() {
		if nm.Opts.LookupLease > 0 {
			until = now + int64(nm.Opts.LookupLease)
		}
		nm.Mu.Room.Follow(nm.Mu.Bill(en), uint32(id), nm.Mu.Room.Burst(by.User().Number(), now), false)
	}
	nm.ApplyLocked(catalog.LookedUp{ID: id, Until: until})
	nm.Mu.Counters.LookupHit++
	state.CountFound(nm.State, en)
	a := nm.AttrLocked(id, en)
	a.Stable = a.Stable && stable
	return a, looked{live: nm.liveLocked(id), nonresident: nonresident}, nil
}

// absentLocked returns the error of a look-up that found nothing.
func (nm *Names) absentLocked(parent index.ID) error {
	if nm.Opts.Kernels && parent != index.Root && !nm.Mu.Ix.Linked(parent) {
		return state.ErrStale // another directory may have its name
	}
	return block.ErrNotFound
}

// liveLocked returns the write side of an entry whose bytes may have changed since they were last accounted, else
// nil.
func (nm *Names) liveLocked(id index.ID) state.WriteSide {
	f := nm.Mu.Files[id]
	if f == nil || f.HandlesLocked() == 0 {
		return nil
	}
	return f
}

// Forget takes back n references by the kernel.
func (nm *Names) Forget(id index.ID, n uint64) {
	if id == index.Root {
		return
	}
	g := nm.NewGone()
	nm.Mu.Lock()
	nm.ApplyLocked(catalog.Forgotten{ID: id, N: n})
	nm.ReapLocked(id, nm.Mu.Ix.At(id), g)
	nm.Mu.Unlock()
	nm.Finish(g)
}

// CloseRead gives back the pin of an open for reading.
func (nm *Names) CloseRead(id index.ID) {
	g := nm.NewGone()
	nm.Mu.Lock()
	nm.ApplyLocked(catalog.Closed{ID: id})
	nm.ClosedLocked(id, g)
	nm.Mu.Unlock()
	nm.Finish(g)
}

// ClosedLocked follows the end of a handle.
func (nm *Names) ClosedLocked(id index.ID, g *state.Gone) {
	if en := nm.Mu.Ix.At(id); en.Opens() == 0 {
		nm.ReapLocked(id, en, g)
	}
}

// AttrLocked returns the attributes of an entry.
func (nm *Names) AttrLocked(id index.ID, en *index.Entry) state.Attr {
	a := state.Attr{
		ID: id, Mode: uint32(en.Mode()), UID: en.UID(), GID: en.GID(), Nlink: 1,
		Size: en.Size(), Mtime: en.Mtime(), Atime: en.Atime(), Ctime: en.Ctime(),
		Stable: en.Stable(),
		Temp:   en.IsTemp(),
	}
	f := nm.Mu.Files[id]
	if en.IsDir() {
		a.Nlink, a.Size = 1, catalog.PageBytes // 1: subdirectories are not counted
		return nm.linkedAttrLocked(id, en, f, a)
	}
	a.Changing = f != nil && f.HandlesLocked() > 0
	if nm.Remote != nil && nm.FarLocked(id, en) {
		a.Stable = false // other nodes may change the attributes of their files
	}
	return nm.linkedAttrLocked(id, en, f, a)
}

// linkedAttrLocked returns a, with Nlink and Gone set as they must be if the name is gone or there is a second one.
func (nm *Names) linkedAttrLocked(id index.ID, en *index.Entry, f state.WriteSide, a state.Attr) state.Attr {
	if !en.Linked() && id != index.Root {
		a.Nlink = 0
		a.Gone = f == nil && en.Opens() == 0 && !en.IsDir()
	}
	if nm.LinkedLocked(id) {
		a.Nlink++
		a.Changing = true
	}
	return a
}

// Attr returns the attributes of an entry that the kernel holds a reference to.
func (nm *Names) Attr(id index.ID) state.Attr {
	nm.Mu.Lock()
	a, live := nm.AttrLocked(id, nm.Mu.Ix.At(id)), nm.liveLocked(id)
	nm.Mu.Unlock()
	if live != nil {
		a = live.Refresh(a)
	}
	return a
}

// CheckNewLocked checks that name may be made in parent.
func (nm *Names) CheckNewLocked(parent index.ID, name string) error {
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
func (nm *Names) dirFile() (blob driver.BlobID, file *os.File, err error) {
	nm.Mu.Lock()
	full := nm.Mu.DirFiles() >= max(nm.Opts.CapacityBytes/dirShare, minDirFiles)
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

// Mkdir makes a directory for a process and counts one reference by the kernel. It fails with ErrExist, ErrNotDir,
// ErrNotFound, ErrReserved, ErrInvalid or ErrNameTooLong.
func (nm *Names) Mkdir(parent index.ID, name string, mode, uid, gid uint32, by state.Process) (state.Attr, error) {
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
	if err == nil && nm.FindLocked(parent, name, &g) != 0 {
		err = block.ErrExist
	}
	if err != nil {
		nm.Mu.Unlock()
		if blob != 0 {
			g.Blobs = append(g.Blobs, blob)
		}
		nm.Finish(&g)
		return state.Attr{}, err
	}
	now := nm.Now()
	id := nm.ApplyLocked(&catalog.CreatedDir{
		Attrs:  catalog.Attrs{Mode: uint16(state.ModeDir | mode&0o7777), UID: uid, GID: gid, Mtime: now, Atime: now, Ctime: now},
		Parent: parent, Name: name, Inherit: true, Dated: true, Refs: 1, Blob: uint64(blob), Seq: nm.NextSeqLocked(),
	}).ID
	nm.OwnDirsLocked(id)
	nm.DirEventLocked(event.DirCreated, id)
	a := nm.AttrLocked(id, nm.Mu.Ix.At(id))
	nm.Mu.Unlock()
	nm.Finish(&g)
	return a, nm.Recorder.WriteRecord(id, file)
}

// DropExpiredLocked removes a file that is past its time to live, so that its name can be made again.
func (nm *Names) DropExpiredLocked(parent index.ID, name string, g *state.Gone) {
	id := nm.Mu.Ix.Lookup(parent, name)
	if id == 0 || !nm.ExpiredLocked(id) || !nm.Mu.Ix.At(id).Committed() {
		return
	}
	nm.Mu.Counters.Expired++
	nm.DropNameLocked(id, nm.Mu.Ix.At(id), outcome.Cause{Reason: outcome.ReasonExpired}, g)
}

// Rmdir removes an empty directory. It fails with ErrNotFound, ErrNotDir or ErrNotEmpty.
func (nm *Names) Rmdir(ctx context.Context, parent index.ID, name string, by state.Caller) error {
	if err := nm.EmptyElsewhere(ctx, parent, name); err != nil {
		return err
	}
	var g state.Gone
	nm.Mu.Lock()
	err := nm.rmdirLocked(parent, name, &by, &g)
	nm.Mu.Unlock()
	nm.Finish(&g)
	return err
}

func (nm *Names) rmdirLocked(parent index.ID, name string, by *state.Caller, g *state.Gone) error {
	id := nm.FindLocked(parent, name, g)
	if id == 0 {
		return block.ErrNotFound
	}
	en := nm.Mu.Ix.At(id)
	if !en.IsDir() {
		return block.ErrNotDir
	}
	if !nm.EmptyLocked(id, *by, g) {
		return block.ErrNotEmpty
	}
	if nm.Remote != nil {
		nm.Far.Bury([]driver.Grave{{Path: nm.Mu.Ix.Path(id), Dir: true, Seq: nm.NextSeqLocked()}})
	}
	proc := by.Proc()
	nm.DropDirLocked(id, en, &proc, g)
	nm.ChangedLocked(parent)
	return nil
}

// EmptyLocked reports whether a directory is empty to the caller. If it is, the private files of other processes there
// become unlinked files.
func (nm *Names) EmptyLocked(dir index.ID, by state.Caller, g *state.Gone) bool {
	n := nm.Mu.Ix.Children(dir)
	if n == 0 || int64(n) > nm.Writers.Load() {
		return n == 0
	}
	var others []index.ID
	for id, f := range nm.Mu.Files {
		if nm.Mu.Ix.Parent(id) == dir && !nm.Mu.Ix.At(id).Committed() && !f.MineLocked(by) {
			others = append(others, id)
		}
	}
	if int(n) > len(others) {
		return false
	}
	for _, id := range others {
		nm.DropNameLocked(id, nm.Mu.Ix.At(id), outcome.Cause{}, g)
	}
	return true
}

// DropDirLocked removes the name and the record of an empty directory. by is as of state.ChangeLocked.
func (nm *Names) DropDirLocked(id index.ID, en *index.Entry, by *state.Process, g *state.Gone) {
	nm.DirEventLocked(event.DirRemoved, id)
	nm.dropLinksLocked(id, g)
	nm.ClearTiersLocked(id, en, en.Tiers(), 0)
	nm.ChangeLocked(catalog.Removed{ID: id, Asked: by != nil}, by, g)
	nm.ReapLocked(id, en, g)
}

// UnlinkLocked drops a name because a kernel asked for it, for a process.
func (nm *Names) UnlinkLocked(id index.ID, why outcome.Cause, by state.Process, g *state.Gone) {
	nm.dropLocked(id, nm.Mu.Ix.At(id), catalog.Removed{Asked: true, Why: why}, &by, g)
}

// readdirBatch bounds how many entries one hold of the lock copies.
const readdirBatch = 1024

// ReadDir appends to buf up to readdirBatch entries of dir that come after a cookie, in a stable order, and returns
// the longer slice. If it appended nothing, there are no more. hint is the ID of the entry whose cookie is after, or
// 0. ReadDir leaves out files that another process writes under their final name, and with HideElsewhere the names
// that only other nodes have.
func (nm *Names) ReadDir(dir index.ID, after uint64, hint index.ID, by state.Caller, buf []state.Dirent) []state.Dirent {
	start := len(buf)
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	now := nm.Now()
	nm.Mu.Ix.ReadDir(dir, after, hint, func(id index.ID, en *index.Entry, cookie uint64) bool {
		name := nm.Mu.Ix.Name(id)
		if !en.Committed() && !nm.Mu.Files[id].MineLocked(by) {
			return true
		}
		if at := nm.Mu.Ix.Expires(id); at != 0 && at <= now || nm.Opts.HideElsewhere && nm.ElsewhereLocked(id, en) {
			return true
		}
		buf = append(buf, state.Dirent{ID: id, Mode: uint32(en.Mode()), Name: name, Cookie: cookie})
		return len(buf)-start < readdirBatch
	})
	return buf
}

// OpenDir notes that a process opens a directory.
func (nm *Names) OpenDir(id index.ID) {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	nm.UseDirLocked(id, nm.Mu.Ix.At(id))
}

// LastCookie returns the highest cookie of an entry of dir, 0 if there is none.
func (nm *Names) LastCookie(dir index.ID) uint64 {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	return nm.Mu.Ix.Last(dir)
}

// Parent returns the directory that holds id. The root is its own parent.
func (nm *Names) Parent(id index.ID) index.ID {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	if p := nm.Mu.Ix.Parent(id); p != 0 {
		return p
	}
	return index.Root
}

// RefNamed counts one more reference by the kernel to id, as READDIRPLUS gives, if id is still the child of dir
// called name. Otherwise it returns false.
func (nm *Names) RefNamed(dir, id index.ID, name string) (state.Attr, bool) {
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
	nm.ApplyLocked(catalog.Referred{ID: id})
	a, live := nm.AttrLocked(id, en), nm.Mu.Files[id]
	nm.Mu.Unlock()
	if live != nil {
		a = live.Refresh(a)
	}
	return a, true
}
