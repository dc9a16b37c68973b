package tiers_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// TestJobs: the table of loads has each job from its begin to its end, with numbers that ascend,
// the request that it is for and who waits (A6, A42), and is empty at rest, also after failures.
func TestJobs(t *testing.T) {
	plan := tiertest.NewPlan()
	w, disk := openLowerOne(t, tiers.Options{CapacityBytes: 1024 * page}, tiertest.ReferenceOptions{Faults: plan})
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
		for i, want := range []tiers.LoadJob{
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

// TestJobsOfOne: a job is of one request, and of blocks that somebody waits for or of none such.
func TestJobsOfOne(t *testing.T) {
	w, disk := openLowerOne(t, tiers.Options{CapacityBytes: 1024 * page, PromoteWindow: time.Hour}, tiertest.ReferenceOptions{})
	names := numbered("g", 6)
	w.hollow("x", names...)
	release := disk.Hold(tiertest.OpLoad)
	var wg sync.WaitGroup
	wg.Go(func() { w.content(names[0]) }) // waits for more, for an hour
	eventually(t, "a reader waits", func() bool { _, n := w.e.Jobs(); return n["disk"] == 1 })
	for i, request := range []string{"one", "two"} {
		wg.Go(func() {
			w.e.Prefetch(context.Background(), tiers.PrefetchRequest{
				Request: request, Paths: [][]byte{[]byte(names[2*i+1]), []byte(names[2*i+2])}, Done: func(int, tiers.PrefetchResult) {},
			})
		})
		must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 2*i+3))
	}
	jobs, _ := w.e.Jobs()
	var got []string
	for _, j := range jobs {
		got = append(got, j.Request)
		if j.Promotion != (j.Request == "") || j.Keys != map[bool]int{true: 1, false: 2}[j.Promotion] {
			t.Errorf("job %+v", j)
		}
	}
	if want := []string{"", "one", "two"}; !slices.Equal(got, want) {
		t.Errorf("requests %q", got)
	}
	release()
	wg.Wait()
	w.atRest()
	w.end()
}

// TestJobsTake: a copy that is fetched beside an older version upsets no account.
func TestJobsTake(t *testing.T) {
	c := newCrowd(t, 2, tiers.Options{})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), b.mkdir("g"), b.put(10, "g/x", []byte("old")), a.put(10, "g/x", []byte("newer")))
	h, ok := a.e.Holding("g/x")
	if !ok {
		t.Fatal("not there")
	}
	b.hear(0, "g/x", located(&h), true)
	must(t, b.e.Take(context.Background(), &h))
	if got := b.reads("g/x"); got != "newer" {
		t.Errorf("read %q", got)
	}
	b.busy = true
	h.Seq++
	b.hear(0, "g/x", located(&h), true)
	if err := b.e.Take(context.Background(), &h); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("of what cannot be had: %v", err)
	}
	eventually(t, "all loads have ended", b.e.AtRest)
	must(t, b.e.AuditLoads())
	if p := b.e.Stats().PinnedBytes; p != 0 {
		t.Errorf("%d bytes pinned", p)
	}
}
