package reuse

import (
	"time"

	"github.com/kvfs/kvfs/tiers/latency"
)

// minBytes is what a block weighs at least, so that empty blocks do not fill a sample.
const minBytes = 4096

// Name is a name as the engine knows it.
type Name struct {
	Hash uint32 // decides whether the name is in the samples; all values are as likely
	Key  uint64 // tells sampled names apart
}

// Meter measures the use of blocks. Its owner guards it with a lock. No method blocks. Times are in nanoseconds since
// the epoch.
type Meter struct {
	limit   uint64 // hashes below it are in a sample
	all     totals
	since   int64
	samples []*sample // of memory, and of memory and SSD if there is one

	evicted, removed, idle, back latency.Ages
}

// New returns a Meter of a node with memory and SSD of so many bytes. ssd is 0 if there is none.
func New(memory, ssd, now int64) *Meter {
	m := &Meter{limit: allHashes, since: now}
	m.samples = append(m.samples, newSample(memory, &m.all))
	if ssd > 0 {
		m.samples = append(m.samples, newSample(memory+ssd, &m.all))
	}
	return m
}

// Sampled reports whether names with a hash are in a sample. For others Stored, Missed, Left and Dropped do nothing.
func (m *Meter) Sampled(hash uint32) bool { return uint64(hash) < m.limit }

// Asked counts a read, and reports whether Read must follow.
func (m *Meter) Asked(hash uint32) bool {
	m.all.reads++
	return uint64(hash) < m.limit
}

// each calls use for the samples that a name is in. Before, there is room in them for one more.
func (m *Meter) each(n Name, use func(s *sample)) {
	for _, s := range m.samples {
		if len(s.at) >= s.most() {
			s.shrink()
		}
		if uint64(n.Hash) < s.limit() {
			use(s)
		}
	}
	m.limit = 0
	for _, s := range m.samples {
		m.limit = max(m.limit, s.limit())
	}
}

// Read notes the read of a block that was committed at a time.
func (m *Meter) Read(n Name, bytes, committed int64) {
	m.each(n, func(s *sample) { s.read(n, max(bytes, minBytes), committed < m.since) })
}

// Stored notes the commit of a block.
func (m *Meter) Stored(n Name, bytes int64) {
	m.each(n, func(s *sample) { s.use(n, max(bytes, minBytes), false) })
}

// Awaited reports whether a name was asked for in vain and has no block since: Missed does nothing then.
func (m *Meter) Awaited(key uint64) bool {
	for _, s := range m.samples {
		if i, ok := s.at[key]; !ok || !s.blocks[i].asked {
			return false
		}
	}
	return true
}

// Missed notes the look-up of a name that is not there. The node has that many blocks.
func (m *Meter) Missed(n Name, blocks int, now int64) {
	m.all.blocks = blocks
	left := int64(0)
	m.each(n, func(s *sample) { left = max(left, s.missed(n)) })
	if left != 0 {
		m.back.Observe(time.Duration(now - left))
	}
}

// Left notes that the node has evicted its last copy of a block.
func (m *Meter) Left(n Name, now int64) {
	for _, s := range m.samples {
		if i, ok := s.at[n.Key]; ok {
			s.blocks[i].left = now
		}
	}
}

// Dropped notes that a block was removed, not evicted.
func (m *Meter) Dropped(n Name) {
	for _, s := range m.samples {
		if i, ok := s.at[n.Key]; ok {
			s.forget(i)
		}
	}
}

// Evicted notes that a block left memory to make room, at an age, and some time after its last use.
func (m *Meter) Evicted(age, idle time.Duration) {
	m.evicted.Observe(age)
	m.idle.Observe(idle)
}

// Removed notes that a block in memory was removed at an age.
func (m *Meter) Removed(age time.Duration) { m.removed.Observe(age) }

// Stats is what a Meter has measured.
type Stats struct {
	Evicted latency.Ages // of blocks that were evicted from memory, since their commit
	Removed latency.Ages // of blocks in memory that were removed, since their commit
	Idle    latency.Ages // of evicted blocks, since their last read or commit
	Back    latency.Ages // from the eviction of the last copy to the next look-up, of sampled names

	Memory Estimate
	SSD    *Estimate // of memory and SSD together; nil: there is no SSD
}

// Estimate is about caches of several sizes.
type Estimate struct {
	Share float64 // of names that are in the sample
	Asks  uint64  // sampled, since the begin
	Hits  [len(Scales)]uint64

	// Ratio has the hit ratios for the asks of late: the last 8192 to 16384 sampled ones count most. Valid is false
	// before the first ask.
	Ratio [len(Scales)]float64
	Valid bool
}

// Stats returns a snapshot.
func (m *Meter) Stats() Stats {
	st := Stats{Evicted: m.evicted, Removed: m.removed, Idle: m.idle, Back: m.back, Memory: m.samples[0].estimate()}
	if len(m.samples) > 1 {
		e := m.samples[1].estimate()
		st.SSD = &e
	}
	return st
}

func (s *sample) estimate() Estimate {
	s.expect()
	e := Estimate{Share: s.share(), Asks: s.asks, Hits: s.hits}
	e.Ratio, e.Valid = s.ratios()
	return e
}
