package names

import (
	"bytes"
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

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
	By       state.Process // that is about to read the blocks, for the order of eviction
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
func (nm *Names) Presences(paths [][]byte, o PresenceOptions, out []Place) {
	var ask []string
	out = out[:len(paths)]
	nm.presencesOf(paths, &o, out, &ask)
	if len(ask) == 0 {
		return
	}
	nm.Ask(nm.Ctx, ask)
	var at []int
	var again [][]byte
	for i := range out {
		if out[i].Presence == unknown {
			at, again = append(at, i), append(again, paths[i])
		}
	}
	places := make([]Place, len(again))
	nm.presencesOf(again, &o, places, nil)
	for i, p := range places {
		out[at[i]] = p
	}
}

// presencesOf looks paths up on this node alone. It appends to ask, unless that is nil, the paths that other nodes must be
// asked about, and marks the places that depend on them.
func (nm *Names) presencesOf(paths [][]byte, o *PresenceOptions, out []Place, ask *[]string) {
	for len(paths) > 0 {
		n := min(len(paths), presenceBatch)
		nm.presences(paths[:n], o, out[:n], ask)
		paths, out = paths[n:], out[n:]
	}
}

func (nm *Names) presences(paths [][]byte, o *PresenceOptions, out []Place, ask *[]string) {
	w := state.PathWalker{Ix: nm.Mu.Ix}
	var dirs [presenceBatch]index.ID
	var names [presenceBatch]string
	var found [presenceBatch]index.Found
	hits, misses := uint64(0), uint64(0)
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	now := nm.Now()
	var burst policy.Burst
	if o.Lease {
		burst = nm.Mu.Room.Burst(o.By.Number(), now)
	}
	for i, path := range paths {
		dirs[i], names[i] = w.Split(path)
	}
	nm.Mu.Ix.LookupEach(dirs[:len(paths)], names[:len(paths)], found[:])
	for i, path := range paths {
		switch {
		case found[i].ID == 0:
			out[i] = nm.absentPlaceLocked(dirs[i], names[i], path, o, ask)
			if out[i] == (Place{}) && dirs[i] != 0 {
				nm.Mu.Reuse.MissedLocked(dirs[i], names[i], found[i].Hash, now)
			}
		case nm.ShowsLocked(o.As, dirs[i], found[i].ID):
			out[i] = nm.placeLocked(found[i].ID, now, burst, o)
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
		nm.Mu.Counters.LookupHit += hits
		nm.Mu.Misses.Add(misses)
	}
}

// placeLocked returns where the block of an entry is.
func (nm *Names) placeLocked(id index.ID, now int64, burst policy.Burst, o *PresenceOptions) Place {
	en := nm.Mu.Ix.At(id)
	switch {
	case en.IsDir():
		return Place{Dir: true}
	case nm.Mu.Ix.Expires(id) != 0 && nm.Mu.Ix.Expires(id) <= now:
		return Place{}
	case en.Flags()&(index.FlagUncommitted|index.FlagTemp) != 0:
		return Place{Presence: driver.Pending}
	}
	p := Place{Presence: driver.Hit}
	if nm.NonresidentLocked(id, en) {
		if nm.Copies.PromotingLocked(id) != "" {
			p = Place{Presence: driver.Pending}
		} else {
			s := nm.FirstTier(en)
			if state.LateLocked(s, en.Size(), nm.DeadlineOfLocked(nm.Mu.Room.Group(en.Group()), o.Deadline)) {
				return Place{Late: true}
			}
			p.Tier = uint8(s.N + 1)
		}
	}
	if o.Lease {
		nm.LeaseLocked(id, en, now, o.As, o.Request)
		nm.Mu.Room.Follow(nm.Mu.Bill(en), uint32(id), burst, false)
	}
	return p
}

// absentPlaceLocked returns the place of a name without an entry: other nodes or a Finder may have the block. ask is as in presencesOf.
func (nm *Names) absentPlaceLocked(dir index.ID, name string, path []byte, o *PresenceOptions, ask *[]string) Place {
	if nm.Remote == nil && len(nm.Finders) == 0 || dir != 0 && !nm.Mu.Ix.At(dir).IsDir() || block.CheckPath(state.View(path)) != nil {
		return Place{}
	}
	p := string(path)
	l, s := nm.SeekLocked(p)
	if s == nil || !nm.showsFarLocked(o.As, p, &l) {
		if ask != nil && nm.askLocked(ask, p, s != nil) {
			return Place{Presence: unknown}
		}
		return Place{}
	}
	if !l.IsRegular() {
		return Place{Dir: true}
	}
	if state.LateLocked(s, l.Size, nm.DeadlineOfLocked(nm.pathGroupLocked(path), o.Deadline)) {
		return Place{Late: true}
	}
	return Place{Presence: driver.Hit, Tier: uint8(s.N + 1)}
}

// askLocked appends to ask what other nodes must be asked about a path that would be a miss, and reports whether there is
// anything. found: they have something at the path, but it is not known whether the user may read it.
func (nm *Names) askLocked(ask *[]string, path string, found bool) bool {
	if nm.Asker == nil || !found && !nm.Asker.Unknown(path) {
		return false
	}
	before := len(*ask)
	*ask = nm.AppendUnknownLocked(*ask, path)
	return len(*ask) > before
}

// pathGroupLocked returns the group of a path, nil if the group has no account.
func (nm *Names) pathGroupLocked(path []byte) *room.Group {
	name, _, below := bytes.Cut(path, []byte("/"))
	if !below {
		name = nil
	}
	return nm.Mu.Room.Find(block.GroupID(name))
}

// requesterOf returns the holder of a lease for a user and a request.
func requesterOf(as *event.Viewer, request string) room.Requester {
	if as == nil {
		return room.Requester{UID: -1, Request: request}
	}
	return room.Requester{UID: int64(as.UID), Request: request}
}

// LeaseLocked grants the lease of a look-up to a block. A request that is not empty can end the lease early.
func (nm *Names) LeaseLocked(id index.ID, en *index.Entry, now int64, as *event.Viewer, request string) {
	if nm.Opts.LookupLease <= 0 {
		return
	}
	before := en.Lease()
	until := max(before, now+int64(nm.Opts.LookupLease))
	if request != "" {
		until = max(until, before+1) // each request has another end
		nm.leases.Add(requesterOf(as, request), room.Lease{ID: id, Until: until, Before: before}, now)
	}
	nm.ApplyLocked(catalog.Leased{ID: id, Until: until})
}

// ReleaseRequest ends the leases of a request of a user, in all groups, and returns their number. If another request
// has looked up a block since, the block keeps that lease. If another request looked it up before, the block has that
// lease again. ReleaseRequest takes the lock once and does not wait.
func (nm *Names) ReleaseRequest(as *event.Viewer, request string) (ended int) {
	nm.Mu.Lock()
	defer nm.Mu.Unlock()
	for _, x := range nm.leases.Release(requesterOf(as, request)) {
		if nm.Mu.Ix.Valid(x.ID) && nm.Mu.Ix.At(x.ID).Lease() == x.Until {
			nm.ApplyLocked(catalog.Leased{ID: x.ID, Until: x.Before})
			ended++
		}
	}
	if ended > 0 {
		nm.Mu.Room.Signal() // writers may wait for blocks that can be evicted
	}
	return ended
}

// showsFarLocked reports whether v may read the file l that other nodes or a Finder have at path. Directories above it
// may also be theirs.
func (nm *Names) showsFarLocked(v *event.Viewer, path string, l *driver.Located) bool {
	if v == nil {
		return true
	}
	want := uint32(event.MayRead)
	for ok := true; ; {
		if !ok || !v.May(want, l.Mode, l.UID, l.GID) {
			return false
		}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
		if id := nm.Mu.Ix.Walk(path); id != 0 {
			return nm.ReachesLocked(v, id)
		}
		above, s := nm.SeekLocked(path)
		l, ok, want = &above, s != nil, event.MaySearch
	}
}
