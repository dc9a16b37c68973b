package tiers

import (
	"bytes"
	"math"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
)

// lookups is the room of questions about many names at a time: where their blocks are, and which of them a user may
// know of. An answer that a block is there gives a lease.
type lookups struct {
	*core

	leases room.Leases // of requests; guarded by core.mu
}

// Place says where Presences found a block.
type Place struct {
	Presence driver.Presence
	Late     bool  // a tier has it, but a load would take too long: Presence is Miss
	Dir      bool  // it is a directory: Presence is Miss
	Tier     uint8 // of a Hit: 0 is memory, i+1 stands for Options.Secondaries[i]
}

// PresenceOptions are the options of Presences.
type PresenceOptions struct {
	Lease bool // a block that is found stays readable for Options.LookupLease, as after Lookup
	// Deadline is how long a load may take by prediction. A block that would take longer is Late. 0: as OpenDeadline
	// of the group, else of Options, says; negative: no deadline.
	Deadline time.Duration
	As       *event.Viewer // a block that the user may not read is a miss, and gets no lease
	Request  string        // holds the leases; ReleaseRequest ends them
}

// presenceBatch bounds how many names one hold of the lock looks up: about ten microseconds.
const presenceBatch = 128

// Presences sets out[i] to where the block at paths[i] is, a path below the mount. A file that is being written is
// Pending, also to its own process. A directory is a miss, and so is a path that cannot exist. A block that only
// other nodes have is found, but gets no entry and no lease.
//
// Presences is made for thousands of names. It takes the lock for some of them at a time, does not wait, and
// allocates nothing for names of this node. Neighbours in one directory are found faster. len(out) must be at least
// len(paths).
func (e *lookups) Presences(paths [][]byte, o PresenceOptions, out []Place) {
	out = out[:len(paths)]
	for len(paths) > 0 {
		n := min(len(paths), presenceBatch)
		e.presences(paths[:n], &o, out[:n])
		paths, out = paths[n:], out[n:]
	}
}

func (e *lookups) presences(paths [][]byte, o *PresenceOptions, out []Place) {
	w := pathWalker{ix: e.mu.ix}
	var dirs, ids [presenceBatch]index.ID
	var names [presenceBatch]string
	hits := uint64(0)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	for i, path := range paths {
		dirs[i], names[i] = w.split(path)
	}
	e.mu.ix.LookupEach(dirs[:len(paths)], names[:len(paths)], ids[:])
	for i, path := range paths {
		switch {
		case ids[i] == 0:
			out[i] = e.absentLocked(dirs[i], names[i], path, o)
		case e.showsLocked(o.As, dirs[i], ids[i]):
			out[i] = e.placeLocked(ids[i], now, o)
		default:
			out[i] = Place{}
		}
		if out[i].Presence != driver.Miss {
			hits++
		}
	}
	e.mu.counters.LookupHit += hits
	e.mu.counters.LookupMisses += uint64(len(paths)) - hits
}

// pathWalker finds directories. It remembers the last one.
type pathWalker struct {
	ix  *index.Index
	dir []byte // nil: no directory yet
	id  index.ID
}

// split returns the directory of a path, 0 if there is none, and the name in it.
func (w *pathWalker) split(path []byte) (dir index.ID, name string) {
	n := len(w.dir)
	if n > 0 && len(path) > n && path[n] == '/' && bytes.Equal(path[:n], w.dir) && bytes.IndexByte(path[n+1:], '/') < 0 {
		return w.id, view(path[n+1:])
	}
	cut := bytes.LastIndexByte(path, '/')
	if cut < 0 {
		return index.Root, view(path)
	}
	if cut == 0 {
		return 0, "" // no path begins with a slash
	}
	w.dir = path[:cut]
	w.id = w.ix.Walk(view(w.dir))
	return w.id, view(path[cut+1:])
}

// view returns a string that shares the bytes of b. It is valid until they change.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// placeLocked returns where the block of an entry is.
func (e *lookups) placeLocked(id index.ID, now int64, o *PresenceOptions) Place {
	en := e.mu.ix.At(id)
	switch {
	case en.Mode&modeType == modeDir:
		return Place{Dir: true}
	case en.Expires != 0 && en.Expires <= now:
		return Place{}
	case en.Flags&(flagUncommitted|flagTemp) != 0:
		return Place{Presence: driver.Pending}
	}
	p := Place{Presence: driver.Hit}
	if e.hollowLocked(id, en) {
		if e.mu.promotions[id] != nil {
			p = Place{Presence: driver.Pending}
		} else {
			s := e.firstTier(en)
			if lateLocked(s, en.Size, e.deadlineOfLocked(e.mu.room.Group(en.Group), o.Deadline)) {
				return Place{Late: true}
			}
			p.Tier = uint8(s.n + 1)
		}
	}
	if o.Lease {
		e.leaseLocked(id, en, now, o.As, o.Request)
	}
	return p
}

