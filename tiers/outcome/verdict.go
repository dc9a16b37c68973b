package outcome

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
)

// Kind says why a block is not there, or that it is.
type Kind string

// The kinds of verdict.
const (
	Present     Kind = "present"
	Pending     Kind = "pending"
	NeverStored Kind = "never_stored"
	Evicted     Kind = "evicted"
	Expired     Kind = "expired"
	Removed     Kind = "removed"
	Replaced    Kind = "replaced"
	Renamed     Kind = "renamed"
	Corrupt     Kind = "corrupt"
	PeerGone    Kind = "peer_gone"
	Unreachable Kind = "unreachable"
	NoRoom      Kind = "no_room"
	Deadline    Kind = "deadline"
	Elsewhere   Kind = "elsewhere"
)

// Verdict is the answer to why a block is not there, or that it is.
type Verdict struct {
	Kind   Kind
	Tier   string    // where it is or was: names with commas between
	Rule   string    // a Reason in words: of evictions why; else more precisely why, if known
	By     string    // of removals, replacements and renames: "thread 1234", "another node"; empty if not known
	To     string    // of renames: the new path
	Groups []string  // of elsewhere: groups that have the same hash
	Time   time.Time // when it happened; zero if nothing did. Of never_stored: since when all is remembered.
	Text   string    // all of it in a sentence without a time
}

// Actor is a thread of a kernel. The zero value is nobody of this node.
type Actor uint32

// threadBits is how many bits of a thread id are the kernel's own: its pid_max is at most 2^22.
const threadBits = 22

// ActorOf returns the Actor for a thread of a kernel. The kernel is 0 if there is only one.
func ActorOf(kernel, thread uint32) Actor { return Actor(thread | kernel<<threadBits) }

// Kernel returns the number of the thread's kernel.
func (a Actor) Kernel() uint32 { return uint32(a >> threadBits) }

// name names the thread; with several kernels its kernel, too.
func (a Actor) name(kernels bool) string {
	if !kernels {
		return "thread " + strconv.FormatUint(uint64(a), 10)
	}
	return fmt.Sprintf("thread %d of mount %d", a&(1<<threadBits-1), a>>threadBits)
}

// Cause is why something happened to a block, and who asked for it.
type Cause struct {
	Reason Reason
	By     Actor
}

// Outcome is what happened to a name.
type Outcome struct {
	Time   int64  // in Unix nanoseconds
	Event  uint64 // the number of the event that told of it; 0: none did
	Kind   Kind
	Tier   string // empty: all tiers
	Reason Reason
	By     Actor
	To     string // of Renamed: the new path
}

// Unread reports whether an open was a miss although a tier had the block.
func (f *Outcome) Unread() bool {
	return f.Kind == Unreachable || f.Kind == NoRoom || f.Kind == Deadline
}

// Explain puts an outcome into words. kernels: the name of a thread includes its mount.
func (f *Outcome) Explain(kernels bool) Verdict {
	v := Verdict{Kind: f.Kind, Tier: f.Tier, Rule: f.Reason.String(), To: f.To, Time: time.Unix(0, f.Time)}
	if f.By != 0 {
		v.By = f.By.name(kernels)
	} else if f.Reason == ReasonSuperseded {
		v.By = "another node"
	}
	v.Text = f.text(v.By)
	return v
}

// text is the sentence of a verdict. by is the name of the actor, if it is known.
func (f *Outcome) text(by string) string {
	from := cmp.Or(f.Tier, "all tiers")
	switch f.Kind {
	case Evicted:
		return "evicted from " + from + ": " + reasons[f.Reason].text + ", and no other tier had it"
	case Expired:
		return "its time to live had passed"
	case Removed:
		text := "removed" + after(" by ", by)
		if f.Reason != ReasonSuperseded && f.Reason != ReasonUnlink {
			text += after(": ", f.Reason.String())
		}
		return text
	case Replaced:
		return "replaced by another version" + after(", from ", by) + ", which is not there any more or not yet"
	case Renamed:
		return "renamed to " + f.To + after(" by ", by)
	case Corrupt:
		return "the copy in " + from + " failed its checksum and was dropped"
	case PeerGone:
		return "only another node had it, which is gone or has dropped it"
	case Unreachable:
		return from + " could not give it" + after(": ", f.Reason.String())
	case NoRoom:
		if f.Reason == ReasonSize {
			return "memory had no room for it: it is larger than all of memory"
		}
		return "memory had no room for it: it was full of what may not be evicted"
	case Deadline:
		if f.Reason == ReasonExceeded {
			return "it had not come from " + from + " by the open deadline"
		}
		return "it would have come from " + from + " after the open deadline"
	}
	return ""
}

// after returns s behind a separator; empty if s is.
func after(separator, s string) string {
	if s == "" {
		return ""
	}
	return separator + s
}

// OfLoad returns what the error of a load means for its block. The kind is empty if the error says nothing
// about the block.
func OfLoad(err error) (Kind, Reason) {
	switch {
	case errors.Is(err, block.ErrClosed), errors.Is(err, block.ErrNotFound):
		return "", 0
	case errors.Is(err, block.ErrTooLarge):
		return NoRoom, ReasonSize
	case errors.Is(err, block.ErrNoSpace), errors.Is(err, block.ErrQuota):
		return NoRoom, ReasonCapacity
	case errors.Is(err, block.ErrUnavailable):
		return Unreachable, ReasonUnavailable
	case errors.Is(err, block.ErrCorrupt):
		return Corrupt, 0
	}
	return Unreachable, 0
}

// TooLarge is the verdict on a block of size bytes that tiers have and that memory can never hold: it has
// capacity bytes.
func TooLarge(tiers string, size, capacity int64) Verdict {
	return Verdict{Kind: NoRoom, Tier: tiers, Rule: ReasonSize.String(),
		Text: fmt.Sprintf("it is in %s, but larger than the memory of this node: %d bytes, memory.size is %d", tiers, size, capacity)}
}
