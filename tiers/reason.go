package tiers

// Reason says why something happened to a block, or why not. The zero value is none.
type Reason uint8

// The reasons.
const (
	ReasonCapacity  Reason = iota + 1 // the tier was full
	ReasonQuota                       // the quota of the group was used up
	ReasonWatermark                   // memory was nearly full
	ReasonRequest                     // EvictFrom

	ReasonExpired   // its time to live had passed
	ReasonAbandoned // nobody had the temporary file open for TempExpiry

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

	ReasonTimeout   // of PromoteTimeout
	ReasonExceeded  // the open deadline was
	ReasonPredicted // to come after the open deadline
	ReasonSize      // larger than memory

	ReasonOnlyCopy // from here on: why EvictFrom has kept it
	ReasonOpen
	ReasonPinned
	ReasonBeingWritten
	ReasonNotFound
	ReasonNotHere // not in this tier
)

// reasons has what is told of each reason.
var reasons = [...]struct {
	word string
	kind VerdictKind // on a block that went for it; none: VerdictRemoved
	text string      // of VerdictEvicted
}{
	ReasonCapacity:  {"capacity", VerdictEvicted, "it was full"},
	ReasonQuota:     {"quota", VerdictEvicted, "the quota of the group was used up"},
	ReasonWatermark: {"watermark", VerdictEvicted, "it was nearly full"},
	ReasonRequest:   {"request", VerdictEvicted, "on request"},

	ReasonExpired:   {word: "expired", kind: VerdictExpired},
	ReasonAbandoned: {word: "abandoned", kind: VerdictExpired},

	ReasonUnlink:      {word: "unlink"},
	ReasonRenamed:     {word: "renamed"},
	ReasonReplaced:    {word: "replaced", kind: VerdictReplaced},
	ReasonSuperseded:  {word: "superseded"},
	ReasonWriteFailed: {word: "write failed"},

	ReasonCorrupt:     {word: "corrupt", kind: VerdictCorrupt},
	ReasonUnavailable: {word: "unavailable", kind: VerdictUnreachable},
	ReasonAbsent:      {word: "absent", kind: VerdictUnreachable},

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

// cause is why something happened to a block, and who has asked for that.
type cause struct {
	reason Reason
	by     actor
}
