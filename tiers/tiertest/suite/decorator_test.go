package suite

import (
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// TestFaultyWithFaults shows that a decorated tier has errors, but never wrong
// bytes and never a job without its Result.
func TestFaultyWithFaults(t *testing.T) {
	t.Parallel()
	plan := everyNth()
	Run(t, func(t *testing.T) driver.Tier {
		return tiertest.NewFaulty(openReference(t, tiertest.ReferenceOptions{}), plan)
	}, Options{
		Small: func(t *testing.T) driver.Tier {
			return tiertest.NewFaulty(openReference(t, smallReferences[0]), plan)
		},
		Faulty: true,
	})
	if plan.Injected() == 0 {
		t.Error("no fault was injected")
	}
}

// plain is a tier without any optional ability.
type plain struct{ driver.Tier }

// TestSuiteWithoutAbilities shows that the suite passes a tier without any optional
// ability.
func TestSuiteWithoutAbilities(t *testing.T) {
	t.Parallel()
	Run(t, func(t *testing.T) driver.Tier { return plain{openReference(t, tiertest.ReferenceOptions{})} }, Options{})
}
