package peer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/driver"
)

// Detail is driver.Stats.Detail of this tier. The counters are totals since it was opened.
type Detail struct {
	Members int `json:"members" help:"nodes alive, without this one"`
	Failed  int `json:"failed_members" help:"nodes that went without a goodbye, or do not answer"`

	Requests     uint64 `json:"requests" help:"requests to holders, each for one or more blocks"`
	Fetches      uint64 `json:"fetches" help:"fetches of blocks"`
	FetchedBytes uint64 `json:"fetched_bytes" help:"bytes that came, hedges included"`
	Gone         uint64 `json:"gone_blocks" help:"blocks that the holder had no longer"`
	Corrupt      uint64 `json:"corrupt_blocks" help:"blocks that came with wrong bytes"`
	Timeouts     uint64 `json:"timeouts" help:"fetches that took too long"`
	Failures     uint64 `json:"failures" help:"fetches and stores that failed in other ways"`
	Hedges       uint64 `json:"hedges" help:"fetches begun at a second holder"`
	HedgeWins    uint64 `json:"hedge_wins" help:"hedges that were faster"`

	Taken      uint64 `json:"taken_blocks" help:"copies of blocks of other nodes that this node took"`
	TakenBytes uint64 `json:"taken_bytes" help:"bytes of these copies"`
	Refused    uint64 `json:"refused_offers" help:"copies that this node did not take"`
	Lent       uint64 `json:"lent_blocks" help:"blocks that this node served to peers"`
	LentBytes  uint64 `json:"lent_bytes" help:"bytes of these blocks"`
	Later      uint64 `json:"later_answers" help:"readers that were told to come back, because others were getting the block"`
	Rests      uint64 `json:"later_waits" help:"times that this node was told to, and came back"`

	Published uint64 `json:"published_records" help:"records that this node sent about its blocks"`
	Resyncs   uint64 `json:"resyncs" help:"times that this node announced all its blocks again"`
	Hints     int64  `json:"hints" help:"copies on other nodes that the index does not have yet, and answers of other nodes"`

	Asked      uint64 `json:"asked_names" help:"names that this node did not know, and [asked other nodes](cluster.md#large-clusters) about"`
	AskedFound uint64 `json:"asked_found" help:"of these, names of which another node told a holder"`

	// PeerFailures has the failures of each peer that had any.
	PeerFailures map[string]uint64 `json:"peer_failures,omitempty" help:"failures of each node that had any"`
}

// Stats implements driver.Statser. Blocks counts a block once for each holder. The capacity belongs
// to other nodes and is in their statistics. Detail is a Detail.
func (t *Tier) Stats() driver.Stats {
	c := &t.counters
	s := driver.Stats{
		State:       "online",
		StoredBytes: c.storedBytes.Load(), LoadedBytes: c.loadedBytes.Load(),
		Stored: c.stored.Load(), Loaded: c.loaded.Load(),
		Corrupt: c.corrupt.Load(), SkippedNoSpace: c.skippedNoSpace.Load(),
	}
	d := &Detail{
		Requests: c.requests.Load(), Fetches: c.fetches.Load(), FetchedBytes: c.fetchedBytes.Load(), Gone: c.gone.Load(),
		Corrupt: c.corrupt.Load(), Timeouts: c.timeouts.Load(), Failures: c.failures.Load(),
		Hedges: c.hedges.Load(), HedgeWins: c.hedgeWins.Load(),
		Taken: c.taken.Load(), TakenBytes: c.takenBytes.Load(), Refused: c.refused.Load(),
		Lent: c.lent.Load(), LentBytes: c.lentBytes.Load(),
		Later: c.later.Load(), Rests: c.rests.Load(),
		Published: c.published.Load(), Resyncs: c.resyncs.Load(), Hints: t.hints.count.Load(),
		Asked: c.asked.Load(), AskedFound: c.askedFound.Load(),
	}
	s.Detail = d
	if t.isClosed() {
		s.State, s.Reason = "offline", "closed"
		return s
	}
	s.Blocks = t.countBlocks()
	var failed []string
	for _, m := range t.node.Members() {
		switch {
		case m.Self:
			continue
		case m.State == "failed" || m.State == "alive" && m.Breaker == "open":
			failed = append(failed, m.Name)
		}
		if m.State == "alive" {
			d.Members++
		}
		if m.Failures > 0 {
			if d.PeerFailures == nil {
				d.PeerFailures = make(map[string]uint64)
			}
			d.PeerFailures[m.Name] = m.Failures
		}
	}
	if d.Failed = len(failed); d.Failed > 0 {
		s.State, s.Reason = "degraded", reasonFor(failed)
	}
	return s
}

// reasonFor names some of the members that do not answer.
func reasonFor(failed []string) string {
	const most = 4
	if n := len(failed) - most; n > 0 {
		failed = append(failed[:most:most], fmt.Sprintf("%d others", n))
	}
	return "no answer from " + strings.Join(failed, ", ")
}

// countBlocks counts the entries of the index and the copies that it lacks. Of blocks that this node does not know it
// counts none.
func (t *Tier) countBlocks() int64 {
	for try := 0; ; try++ {
		before := t.node.indexStats().Entries
		n := before
		for _, path := range t.hints.copied(t.now()) {
			for _, h := range t.hints.get(path, t.now(), nil) {
				var buf [8]holder
				known := slices.ContainsFunc(t.node.locate(path, buf[:0]), func(k holder) bool {
					return k.peer.Name() == h.peer.Name() && k.Seq >= h.Seq
				})
				if !known && h.kind == copied {
					n++
				}
			}
		}
		if t.node.indexStats().Entries == before || try == 3 {
			return n // else some of the hints came into the index meanwhile
		}
	}
}
