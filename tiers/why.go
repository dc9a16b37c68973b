package tiers

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// VerdictKind says why a block is not there, or that it is.
type VerdictKind string

// The verdicts.
const (
	VerdictPresent     VerdictKind = "present"
	VerdictPending     VerdictKind = "pending"
	VerdictNeverStored VerdictKind = "never_stored"
	VerdictEvicted     VerdictKind = "evicted"
	VerdictExpired     VerdictKind = "expired"
	VerdictRemoved     VerdictKind = "removed"
	VerdictReplaced    VerdictKind = "replaced"
	VerdictRenamed     VerdictKind = "renamed"
	VerdictCorrupt     VerdictKind = "corrupt"
	VerdictPeerGone    VerdictKind = "peer_gone"
	VerdictUnreachable VerdictKind = "unreachable"
	VerdictNoRoom      VerdictKind = "no_room"
	VerdictDeadline    VerdictKind = "deadline"
	VerdictElsewhere   VerdictKind = "elsewhere"
)

// Verdict is what the engine remembers of a name.
type Verdict struct {
	Kind   VerdictKind
	Tier   string    // where it is or was: names with commas between
	Rule   string    // a Reason in words: of evictions why; else more precisely why, if known
	By     string    // of removals, replacements and renames: "thread 1234", "another node"; empty if not known
	To     string    // of renames: the new path
	Groups []string  // of elsewhere: groups that have the same hash
	Time   time.Time // when it happened; zero if nothing did. Of never_stored: since when the engine remembers.
	Text   string    // all of it in a sentence without a time
}

// maxVerdicts bounds the names of which something is remembered, at some 100 bytes each.
const maxVerdicts = 1 << 16

// verdictChunk is how many verdicts are allocated at a time, so that none is ever copied.
const verdictChunk = 1024

// verdicts is the memory of what happened to names, the latest of each. The key is a hash of
// the path: of 65,536 names two share one with a probability of 10^-10.
//
// They are in a list in the order in which they happened. Position 0 is no verdict but the ends
// of the list.
type verdicts struct {
	at     map[uint64]uint32 // position in chunks
	chunks [][]verdict
	n      uint32 // positions in use
	since  int64  // what was forgotten last happened then; before anything was, the begin
}

type verdict struct {
	before, after uint32 // positions of what happened before and after it

	path  uint64
	time  int64
	event uint64 // number of the event that it came with
	kind  VerdictKind
	tier  string
	rule  Reason
	by    actor
	to    string
}

func (v *verdicts) get(i uint32) *verdict { return &v.chunks[i/verdictChunk][i%verdictChunk] }

// of returns what is remembered of a path, nil if nothing is.
func (v *verdicts) of(path uint64) *verdict {
	if i, ok := v.at[path]; ok {
		return v.get(i)
	}
	return nil
}

// add notes what happened to a name.
func (v *verdicts) add(n verdict) {
	if v.n == 0 {
		v.place() // the ends
	}
	ends := v.get(0)
	i, known := v.at[n.path]
	switch {
	case known:
		v.unlink(i)
	case v.n <= maxVerdicts:
		i = v.place()
	default:
		i = ends.after
		old := v.get(i)
		v.since = old.time
		delete(v.at, old.path)
		v.unlink(i)
	}
	n.before, n.after = ends.before, 0
	*v.get(i) = n
	v.get(ends.before).after = i
	ends.before = i
	if !known {
		v.at[n.path] = i
	}
}

// place makes room for one more.
func (v *verdicts) place() (i uint32) {
	if i = v.n; i%verdictChunk == 0 {
		v.chunks = append(v.chunks, make([]verdict, verdictChunk))
	}
	v.n++
	return i
}

// unlink takes one out of the list.
func (v *verdicts) unlink(i uint32) {
	x := v.get(i)
	v.get(x.before).after, v.get(x.after).before = x.after, x.before
}

// verdictLocked notes what happened to the block of an entry that has a name.
func (e *Engine) verdictLocked(id index.ID, kind VerdictKind, tier string, why cause) {
	e.mu.verdicts.add(verdict{
		path: e.pathHashLocked(id), time: e.now(), event: e.events.Next(), kind: kind, tier: tier, rule: why.reason, by: why.by,
	})
}

