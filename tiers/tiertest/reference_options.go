package tiertest

import (
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// ReferenceOptions configures a Reference. The zero value works.
type ReferenceOptions struct {
	// Name is used in errors. Empty means "reference".
	Name string
	// CapacityBytes limits the bytes held. Zero means 1 GiB.
	CapacityBytes int64
	// MaxKeyBytes limits the path of a key. Zero means block.MaxPath.
	MaxKeyBytes int
	// BudgetBytes limits the bytes stored in all, without jobs with Force. Zero means no limit.
	BudgetBytes int64
	// Workers is the number of jobs served at once. Zero means 2.
	Workers int
	// Direct serves each job at once, on its own goroutine, so that Done often comes before Store
	// or Load has returned. Workers has no effect then.
	Direct bool
	// Latency passes before each job is served. Zero means none (A33).
	Latency time.Duration
	// Clock measures Latency. Nil means the clock of the process.
	Clock Clock
	// Faults are injected into stores, loads, look-ups and syncs. Nil means none
	// (A33).
	Faults *Plan
	// OnJob is called for each job from within Store and Load. It must neither block nor keep the
	// job. Nil: not called.
	OnJob func(op Op, job *driver.Job)
}

// withDefaults returns o with its zero fields filled.
func (o ReferenceOptions) withDefaults() ReferenceOptions {
	if o.Name == "" {
		o.Name = "reference"
	}
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 1 << 30
	}
	if o.MaxKeyBytes == 0 {
		o.MaxKeyBytes = block.MaxPath
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	return o
}
