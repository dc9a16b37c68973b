package daemon

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const retryEvery = 100 * time.Millisecond

// Pace is how often an owner is looked for, and what was said about it. There is no event to
// wait for: the directory of the socket may be absent, or bound from another mount name space.
// The zero value is ready.
type Pace struct{ said string }

// note logs what is waited for and why, unless that was said already.
func (p *Pace) note(log *zap.Logger, what string, err error) {
	if why := fmt.Sprint(err); why != p.said {
		p.said = why
		log.Info(what, zap.Error(err))
	}
}

// Wait waits for a while and reports whether ctx lasts.
func (p *Pace) Wait(ctx context.Context) bool {
	t := time.NewTimer(retryEvery)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil // both may have happened
}
