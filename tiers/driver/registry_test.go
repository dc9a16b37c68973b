package driver_test

import (
	"context"
	"reflect"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// opener opens a tier of tests.
type opener struct{ t *testing.T }

func (o *opener) Open(context.Context, string, *zap.Logger) (driver.Tier, error) {
	return tiertest.NewReference(o.t, tiertest.ReferenceOptions{}), nil
}

// TestRegistry shows that a type is registered once, under a name, and that each of its entries has
// options of its own (A35).
func TestRegistry(t *testing.T) {
	var r driver.Registry
	if got := r.Types(); len(got) != 0 || r.Options("new") != nil {
		t.Errorf("an empty registry has %v", got)
	}
	fresh := func() driver.Opener { return &opener{t} }
	for _, name := range []string{"new", "disk"} {
		if err := r.Register(name, fresh); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Register("memory", nil); err != nil || r.Options("memory") != nil {
		t.Errorf("a type without options: %v, %v", err, r.Options("memory"))
	}
	for _, name := range []string{"new", "memory", ""} {
		if err := r.Register(name, fresh); err == nil {
			t.Errorf("%q is registered once more", name)
		}
	}
	if got := r.Types(); !reflect.DeepEqual(got, []string{"disk", "memory", "new"}) {
		t.Errorf("got %v", got)
	}
	a, b := r.Options("new"), r.Options("new")
	if a == b || a == nil || r.Options("other") != nil {
		t.Errorf("options %p and %p", a, b)
	}
	tier, err := a.(driver.Opener).Open(t.Context(), "new", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