// noteLocked remembers an event that says why a block is not where it was.
func (e *Engine) noteLocked(ev EventKind, tier string, id index.ID, why cause) {
	if ev != BlockEvicted && ev != BlockRemoved {
		return
	}
	kind := VerdictRemoved
	if ev == BlockEvicted {
		en := e.mu.ix.At(id)
		switch {
		case e.ownTiers(en) != 0, tier != "memory" && (en.Blob != 0 || e.mu.files[id] != nil):
			return // it is where reads find it
		case en.Tiers != 0: // likewise, for as long as they have it
			e.verdictLocked(id, VerdictPeerGone, e.remote.opts.Name, cause{by: why.by})
			return
		}
	}
	if k := reasons[why.reason].kind; k != "" {
		kind = k
	}
	if kind == VerdictUnreachable && e.remote != nil && tier == e.remote.opts.Name {
		kind = VerdictPeerGone
	}
	if ev == BlockRemoved && tier == "" {
		// The last tier that had it has just lost it: the verdict on that says more.
		if v := e.mu.verdicts.of(e.pathHashLocked(id)); v != nil && v.event+1 == e.events.Next() && v.rule == why.reason {
			return
		}
	}
	e.verdictLocked(id, kind, tier, why)
}

// renamedVerdictLocked remembers that what was called from is called otherwise now.
func (e *Engine) renamedVerdictLocked(from string, id index.ID, by actor) {
	e.mu.verdicts.add(verdict{
		path: maphash.String(e.seed, from), time: e.now(), kind: VerdictRenamed, by: by, to: e.mu.ix.Path(id),
	})
}

// judgeLocked remembers that a promotion brought nothing, in time or at all.
func (e *Engine) judgeLocked(p *promotion, kind VerdictKind, deadline bool) {
	rule := ReasonTimeout
	if deadline {
		rule = ReasonExceeded
	} else if kind == VerdictDeadline {
		kind = VerdictUnreachable
	}
	e.mu.verdicts.add(verdict{path: maphash.String(e.seed, p.key.Path()), time: e.now(), kind: kind, tier: p.tier.opts.Name, rule: rule})
}

// failedVerdictLocked remembers why a promotion failed, where nothing more precise is known.
func (e *Engine) failedVerdictLocked(p *promotion, err error) {
	kind, rule := VerdictUnreachable, Reason(0)
	switch {
	case errors.Is(err, ErrStale), errors.Is(err, block.ErrClosed), errors.Is(err, block.ErrNotFound):
		return
	case errors.Is(err, block.ErrTooLarge):
		kind, rule = VerdictNoRoom, ReasonSize
	case errors.Is(err, block.ErrNoSpace), errors.Is(err, block.ErrQuota):
		kind, rule = VerdictNoRoom, ReasonCapacity
	case errors.Is(err, block.ErrUnavailable):
		rule = ReasonUnavailable
	case errors.Is(err, block.ErrCorrupt):
		kind = VerdictCorrupt
	}
	e.mu.verdicts.add(verdict{path: maphash.String(e.seed, p.key.Path()), time: e.now(), kind: kind, tier: p.tier.opts.Name, rule: rule})
}

// Why returns why the block at a path below the mount is not there, or that it is. It takes the
// lock for a moment and does not wait. Verdicts of the last 65,536 names to which something
// happened are kept.
func (e *Engine) Why(path string) Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.whyLocked(path)
}

// WhyOf is Why for an entry that the kernel holds a reference to.
func (e *Engine) WhyOf(id index.ID) Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.ix.Linked(id) {
		return e.whyLocked(e.mu.ix.Path(id))
	}
	if f := e.mu.files[id]; f != nil && f.waits {
		return Verdict{Kind: VerdictPending, Text: "it is being written"} // and takes the name of another one then
	}
	return Verdict{Kind: VerdictRemoved, Text: "it has no name any more, but is open"}
}

