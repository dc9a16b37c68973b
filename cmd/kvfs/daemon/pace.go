package daemon

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const retryEvery = 100 * time.Millisecond

// Pace paces the search for an owner and remembers what was logged. It polls: the directory of
// the socket may be absent, or bound from another mount name space. The zero value is ready.
type Pace struct{ said string }

// note logs the awaited thing and the reason, unless it was the last to be logged.
func (p *Pace) note(log *zap.Logger, what string, err error) {
	if why := fmt.Sprint(err); why != p.said {
		p.said = why
		log.Info(what, zap.Error(err))
	}
}

// Wait waits for one pace and reports whether ctx is still alive.
func (p *Pace) Wait(ctx context.Context) bool {
	t := time.NewTimer(retryEvery)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil // both may have ended
}
