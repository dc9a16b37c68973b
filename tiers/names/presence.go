package names

import (
	"bytes"
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// lookups is the room of questions about many names at a time: where their blocks are, and which of them a user may
// know of. An answer that a block is there gives a lease.
type lookups struct {
	*core

	leases room.Leases // of requests; guarded by State.Mu
}

// Place says where Presences found a block.
type Place struct {
	Presence driver.Presence
	Late     bool  // a tier has it, but a load would take too long: Presence is Miss
	Dir      bool  // it is a directory: Presence is Miss
	Tier     uint8 // of a Hit: 0 is memory, i+1 stands for Options.Secondaries[i]
}

// unknown is the Presence of a block before other nodes are asked about it.
const unknown driver.Presence = 255

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
// other nodes or a driver.Finder have is found, but gets no entry and no lease.
//
// Presences is made for thousands of names. It takes the lock for some of them at a time, and allocates nothing for
// names of this node. Neighbours in one directory are found faster. It waits only if there are names of which the Remote,
// a driver.Asker, does not know: once for all of them, for half a second at most, or until the engine closes. len(out)
// must be at least len(paths).
func (lu *lookups) Presences(paths [][]byte, o PresenceOptions, out []Place) {
	var ask []string
	out = out[:len(paths)]
	lu.presencesOf(paths, &o, out, &ask)
	if len(ask) == 0 {
		return
	}
	lu.elsewhere.Ask(lu.Ctx, ask)
	var at []int
	var again [][]byte
	for i := range out {
		if out[i].Presence == unknown {
			at, again = append(at, i), append(again, paths[i])
		}
	}
	places := make([]Place, len(again))
	lu.presencesOf(again, &o, places, nil)
	for i, p := range places {
		out[at[i]] = p
	}
}

// presencesOf looks paths up on this node alone. It appends to ask, unless that is nil, the paths that other nodes must be
// asked about, and marks the places that depend on them.
func (lu *lookups) presencesOf(paths [][]byte, o *PresenceOptions, out []Place, ask *[]string) {
	for len(paths) > 0 {
		n := min(len(paths), presenceBatch)
		lu.presences(paths[:n], o, out[:n], ask)
		paths, out = paths[n:], out[n:]
	}
}

func (lu *lookups) presences(paths [][]byte, o *PresenceOptions, out []Place, ask *[]string) {
	w := state.PathWalker{Ix: lu.Mu.Ix}
	var dirs [presenceBatch]index.ID
	var names [presenceBatch]string
	var found [presenceBatch]index.Found
	hits, misses := uint64(0), uint64(0)
	lu.Mu.Lock()
	defer lu.Mu.Unlock()
	now := lu.Now()
	for i, path := range paths {
		dirs[i], names[i] = w.Split(path)
	}
	lu.Mu.Ix.LookupEach(dirs[:len(paths)], names[:len(paths)], found[:])
	for i, path := range paths {
		switch {
		case found[i].ID == 0:
			out[i] = lu.absentLocked(dirs[i], names[i], path, o, ask)
			if out[i] == (Place{}) && dirs[i] != 0 {
				lu.Mu.Reuse.MissedLocked(dirs[i], names[i], found[i].Hash, now)
			}
		case lu.ShowsLocked(o.As, dirs[i], found[i].ID):
			out[i] = lu.placeLocked(found[i].ID, now, o)
		default:
			out[i] = Place{}
		}
		switch out[i].Presence {
		case driver.Miss:
			misses++
		case unknown:
		default:
			hits++
		}
	}
	if o.Lease { // else nobody is about to read them
		lu.Mu.Counters.LookupHit += hits
		lu.Mu.Misses.Add(misses)
	}
}

// placeLocked returns where the block of an entry is.
func (lu *lookups) placeLocked(id index.ID, now int64, o *PresenceOptions) Place {
	en := lu.Mu.Ix.At(id)
	switch {
	case en.IsDir():
		return Place{Dir: true}
	case lu.Mu.Ix.Expires(id) != 0 && lu.Mu.Ix.Expires(id) <= now:
		return Place{}
	case en.Flags&(index.FlagUncommitted|index.FlagTemp) != 0:
		return Place{Presence: driver.Pending}
	}
	p := Place{Presence: driver.Hit}
	if lu.HollowLocked(id, en) {
		if lu.lower.PromotingLocked(id) != "" {
			p = Place{Presence: driver.Pending}
		} else {
			s := lu.FirstTier(en)
			if state.LateLocked(s, en.Size, lu.DeadlineOfLocked(lu.Mu.Room.Group(en.Group), o.Deadline)) {
				return Place{Late: true}
			}
			p.Tier = uint8(s.N + 1)
		}
	}
	if o.Lease {
		lu.LeaseLocked(id, en, now, o.As, o.Request)
	}
	return p
}

// absentLocked returns the place of a name without an entry: other nodes or a Finder may have the block. ask is as in presencesOf.
func (lu *lookups) absentLocked(dir index.ID, name string, path []byte, o *PresenceOptions, ask *[]string) Place {
	if lu.Remote == nil && len(lu.Finders) == 0 || dir != 0 && !lu.Mu.Ix.At(dir).IsDir() || block.CheckPath(state.View(path)) != nil {
		return Place{}
	}
	p := string(path)
	l, s := lu.elsewhere.SeekLocked(p)
	if s == nil || !lu.showsFarLocked(o.As, p, &l) {
		if ask != nil && lu.askLocked(ask, p, s != nil) {
			return Place{Presence: unknown}
		}
		return Place{}
	}
	if !l.IsRegular() {
		return Place{Dir: true}
	}
	if state.LateLocked(s, l.Size, lu.DeadlineOfLocked(lu.pathGroupLocked(path), o.Deadline)) {
		return Place{Late: true}
	}
	return Place{Presence: driver.Hit, Tier: uint8(s.N + 1)}
}

// askLocked appends to ask what other nodes must be asked about a path that would be a miss, and reports whether there is
// anything. found: they have something at the path, but it is not known whether the user may read it.
func (lu *lookups) askLocked(ask *[]string, path string, found bool) bool {
	if lu.Asker == nil || !found && !lu.Asker.Unknown(path) {
		return false
	}
	before := len(*ask)
	*ask = lu.elsewhere.AppendUnknownLocked(*ask, path)
	return len(*ask) > before
}

// pathGroupLocked returns the group of a path, nil if the group has no account.
func (lu *lookups) pathGroupLocked(path []byte) *room.Group {
	name, _, below := bytes.Cut(path, []byte("/"))
	if !below {
		name = nil
	}
	return lu.Mu.Room.Find(block.GroupID(name))
}

// requesterOf returns the holder of a lease for a user and a request.
func requesterOf(as *event.Viewer, request string) room.Requester {
	if as == nil {
		return room.Requester{UID: -1, Request: request}
	}
	return room.Requester{UID: int64(as.UID), Request: request}
}

// LeaseLocked grants the lease of a look-up to a block. A request that is not empty can end the lease early.
func (lu *lookups) LeaseLocked(id index.ID, en *index.Entry, now int64, as *event.Viewer, request string) {
	if lu.Opts.LookupLease <= 0 {
		return
	}
	before := en.Lease
	en.Lease = max(before, now+int64(lu.Opts.LookupLease))
	if request != "" {
		en.Lease = max(en.Lease, before+1) // each request has another end
		lu.leases.Add(requesterOf(as, request), room.Lease{ID: id, Until: en.Lease, Before: before}, now)
	}
}

// ReleaseRequest ends the leases of a request of a user, in all groups, and returns their number. If another request
// has looked up a block since, the block keeps that lease. If another request looked it up before, the block has that
// lease again. ReleaseRequest takes the lock once and does not wait.
func (lu *lookups) ReleaseRequest(as *event.Viewer, request string) (ended int) {
	lu.Mu.Lock()
	defer lu.Mu.Unlock()
	for _, x := range lu.leases.Release(requesterOf(as, request)) {
		if lu.Mu.Ix.Valid(x.ID) && lu.Mu.Ix.At(x.ID).Lease == x.Until {
			lu.Mu.Ix.At(x.ID).Lease = x.Before
			ended++
		}
	}
	if ended > 0 {
		lu.Mu.Room.Signal() // writers may wait for blocks that can be evicted
	}
	return ended
}

// showsFarLocked reports whether v may read the file l that other nodes or a Finder have at path. Directories above it
// may also be theirs.
func (lu *lookups) showsFarLocked(v *event.Viewer, path string, l *driver.Located) bool {
	if v == nil {
		return true
	}
	want := uint32(event.MayRead)
	for ok := true; ; {
		if !ok || !v.May(want, l.Mode, l.UID, l.GID) {
			return false
		}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
		if id := lu.Mu.Ix.Walk(path); id != 0 {
			return lu.ReachesLocked(v, id)
		}
		above, s := lu.elsewhere.SeekLocked(path)
		l, ok, want = &above, s != nil, event.MaySearch
	}
}
