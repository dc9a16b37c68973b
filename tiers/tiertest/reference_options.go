package tiertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// ReferenceOptions configures a Reference. The zero value works.
type ReferenceOptions struct {
	// Name is used in errors. Empty means "reference".
	Name string
	// CapacityBytes limits the bytes held. Zero means 1 GiB; not negative.
	CapacityBytes int64
	// MaxBlocks limits the number of blocks held. Zero means no limit; not
	// negative (A30).
	MaxBlocks int
	// MaxKeyBytes limits the path of a key. Zero means block.MaxPath; not negative.
	MaxKeyBytes int
	// BudgetBytes limits the bytes stored in all, without jobs with Force. Zero means no limit; not
	// negative.
	BudgetBytes int64
	// QueueJobs limits the jobs that wait for a worker. Zero means 1024; not
	// negative. A Store beyond it is Skipped with ErrNoSpace, a Load fails with
	// ErrUnavailable.
	QueueJobs int
	// Workers is the number of jobs served at once. Zero means 2; not negative.
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

// withDefaults returns o with its zero fields filled, or every violation.
func (o ReferenceOptions) withDefaults() (ReferenceOptions, error) {
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"CapacityBytes", o.CapacityBytes},
		{"MaxBlocks", int64(o.MaxBlocks)},
		{"MaxKeyBytes", int64(o.MaxKeyBytes)},
		{"BudgetBytes", o.BudgetBytes},
		{"QueueJobs", int64(o.QueueJobs)},
		{"Workers", int64(o.Workers)},
		{"Latency", int64(o.Latency)},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d: want at least 0: %w", f.name, f.value, block.ErrInvalid))
		}
	}
	if o.Name == "" {
		o.Name = "reference"
	}
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 1 << 30
	}
	if o.MaxKeyBytes == 0 {
		o.MaxKeyBytes = block.MaxPath
	}
	if o.QueueJobs == 0 {
		o.QueueJobs = 1024
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	return o, errors.Join(errs...)
}
