package tiers

import (
	"context"

	"github.com/kvfs/kvfs/tiers/state"
)

// userKey is the key of a Process in a context.
type userKey struct{}

// WithUser returns ctx for the requests of a process.
func WithUser(ctx context.Context, p state.Process) context.Context {
	return context.WithValue(ctx, userKey{}, p)
}

// UserOf returns the process whose requests ctx is for. The zero Process: it is not known.
func UserOf(ctx context.Context) state.Process {
	p, _ := ctx.Value(userKey{}).(state.Process)
	return p
}
