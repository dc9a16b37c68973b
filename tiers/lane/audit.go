package lane

import (
	"errors"
	"fmt"
)

// AuditLocked compares the accounts with what is queued and under way, and returns all differences. It goes
// through the queues. In builds with the tag invariants TurnAway calls it.
func (l *Lane) AuditLocked() error {
	var errs []error
	check := func(what string, got, want int64) {
		if got != want {
			errs = append(errs, fmt.Errorf("lane of %q: account says %d %s, there are %d", l.o.Name, got, what, want))
		}
	}
	var stores, storeBytes, busyBytes, leaving, pending, loading int64
	count := func(s *Store) {
		stores++
		storeBytes += s.Bytes
		if s.Leaving {
			leaving += s.Bytes
		}
	}
	for s := range l.QueuedLocked() {
		count(s)
	}
	for s := range l.begun {
		busyBytes += s.Bytes
		count(s)
	}
	for _, ld := range l.pending {
		pending += ld.Size
	}
	for _, j := range l.jobs {
		loading += j.Bytes
	}
	check("queued blocks", l.stats.QueuedBlocks, stores)
	check("queued bytes", l.stats.QueuedBytes, storeBytes)
	check("bytes of blocks that leave memory", l.leaving, leaving)
	check("keys being stored", int64(len(l.busy)), int64(len(l.begun)))
	check("bytes being stored", l.busyBytes, busyBytes)
	check("bytes waiting to be loaded", l.pendingBytes, pending)
	check("bytes being loaded", l.loadingBytes, loading)
	check("load jobs", int64(l.loading), int64(len(l.jobs)))
	return errors.Join(errs...)
}
