package fs

import (
	"context"
	"hash/maphash"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// dirHandle is one open directory. Positions in it are the cookies of the
// engine, which stay valid while names come and go; the handle only remembers
// what was read ahead. Positions 1 and 2 follow "." and "..".
type dirHandle struct {
	f  *files
	id index.ID
	by tiers.Caller

	mu    sync.Mutex // the kernel may read one open directory from several threads
	ahead []tiers.Dirent
	next  int      // of ahead
	pos   uint64   // position before ahead[next]
	last  index.ID // entry at pos, to resume from

	// What other nodes have comes after the entries of this one; after that, entries that
	// were made meanwhile.
	far      []tiers.Dirent
	asked    bool                // far is there
	farDone  bool                // it was given out, since the last time that the reader went back
	near     map[uint64]struct{} // hashes of the names of this node that were given out
	farGiven map[uint64]struct{} // and of those of far
	seed     maphash.Seed
}

// given reports whether a name was given out as one of set.
func (d *dirHandle) given(set map[uint64]struct{}, name string) bool {
	if len(set) == 0 {
		return false
	}
	_, ok := set[maphash.String(d.seed, name)]
	return ok
}

// give notes that a name was given out as one of set.
func (d *dirHandle) give(set *map[uint64]struct{}, name string) {
	if *set == nil {
		*set = map[uint64]struct{}{}
	}
	(*set)[maphash.String(d.seed, name)] = struct{}{}
}

// farBase is the position before the first name that only other nodes have. Cookies of
// the engine are below it, and so are the numbers of inodes.
const farBase = device.NodesEnd

// listedTimeout is how long the kernel keeps the name of a file that it saw in a
// listing: enough for the stat that follows, short because listing a directory
// must not forbid the eviction of all that is in it, as look-ups do.
const listedTimeout = time.Second

// dots is how many positions "." and ".." take.
const dots = 2

// OpenDir implements OPENDIR.
func (f *files) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.ops.add(opOpendir)
	if isControl(in.NodeId) {
		return f.control.opendir(in, out)
	}
	if !f.listings.begin() {
		return fuse.EINTR // upon which it is left to the next owner
	}
	d := &dirHandle{f: f, id: index.ID(in.NodeId), by: f.caller(in.Pid)}
	if f.opts.ListElsewhere {
		d.seed = maphash.MakeSeed()
	}
	out.Fh = f.handles.add(&handle{dir: d}, fhHandle)
	return fuse.OK
}

// ReleaseDir implements RELEASEDIR.
func (f *files) ReleaseDir(in *fuse.ReleaseIn) {
	f.ops.add(opReleasedir)
	if h := f.handles.take(in.Fh); h != nil && h.dir != nil && h.control == nil {
		f.listings.end()
	}
}

// listings counts the open directories. The next owner knows none of them, and an engine that is told
// ESTALE in the middle of a listing may never list again, so that those under way are ended first.
type listings struct {
	mu struct {
		sync.Mutex
		n    int
		none chan struct{} // of drain: closed when there is none; nil before
	}
}

// drainTime bounds how long an owner that lets go waits for open directories. A listing of 100,000 names
// takes a tenth of it; who keeps a directory open for longer does not read it all the time.
const drainTime = 300 * time.Millisecond

// begin counts a directory, unless it is to be opened by the next owner.
func (l *listings) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.none != nil {
		return false
	}
	l.mu.n++
	return true
}

func (l *listings) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.n--; l.mu.n == 0 && l.mu.none != nil {
		close(l.mu.none)
	}
}

// drain has no more directories opened, and waits until none is open, or drainTime. It is called once.
func (l *listings) drain() {
	l.mu.Lock()
	none := make(chan struct{})
	l.mu.none = none
	if l.mu.n == 0 {
		close(none)
	}
	l.mu.Unlock()
	t := time.NewTimer(drainTime)
	defer t.Stop()
	select {
	case <-none:
	case <-t.C:
	}
}

// ReadDir implements READDIR: names and types, without a look-up each.
func (f *files) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.ops.add(opReaddir)
	return f.readDir(in, func(e fuse.DirEntry, _ index.ID) bool { return out.AddDirEntry(e) })
}

// refDirent counts the kernel's reference to what a listing names.
func (f *files) refDirent(dir, id index.ID, e *fuse.DirEntry) (tiers.Attr, bool) {
	if e.Off > farBase {
		return f.engine.RefElsewhere(dir, e.Name)
	}
	return f.engine.RefNamed(dir, id, e.Name)
}