// firstTier returns the tier that is asked first for a hollow block.
func (e *lookups) firstTier(en *index.Entry) *secondary {
	if own := e.ownTiers(en); own != 0 {
		return e.tiers[bits.TrailingZeros16(own)]
	}
	return e.tiers[bits.TrailingZeros16(en.Tiers)]
}

// absentLocked returns the place of a name without an entry: a version may be on its way, or other nodes may have the
// block.
func (e *lookups) absentLocked(dir index.ID, name string, path []byte, o *PresenceOptions) Place {
	if e.writingLocked(o.As, dir, name) {
		return Place{Presence: driver.Pending}
	}
	if e.remote == nil || dir != 0 && e.mu.ix.At(dir).Mode&modeType != modeDir || block.CheckPath(view(path)) != nil {
		return Place{}
	}
	l, ok := e.elsewhere.locate(string(path))
	if !ok || !e.showsFarLocked(o.As, string(path), &l) {
		return Place{}
	}
	if l.Mode&modeType != modeRegular {
		return Place{Dir: true}
	}
	if lateLocked(e.remote, l.Size, e.deadlineOfLocked(e.pathGroupLocked(path), o.Deadline)) {
		return Place{Late: true}
	}
	return Place{Presence: driver.Hit, Tier: uint8(e.remote.n + 1)}
}

// writingLocked reports whether a version that v may read waits to take a name in dir. dir is 0 if there is no such
// directory.
func (e *lookups) writingLocked(v *event.Viewer, dir index.ID, name string) bool {
	return dir != 0 && len(e.mu.waiting) > 0 &&
		slices.ContainsFunc(e.mu.waiting[nameKey{dir, name}], func(id index.ID) bool { return e.showsLocked(v, dir, id) })
}

// pathGroupLocked returns the group of a path, nil if the group has no account.
func (e *lookups) pathGroupLocked(path []byte) *room.Group {
	name, _, below := bytes.Cut(path, []byte("/"))
	if !below {
		name = nil
	}
	return e.mu.room.Find(block.GroupID(name))
}

// noDeadline is the deadline of an open that has none.
const noDeadline = time.Duration(math.MaxInt64)

// deadlineOfLocked returns how long the open of a block of group gr may take. gr is nil if the group has no account;
// want is as in PresenceOptions.
func (e *lookups) deadlineOfLocked(gr *room.Group, want time.Duration) time.Duration {
	if want == 0 {
		want = e.deadlines[gr]
	}
	if want == 0 {
		want = e.opts.OpenDeadline
	}
	if want <= 0 {
		return noDeadline
	}
	return want
}

// requesterOf returns the holder of a lease for a user and a request.
func requesterOf(as *event.Viewer, request string) room.Requester {
	if as == nil {
		return room.Requester{UID: -1, Request: request}
	}
	return room.Requester{UID: int64(as.UID), Request: request}
}

// leaseLocked grants the lease of a look-up to a block. A request that is not empty can end the lease early.
func (e *lookups) leaseLocked(id index.ID, en *index.Entry, now int64, as *event.Viewer, request string) {
	if e.opts.LookupLease <= 0 {
		return
	}
	before := en.Lease
	en.Lease = max(before, now+int64(e.opts.LookupLease))
	if request != "" {
		en.Lease = max(en.Lease, before+1) // each request has another end
		e.leases.Add(requesterOf(as, request), room.Lease{ID: id, Until: en.Lease, Before: before}, now)
	}
}

// ReleaseRequest ends the leases of a request of a user, in all groups, and returns their number. If another request
// has looked up a block since, the block keeps that lease. If another request looked it up before, the block has that
// lease again. ReleaseRequest takes the lock once and does not wait.
func (e *lookups) ReleaseRequest(as *event.Viewer, request string) (ended int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.leases.Release(requesterOf(as, request)) {
		if e.mu.ix.Valid(x.ID) && e.mu.ix.At(x.ID).Lease == x.Until {
			e.mu.ix.At(x.ID).Lease = x.Before
			ended++
		}
	}
	if ended > 0 {
		e.mu.room.Signal() // writers may wait for blocks that can be evicted
	}
	return ended
}
