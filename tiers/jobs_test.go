package tiers_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// TestJobs: the table of loads has each job from its begin to its end, with numbers that ascend,
// the request that it is for and who waits (A6, A42), and is empty at rest, also after failures.
func TestJobs(t *testing.T) {
	plan := tiertest.NewPlan()
	w, disk := openLowerOne(t, state.Options{CapacityBytes: 1024 * page}, tiertest.ReferenceOptions{Faults: plan})
	if jobs, waiting := w.e.Jobs(); len(jobs) != 0 || len(waiting) != 1 || waiting["disk"] != 0 {
		t.Errorf("at first: %+v, %v", jobs, waiting)
	}
	names := numbered("g", 5)
	w.hollow("12345", names...)
	w.hollow("123", "g/read")
	for round := range 2 {
		began := time.Now()
		release := disk.Hold(tiertest.OpLoad)
		f := newFetched(len(names))
		var wg sync.WaitGroup
		wg.Go(func() { w.fetch(context.Background(), f, names...) })
		must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, len(names)+round*(len(names)+1)))
		wg.Go(func() { w.content("g/read") })
		must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, (round+1)*(len(names)+1)))
		jobs, waiting := w.e.Jobs()
		if len(jobs) != 2 || waiting["disk"] != 0 {
			t.Fatalf("jobs %+v, %v", jobs, waiting)
		}
		for i, want := range []lane.LoadJob{
			{Request: "req", Tier: "disk", Keys: 5, Bytes: 25},
			{Tier: "disk", Promotion: true, Keys: 1, Bytes: 3},
		} {
			got := jobs[i]
			if got.Started.Before(began) || got.Started.After(time.Now()) || got.ID == 0 || i > 0 && got.ID <= jobs[i-1].ID {
				t.Errorf("job %d: %+v", i, got)
			}
			got.ID, got.Started = 0, time.Time{}
			if got != want {
				t.Errorf("job %d: %+v, want %+v", i, got, want)
			}
		}
		must(t, w.e.AuditLoads())
		if round == 1 {
			plan.Set(tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Err: errors.New("broken")}})
		}
		release()
		wg.Wait()
		if want := []string{"lllll", "!!!!!"}[round]; f.letters() != want {
			t.Errorf("results %q, want %q", f.letters(), want)
		}
		w.atRest()
		if jobs, waiting := w.e.Jobs(); len(jobs) != 0 || waiting["disk"] != 0 {
			t.Errorf("at rest: %+v, %v", jobs, waiting)
		}
		if round == 0 {
			w.evict("memory", append(names, "g/read")...)
		}
	}
	plan.Set()
	w.end()
}