func (e *Engine) whyLocked(path string) Verdict {
	v := e.mu.verdicts.of(maphash.String(e.seed, path))
	if there, ok := e.presentLocked(path, v); ok {
		return there
	}
	if to, moved := e.movedLocked(path, v, 0); moved != nil {
		w := moved.explain(e.opts.Kernels)
		w.To, w.Text = to, "renamed to "+to+", with its directory"
		return w
	}
	if v != nil {
		return v.explain(e.opts.Kernels)
	}
	if groups := e.sameHashLocked(path); len(groups) > 0 {
		return Verdict{Kind: VerdictElsewhere, Groups: groups,
			Text: "no block of this name was stored here, but one of the same hash is in " + strings.Join(groups, ", ")}
	}
	return Verdict{Kind: VerdictNeverStored, Time: time.Unix(0, e.mu.verdicts.since),
		Text: "no block of this name was stored here, as far as is remembered"}
}

// maxMoved bounds how many renames of directories movedLocked follows, one after the other.
const maxMoved = 8

// movedLocked returns what a path has become by renames of directories above it, and the
// verdict that says so; nil if that did not happen since own, which is nil if nothing is known
// of the path itself, or if nothing is known of what it has become.
func (e *Engine) movedLocked(path string, own *verdict, depth int) (to string, v *verdict) {
	for i := strings.LastIndexByte(path, '/'); i > 0 && depth < maxMoved; i = strings.LastIndexByte(path[:i], '/') {
		v := e.mu.verdicts.of(maphash.String(e.seed, path[:i]))
		if v == nil || v.kind != VerdictRenamed || own != nil && v.time < own.time {
			continue
		}
		to := v.to + path[i:]
		if e.mu.ix.Walk(to) != 0 || e.mu.verdicts.of(maphash.String(e.seed, to)) != nil {
			return to, v
		}
		if to, next := e.movedLocked(to, own, depth+1); next != nil {
			return to, v
		}
	}
	return "", nil
}

// presentLocked is the verdict on a name that there is. v is what happened to it, if anything.
func (e *Engine) presentLocked(path string, v *verdict) (Verdict, bool) {
	if block.CheckPath(path) != nil {
		return Verdict{Kind: VerdictNeverStored, Text: "this is no name that a block can have"}, true
	}
	id := e.mu.ix.Walk(path)
	if id == 0 {
		w := pathWalker{ix: e.mu.ix}
		if dir, name := w.split([]byte(path)); e.writingLocked(nil, dir, name) {
			return Verdict{Kind: VerdictPending, Text: "it is being written"}, true
		}
		if e.remote != nil {
			if l, ok := e.locate(path); ok && l.Mode&modeType == modeRegular {
				if chargeOf(l.Size) > e.opts.CapacityBytes {
					return e.tooLarge(l.Size, e.remote.opts.Name), true
				}
				return Verdict{Kind: VerdictPresent, Tier: e.remote.opts.Name, Text: "another node has it"}, true
			}
		}
		return Verdict{}, false
	}
	en := e.mu.ix.At(id)
	switch {
	case en.Mode&modeType == modeDir:
		return Verdict{Kind: VerdictPresent, Text: "this is a directory"}, true
	case en.Flags&flagUncommitted != 0:
		return Verdict{Kind: VerdictPending, Text: "it is being written"}, true
	case e.expiredLocked(id):
		return Verdict{Kind: VerdictExpired, Time: time.Unix(0, en.Expires), Text: "its time to live has passed"}, true
	}
	tiers := strings.Join(e.tierNamesLocked(id), ",")
	switch {
	case !e.hollowLocked(id, en):
		return Verdict{Kind: VerdictPresent, Tier: tiers, Text: "it is in memory"}, true
	case e.mu.promotions[id] != nil:
		return Verdict{Kind: VerdictPending, Tier: tiers, Text: "it is on its way into memory from " + e.mu.promotions[id].tier.opts.Name}, true
	case chargeOf(en.Size) > e.opts.CapacityBytes:
		return e.tooLarge(en.Size, tiers), true
	case v != nil && v.unread() && v.time >= en.Atime: // and not read since
		w := v.explain(e.opts.Kernels)
		w.Tier = tiers
		w.Text += "; it is still in " + tiers
		return w, true
	}
	return Verdict{Kind: VerdictPresent, Tier: tiers, Text: "it is in " + tiers + ", and comes into memory when it is opened"}, true
}

