package device

import "time"

// spinner decides how long the leader spins for the next request. What a client does next depends on what it was answered last: after
// a LOOKUP it opens the file at once, after an OPEN it reads. So a spinner knows the gap to the next request by operation. It spins
// a little longer than that has been lately, or not at all if that is above the limit. Only the leader uses it.
type spinner struct {
	gaps [NumOps]time.Duration // moving averages
	last Op                    // of the last request
}

// Limits of the time spent spinning for one request. Several clients have work for the processor on which the leader spins.
const (
	maxSpin     = 60 * time.Microsecond
	maxSpinLone = 200 * time.Microsecond // for a client that is alone
)

// budget returns how long to spin now.
func (s *spinner) budget(limit time.Duration) time.Duration {
	gap := s.gaps[s.last]
	if gap > limit {
		return 0
	}
	return min(2*gap+5*time.Microsecond, limit)
}

// took notes that a request has come, so long after the last answer.
func (s *spinner) took(gap time.Duration) {
	g := &s.gaps[s.last]
	*g += (min(gap, 4*maxSpin) - *g) / 8
}
