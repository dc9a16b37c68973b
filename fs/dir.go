package fs

import (
	"context"
	"hash/maphash"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// dirHandle is one open directory. Its positions are the cookies of the engine, which stay valid while names
// come and go. The handle remembers only the entries read ahead. Positions 1 and 2 follow "." and "..".
type dirHandle struct {
	f  *files
	id index.ID
	by state.Caller

	mu    sync.Mutex // the kernel may read one open directory from several threads
	ahead []state.Dirent
	next  int      // index in ahead
	pos   uint64   // position before ahead[next]
	last  index.ID // entry at pos, to resume from
	sent  uint64   // position after the last entry that was sent; those from there to pos were left out
	until uint64   // cookie of the last entry when this part began: else a listing of names that move need not end

	// A listing has three parts: the names of this node, the names that only other nodes have,
	// and the names made on this node meanwhile. Without other nodes it has the first part only.
	far      []state.Dirent
	asked    bool                // far has been fetched
	farDone  bool                // far was listed since the reader last rewound
	near     map[uint64]struct{} // hashes of the names of this node that were listed
	farGiven map[uint64]struct{} // hashes of the names in far that were listed
	seed     maphash.Seed
}

// given reports whether name is in set.
func (d *dirHandle) given(set map[uint64]struct{}, name string) bool {
	if len(set) == 0 {
		return false
	}
	_, ok := set[maphash.String(d.seed, name)]
	return ok
}

// give adds name to set.
func (d *dirHandle) give(set *map[uint64]struct{}, name string) {
	if *set == nil {
		*set = map[uint64]struct{}{}
	}
	(*set)[maphash.String(d.seed, name)] = struct{}{}
}

// farBase is the position before the first name that only other nodes have. The cookies of the
// engine and the numbers of inodes are below it.
const farBase = device.NodesEnd

// listedTimeout is how long the kernel keeps the name of a file from a listing. It is long
// enough for the stat that follows. It is short because a kept name cannot be evicted, and a
// listing must not protect the whole directory as look-ups do.
const listedTimeout = time.Second

// dots is the number of positions that "." and ".." take.
const dots = 2

// OpenDir implements OPENDIR.
func (f *files) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer f.begin(device.OpOpendir).end()
	if isControl(in.NodeId) {
		return f.control.opendir(in, out)
	}
	if !f.listings.begin() {
		return fuse.EINTR // the client tries again, and the next owner answers
	}
	f.engine.OpenDir(index.ID(in.NodeId))
	d := &dirHandle{f: f, id: index.ID(in.NodeId), by: f.caller(in.Pid)}
	if f.opts.ListElsewhere {
		d.seed = maphash.MakeSeed()
	}
	out.Fh = f.handles.add(&handle{dir: d}, fhHandle)
	return fuse.OK
}

// ReleaseDir implements RELEASEDIR.
func (f *files) ReleaseDir(in *fuse.ReleaseIn) {
	defer f.begin(device.OpReleasedir).end()
	if h := f.handles.take(in.Fh); h != nil && h.dir != nil && h.control == nil {
		f.listings.end()
	}
}

// listings counts the open directories. The next owner knows none of them, and an engine that gets ESTALE in
// the middle of a listing may never list again. So a leaving owner waits for them.
type listings struct {
	mu struct {
		sync.Mutex
		n    int
		none chan struct{} // made by drain, closed when no directory is open
	}
}

// drainTime bounds the wait of a leaving owner for open directories. A listing of 100,000 names
// takes a tenth of it. A process that keeps a directory open for longer is not reading it.
const drainTime = 300 * time.Millisecond

// begin counts a directory. It reports false once drain was called: the next owner opens it.
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

// drain stops begin, and waits until no directory is open, or for drainTime. Call it once.
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
	defer f.begin(device.OpReaddir).end()
	return f.readDir(in, func(e fuse.DirEntry, _ index.ID) bool { return out.AddDirEntry(e) })
}

// refDirent counts the kernel's reference to an entry of a listing.
func (f *files) refDirent(dir, id index.ID, e *fuse.DirEntry) (state.Attr, bool) {
	if e.Off > farBase {
		return f.engine.RefElsewhere(dir, e.Name)
	}
	return f.engine.RefNamed(dir, id, e.Name)
}