// tooLarge is the verdict on a block that tiers below have, and that memory can never hold.
func (e *Engine) tooLarge(size int64, tiers string) Verdict {
	return Verdict{Kind: VerdictNoRoom, Tier: tiers, Rule: ReasonSize.String(),
		Text: fmt.Sprintf("it is in %s, but larger than the memory of this node: %d bytes, memory.size is %d", tiers, size, e.opts.CapacityBytes)}
}

// unread reports whether it is of an open that was a miss although a tier had the block.
func (v *verdict) unread() bool {
	return v.kind == VerdictUnreachable || v.kind == VerdictNoRoom || v.kind == VerdictDeadline
}

// name names the thread; with several kernels its kernel, too.
func (a actor) name(kernels bool) string {
	if !kernels {
		return "thread " + strconv.FormatUint(uint64(a), 10)
	}
	return fmt.Sprintf("thread %d of mount %d", a&(1<<threadBits-1), a>>threadBits)
}

// explain puts what happened into words.
func (v *verdict) explain(kernels bool) Verdict {
	w := Verdict{Kind: v.kind, Tier: v.tier, Rule: v.rule.String(), To: v.to, Time: time.Unix(0, v.time)}
	if v.by != 0 {
		w.By = v.by.name(kernels)
	} else if v.rule == ReasonSuperseded {
		w.By = "another node"
	}
	from := v.tier
	if from == "" {
		from = "all tiers"
	}
	switch v.kind {
	case VerdictEvicted:
		w.Text = "evicted from " + from + ": " + reasons[v.rule].text + ", and no other tier had it"
	case VerdictExpired:
		w.Text = "its time to live had passed"
	case VerdictRemoved:
		w.Text = "removed"
		if w.By != "" {
			w.Text += " by " + w.By
		}
		if v.rule != 0 && v.rule != ReasonSuperseded && v.rule != ReasonUnlink {
			w.Text += ": " + w.Rule
		}
	case VerdictReplaced:
		w.Text = "replaced by another version, which is not there any more or not yet"
		if w.By != "" {
			w.Text = "replaced by another version, from " + w.By + ", which is not there any more or not yet"
		}
	case VerdictRenamed:
		w.Text = "renamed to " + v.to
		if w.By != "" {
			w.Text += " by " + w.By
		}
	case VerdictCorrupt:
		w.Text = "the copy in " + from + " failed its checksum and was dropped"
	case VerdictPeerGone:
		w.Text = "only another node had it, which is gone or has dropped it"
	case VerdictUnreachable:
		w.Text = fmt.Sprintf("%s could not give it", from)
		if v.rule != 0 {
			w.Text += ": " + w.Rule
		}
	case VerdictNoRoom:
		w.Text = "memory had no room for it: it was full of what may not be evicted"
		if v.rule == ReasonSize {
			w.Text = "memory had no room for it: it is larger than all of memory"
		}
	case VerdictDeadline:
		w.Text = "it would have come from " + from + " after the open deadline"
		if v.rule == ReasonExceeded {
			w.Text = "it had not come from " + from + " by the open deadline"
		}
	}
	return w
}

// maxSameHash bounds the groups that sameHashLocked looks into.
const maxSameHash = 4096

// sameHashLocked lists other groups that have a block called like the one at path in its group.
func (e *Engine) sameHashLocked(path string) (groups []string) {
	group, hash, ok := strings.Cut(path, "/")
	if !ok {
		return nil
	}
	seen := 0
	e.mu.ix.ReadDir(index.Root, 0, 0, func(dir index.ID, en *index.Entry, _ uint64) bool {
		if seen++; en.Mode&modeType != modeDir || e.mu.ix.Name(dir) == group {
			return seen < maxSameHash
		}
		id := dir
		for rest, more := hash, true; more && id != 0; {
			var name string
			name, rest, more = strings.Cut(rest, "/")
			id = e.mu.ix.Lookup(id, name)
		}
		if id == 0 || e.expiredLocked(id) {
			return seen < maxSameHash
		}
		if en := e.mu.ix.At(id); en.Flags&flagUncommitted == 0 && en.Mode&modeType == modeRegular {
			groups = append(groups, e.mu.ix.Name(dir))
		}
		return seen < maxSameHash && len(groups) < 8
	})
	return groups
}
