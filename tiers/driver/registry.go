package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"
)

// Opener is what a configuration says of one tier: a pointer to a struct whose fields are the options
// of the tier's type, with the tags of package cmd/kvfs/config. Only checked values are in it. If it has a
// method Validate() error, that is called once all are set, also by kvfs config check.
type Opener interface {
	// Open opens the tier, to be known by that name in errors and logs. It may block for as long as ctx,
	// which is not for the life of the tier: that ends with Tier.Close. log is the daemon's own.
	Open(ctx context.Context, name string, log *zap.Logger) (Tier, error)
}

// Registry has the types of tiers that a configuration may list, by name. Main fills one; there is no
// global one. The zero value is empty. It may be read from any goroutine.
//
// Source: vLLM v1/kv_offload/tiering, SecondaryTierFactory.
type Registry struct {
	types map[string]func() Opener
}

// Register adds a type. options returns a new, empty Opener; nil is for a type whose options the
// configuration has in sections of their own. It fails if the name is empty or there already.
func (r *Registry) Register(name string, options func() Opener) error {
	if _, taken := r.types[name]; taken || name == "" {
		return fmt.Errorf("tier type %q is empty or registered already", name)
	}
	if r.types == nil {
		r.types = map[string]func() Opener{}
	}
	r.types[name] = options
	return nil
}

// Types lists the names of the types, in order.
func (r *Registry) Types() []string { return slices.Sorted(maps.Keys(r.types)) }

// Options returns a new, empty Opener of a type; nil if the type has none, or is unknown.
func (r *Registry) Options(name string) any {
	if options := r.types[name]; options != nil {
		return options()
	}
	return nil
}
