package outcome

// Reason says why something happened to a block, or why not. The zero value is none.
type Reason uint8

// The reasons.
const (
	ReasonCapacity  Reason = iota + 1 // the tier was full
	ReasonQuota                       // a quota was used up
	ReasonWatermark                   // memory was nearly full
	ReasonRequest                     // somebody asked for it

	ReasonExpired   // its time to live had passed
	ReasonAbandoned // nobody had the temporary file open for a time

	ReasonUnlink
	ReasonRenamed     // to a name that is no block's; or its tier cannot rename
	ReasonReplaced    // by another version
	ReasonSuperseded  // it was removed or replaced elsewhere
	ReasonWriteFailed // so it was never committed

	ReasonCorrupt     // wrong checksum
	ReasonUnavailable // the tier failed
	ReasonAbsent      // the tier did not have it

	ReasonPromoted  // stored by a promotion
	ReasonRewritten // changed by its first byte

	ReasonTimeout   // of all opens
	ReasonExceeded  // the open deadline was
	ReasonPredicted // to come after the open deadline
	ReasonSize      // larger than memory

	ReasonOnlyCopy // from here on: why a block is kept
	ReasonOpen
	ReasonPinned
	ReasonBeingWritten
	ReasonNotFound
	ReasonNotHere // not in this tier
)

// reasons has what is told of each reason.
var reasons = [...]struct {
	word string
	kind Kind   // of the verdict on a block that went for it; empty: Removed
	text string // of Evicted
}{
	ReasonCapacity:  {"capacity", Evicted, "it was full"},
	ReasonQuota:     {"quota", Evicted, "a quota was used up: of the group, the user or the control group"},
	ReasonWatermark: {"watermark", Evicted, "it was nearly full"},
	ReasonRequest:   {"request", Evicted, "on request"},

	ReasonExpired:   {word: "expired", kind: Expired},
	ReasonAbandoned: {word: "abandoned", kind: Expired},

	ReasonUnlink:      {word: "unlink"},
	ReasonRenamed:     {word: "renamed"},
	ReasonReplaced:    {word: "replaced", kind: Replaced},
	ReasonSuperseded:  {word: "superseded"},
	ReasonWriteFailed: {word: "write failed"},

	ReasonCorrupt:     {word: "corrupt", kind: Corrupt},
	ReasonUnavailable: {word: "unavailable", kind: Unreachable},
	ReasonAbsent:      {word: "absent", kind: Unreachable},

	ReasonPromoted:  {word: "promoted"},
	ReasonRewritten: {word: "rewritten"},

	ReasonTimeout:   {word: "timeout"},
	ReasonExceeded:  {word: "exceeded"},
	ReasonPredicted: {word: "predicted"},
	ReasonSize:      {word: "size"},

	ReasonOnlyCopy:     {word: "only copy"},
	ReasonOpen:         {word: "open"},
	ReasonPinned:       {word: "pinned"},
	ReasonBeingWritten: {word: "being written"},
	ReasonNotFound:     {word: "not found"},
	ReasonNotHere:      {word: "not in this tier"},
}

// String returns the reason as events and verdicts tell it: "capacity", "unlink"; empty for none.
func (r Reason) String() string { return reasons[r].word }

// Kind returns the kind of the verdict on a block that went for this reason.
func (r Reason) Kind() Kind {
	if k := reasons[r].kind; k != "" {
		return k
	}
	return Removed
}