// ReadDirPlus implements READDIRPLUS: names with attributes, which count as
// look-ups for the kernel's references but grant no lease.
func (f *files) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.ops.add(opReaddirplus)
	return f.readDir(in, func(e fuse.DirEntry, id index.ID) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if id == 0 && e.Off <= farBase || e.Name == "." || e.Name == ".." {
			return true // a control file, or one of the dots
		}
		a, ok := f.refDirent(index.ID(in.NodeId), id, &e)
		if !ok {
			entry.NodeId = 0 // went meanwhile: the kernel looks it up itself
			return true
		}
		f.fillEntry(entry, &a)
		if a.Stable && a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			entry.SetEntryTimeout(min(f.opts.EntryTimeout, listedTimeout))
		}
		return true
	})
}

// addEntry takes the next entry of a listing, with the number of its node, and reports whether there was room; 0: a
// control file, or a name that only other nodes have.
type addEntry = func(fuse.DirEntry, index.ID) bool

// readDir sends entries from in.Offset on until add has no room.
func (f *files) readDir(in *fuse.ReadIn, add addEntry) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || h.dir == nil {
		return fuse.EBADF
	}
	if h.control != nil {
		return f.control.readdir(in, add)
	}
	d := h.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	pos := in.Offset
	for ; pos < dots; pos++ {
		if !add(d.dot(pos), d.id) {
			return fuse.OK
		}
	}
	d.seek(pos)
	if pos >= farBase && d.readFar(pos-farBase, add) {
		return fuse.OK
	}
	for d.readAhead(add) && d.addNear(add) {
	}
	return fuse.OK
}

// dot returns the entry at pos: "." or "..".
func (d *dirHandle) dot(pos uint64) fuse.DirEntry {
	e := fuse.DirEntry{Mode: syscall.S_IFDIR, Name: ".", Ino: d.f.epoch.Ino(uint64(d.id)), Off: pos + 1}
	if pos == 1 {
		e.Name, e.Ino = "..", d.f.epoch.Ino(uint64(d.f.engine.Parent(d.id)))
	}
	return e
}

// seek goes to a position behind the dots. At the first the listing begins anew.
func (d *dirHandle) seek(pos uint64) {
	if pos == dots {
		d.far, d.asked, d.near, d.farGiven = nil, false, nil, nil
	}
	if pos < farBase && (pos-dots != d.pos || pos == dots) {
		d.pos, d.last, d.next, d.ahead = pos-dots, 0, 0, d.ahead[:0]
		d.farDone = false
	}
}

// readAhead sees to it that there is an entry ahead, after what other nodes have if this one has no more. It reports
// false if there is none, or add had no room.
func (d *dirHandle) readAhead(add addEntry) bool {
	for d.next == len(d.ahead) {
		d.ahead = d.f.engine.ReadDir(d.id, d.pos, d.last, d.by, d.ahead[:0])
		d.next = 0
		if len(d.ahead) > 0 {
			break
		}
		if d.farDone || !d.f.opts.ListElsewhere || d.readFar(0, add) {
			return false
		}
	}
	return true
}

// addNear sends the entry ahead, unless it was sent as another node's, and reports whether add had room.
func (d *dirHandle) addNear(add addEntry) bool {
	e := &d.ahead[d.next]
	if !d.given(d.farGiven, e.Name) {
		if !add(fuse.DirEntry{Mode: e.Mode & syscall.S_IFMT, Name: e.Name, Ino: d.f.epoch.Ino(uint64(e.ID)), Off: e.Cookie + dots}, e.ID) {
			return false
		}
		if d.f.opts.ListElsewhere {
			d.give(&d.near, e.Name)
		}
	}
	d.pos, d.last = e.Cookie, e.ID
	d.next++
	return true
}

// listFar asks what other nodes have in a directory.
func (d *dirHandle) listFar() []tiers.Dirent {
	ctx, cancel := context.WithTimeout(d.f.ctx, d.f.opts.ListTimeout)
	defer cancel()
	return d.f.engine.Elsewhere(ctx, d.id)
}

// readFar sends the names from number n on that other nodes have and that were not sent
// as this node's, and reports whether add had no room.
func (d *dirHandle) readFar(n uint64, add addEntry) (full bool) {
	if !d.asked {
		d.asked, d.far = true, d.listFar()
	}
	for ; n < uint64(len(d.far)); n++ {
		e := &d.far[n]
		if d.given(d.near, e.Name) {
			continue
		}
		// The inode number shows at the look-up. This one is no other name'f.
		ino := farBase | maphash.String(farSeed, e.Name)>>3 ^ uint64(d.id)
		if !add(fuse.DirEntry{Mode: e.Mode & syscall.S_IFMT, Name: e.Name, Ino: ino, Off: farBase + n + 1}, 0) {
			return true
		}
		d.give(&d.farGiven, e.Name)
	}
	d.farDone = true
	return false
}

// farSeed makes the inode numbers of listed names the same in each listing.
var farSeed = maphash.MakeSeed()
