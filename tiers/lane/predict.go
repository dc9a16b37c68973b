package lane

import "time"

// Predictor measures what a tier gives, to tell how long a load that is asked for now would
// take.
//
// It sums the times from the end of one job to that of the next, or from its begin if that was
// later, and the bytes that they brought; the latest count most. With many jobs under way at a
// time that is the throughput of all together, and of blocks of one size it includes what each
// costs whatever its size. The zero value knows nothing. The lock of the Lane guards it.
type Predictor struct {
	took  float64 // nanoseconds
	bytes float64
	last  time.Time // end of the last job
}

const (
	// predictDecay is the share that a measurement keeps when the next one comes.
	predictDecay = 0.9
	// predictStale is the age at which measurements of a tier that has had nothing to do since do
	// not count any more, so that one which was slow is tried again.
	predictStale = 10 * time.Second
	// maxPrediction bounds a prediction, in nanoseconds: longer than any deadline.
	maxPrediction = float64(1 << 62)
)

// Ended follows the end of a job that brought some bytes.
func (p *Predictor) Ended(started, now time.Time, bytes int64) {
	since := started
	if p.last.After(started) {
		since = p.last
	}
	p.last = now
	if bytes > 0 {
		p.took = predictDecay*p.took + float64(now.Sub(since))
		p.bytes = predictDecay*p.bytes + float64(bytes)
	}
}

// After returns how long it will probably take until bytes have come; 0 if nothing is known.
func (p *Predictor) After(bytes int64) time.Duration {
	if p.bytes == 0 {
		return 0
	}
	return time.Duration(min(p.took/p.bytes*float64(bytes), maxPrediction))
}

// LateLocked reports whether a load of size bytes that the tier is asked for now would probably
// take longer than deadline. What it was asked for before comes first. A tier that has given
// nothing for longer than that, though it was asked, is late, too.
func (l *Lane) LateLocked(size int64, deadline time.Duration) bool {
	now := l.o.Now()
	queued := l.pendingBytes + l.loadingBytes
	if l.loading == 0 && queued == 0 && now.Sub(l.predict.last) > predictStale {
		return false
	}
	if l.predict.After(queued+size) > deadline {
		return true
	}
	since := l.busySince
	if l.predict.last.After(since) {
		since = l.predict.last
	}
	return l.loading > 0 && now.Sub(since) > deadline
}

// IdleLocked reports whether no load is queued or under way.
func (l *Lane) IdleLocked() bool { return l.loading == 0 && len(l.pending) == 0 }
