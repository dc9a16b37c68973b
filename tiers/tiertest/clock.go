package tiertest

import "time"

// Clock is the source of injected latency, so that no test has to sleep.
type Clock interface {
	// After returns a channel that receives once d has passed.
	After(d time.Duration) <-chan time.Time
}

// realClock is the Clock of the process.
type realClock struct{}

func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