// ReadDirPlus implements READDIRPLUS: names with attributes. Each entry counts as a look-up in
// the kernel's references but grants no lease.
func (f *files) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer f.begin(device.OpReaddirplus).end()
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
			entry.NodeId = 0 // removed meanwhile: the kernel looks it up itself
			return true
		}
		f.fillEntry(entry, &a)
		if a.Stable && a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			entry.SetEntryTimeout(min(f.opts.EntryTimeout, listedTimeout))
		}
		return true
	})
}

// addEntry adds the next entry of a listing with its node number, and reports whether there was
// room. The number is 0 for a control file and for a name that only other nodes have.
type addEntry = func(fuse.DirEntry, index.ID) bool

// readDir sends entries from in.Offset on until add reports no room.
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

// seek goes to a position after the dots. The first such position restarts the listing.
func (d *dirHandle) seek(pos uint64) {
	if pos == dots {
		d.far, d.asked, d.near, d.farGiven = nil, false, nil, nil
	}
	if pos < farBase && (pos-dots != d.pos && pos-dots != d.sent || pos == dots) {
		d.pos, d.sent, d.last, d.next, d.ahead = pos-dots, pos-dots, 0, 0, d.ahead[:0]
		d.farDone, d.until = false, d.f.engine.LastCookie(d.id)
	}
}

// readAhead fetches the next entry. If this node has no more, it first lists the names of other
// nodes. It reports false if there is no entry, or add had no room.
func (d *dirHandle) readAhead(add addEntry) bool {
	for d.next == len(d.ahead) {
		d.ahead = d.f.engine.ReadDir(d.id, d.pos, d.last, d.by, d.ahead[:0])
		d.next = 0
		if len(d.ahead) > 0 && d.ahead[0].Cookie <= d.until {
			break
		}
		d.ahead = d.ahead[:0]
		if d.farDone || !d.f.opts.ListElsewhere || d.readFar(0, add) {
			return false
		}
		d.until = d.f.engine.LastCookie(d.id)
	}
	return true
}

// addNear sends the entry read ahead, unless it was already sent as another node's. It reports
// whether add had room.
func (d *dirHandle) addNear(add addEntry) bool {
	e := &d.ahead[d.next]
	if e.Cookie > d.until {
		d.ahead = d.ahead[:d.next]
		return true
	}
	if !d.given(d.farGiven, e.Name) && !(d.farDone && d.given(d.near, e.Name)) {
		if !add(fuse.DirEntry{Mode: e.Mode & syscall.S_IFMT, Name: e.Name, Ino: d.f.epoch.Ino(uint64(e.ID)), Off: e.Cookie + dots}, e.ID) {
			return false
		}
		d.sent = e.Cookie
		if d.f.opts.ListElsewhere {
			d.give(&d.near, e.Name)
		}
	}
	d.pos, d.last = e.Cookie, e.ID
	d.next++
	return true
}

// listFar asks other nodes for their names in a directory.
func (d *dirHandle) listFar() []state.Dirent {
	ctx, cancel := context.WithTimeout(d.f.ctx, d.f.opts.ListTimeout)
	defer cancel()
	return d.f.engine.Elsewhere(ctx, d.id)
}

// readFar sends the names of other nodes from index n on, except those already sent as this
// node's. It reports whether add ran out of room.
func (d *dirHandle) readFar(n uint64, add addEntry) (full bool) {
	if !d.asked {
		d.asked, d.far = true, d.listFar()
	}
	for ; n < uint64(len(d.far)); n++ {
		e := &d.far[n]
		if d.given(d.near, e.Name) {
			continue
		}
		// A look-up shows the real inode number. No other name of the listing has this one.
		ino := farBase | maphash.String(farSeed, e.Name)>>3 ^ uint64(d.id)
		if !add(fuse.DirEntry{Mode: e.Mode & syscall.S_IFMT, Name: e.Name, Ino: ino, Off: farBase + n + 1}, 0) {
			return true
		}
		d.give(&d.farGiven, e.Name)
	}
	d.farDone = true
	return false
}

// farSeed makes the inode numbers of a name the same in each listing.
var farSeed = maphash.MakeSeed()
