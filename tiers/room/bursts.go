package room

import "github.com/kvfs/kvfs/tiers/policy"

const (
	// burstGaps is how long a burst lasts at most, in gaps, so that a process that never pauses does not rank what it
	// uses now as older than what it used long ago.
	burstGaps = 20
	// maxBursts bounds the processes whose bursts are told apart at a time. A burst of one more ends that of the
	// process that has paused longest.
	maxBursts = 32
)

// bursts tells the bursts of processes apart.
type bursts struct {
	of     [maxBursts]processBurst
	latest int          // index of the burst that was asked for last
	number policy.Burst // of the newest burst
}

// processBurst is the last burst of a process.
type processBurst struct {
	process     uint64
	began, last int64 // nanoseconds
	number      policy.Burst
}

// Burst returns the burst to which a use of a block by a process belongs. process is any number that stands for it,
// now the time in nanoseconds. 0: without a gap there are no bursts. See policy.Burst.
func (r *Room) Burst(process uint64, now int64) policy.Burst {
	if r.opts.BurstGap <= 0 {
		return 0
	}
	b := &r.bursts
	if b.of[b.latest].process != process {
		b.latest = b.slot(process)
	}
	p := &b.of[b.latest]
	if p.process != process || r.over(p, now) {
		*p = processBurst{process: process, began: now}
		p.number = b.next()
	}
	p.last = now
	return p.number
}

// Bursting reports whether a burst may still go on.
func (r *Room) Bursting(number policy.Burst, now int64) bool {
	for i := range r.bursts.of {
		if p := &r.bursts.of[i]; p.number == number {
			return number != 0 && !r.over(p, now)
		}
	}
	return false
}

// over reports whether a use now is one of another burst. A clock that was set back ends a burst, too.
func (r *Room) over(p *processBurst, now int64) bool {
	gap := int64(r.opts.BurstGap)
	return p.number == 0 || now < p.last || now-p.last > gap || now-p.began > burstGaps*gap
}

// slot returns the index of the burst of a process, or of the one that it replaces.
func (b *bursts) slot(process uint64) int {
	oldest := 0
	for i := range b.of {
		switch p := &b.of[i]; {
		case p.process == process && p.number != 0:
			return i
		case p.last < b.of[oldest].last:
			oldest = i
		}
	}
	return oldest
}

// next returns the number of a new burst. A policy keeps apart as many bursts as policy.MaxBursts, by the remainder of
// their numbers, so the numbers of bursts that go on differ in that.
func (b *bursts) next() policy.Burst {
	for {
		b.number++
		taken := b.number == 0
		for i := range b.of {
			taken = taken || b.of[i].number != 0 && b.of[i].number%policy.MaxBursts == b.number%policy.MaxBursts
		}
		if !taken {
			return b.number
		}
	}
}
