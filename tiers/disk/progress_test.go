package disk

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/directio"
)

// TestOpenProgress shows that Open tells how much of a device it has read, from its index and, after a crash, from its
// tables: ever more, up to all.
func TestOpenProgress(t *testing.T) {
	type step struct{ done, total int64 }
	var steps []step
	r := newRig(t, 1, 64<<20, func(o *Options) {
		o.Progress = func(_ string, done, total int64) { steps = append(steps, step{done, total}) }
	})
	for some := range slices.Chunk(numbered(3*progressSlots, 100), 100) {
		r.mustStore(t, some...)
	}
	check := func(how string) {
		t.Helper()
		if len(steps) < 3 {
			t.Fatalf("%s: %v", how, steps)
		}
		for i, s := range steps {
			if last := i == len(steps)-1; s.done <= 0 || (s.done == s.total) != last || i > 0 && (s.done <= steps[i-1].done || s.total != steps[0].total) {
				t.Errorf("%s: step %d of %v", how, i, steps)
			}
		}
	}
	steps = nil
	r.reopen(t)
	check("by the index")
	steps = nil
	r.crash(t)
	check("by the tables")
}

// TestDevicesOpenAtOnce shows that no device waits until another one has been read: after a crash of a machine with many
// devices that would take as long as all of them together.
func TestDevicesOpenAtOnce(t *testing.T) {
	const devices = 3
	r := newRig(t, devices, 64<<20, nil)
	all := r.fill(t, 100*devices, 100)
	var opening sync.WaitGroup
	opening.Add(devices)
	together := make(chan struct{})
	go func() { opening.Wait(); close(together) }() // ends with the test, or is left waiting by one that fails
	engine := r.opts.Engine
	r.opts.Engine = func(ctx context.Context, dir string) (directio.Engine, error) {
		opening.Done()
		select {
		case <-together:
			return engine(ctx, dir)
		case <-time.After(patience):
			return nil, fmt.Errorf("nobody opens the other devices while %s is opened", dir)
		}
	}
	next := r.crash(t)
	for _, b := range all {
		next.mustLoad(t, b)
	}
}
