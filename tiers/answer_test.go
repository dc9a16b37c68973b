package tiers_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// liar is a reference tier that gives other answers than it means while lie is set.
type liar struct {
	*tiertest.Reference
	lie atomic.Pointer[func(*driver.Result) []*driver.Result]
}

func (l *liar) Store(job *driver.Job) { l.Reference.Store(l.twisted(job)) }
func (l *liar) Load(job *driver.Job)  { l.Reference.Load(l.twisted(job)) }

func (l *liar) twisted(job *driver.Job) *driver.Job {
	lie := l.lie.Load()
	if lie == nil {
		return job
	}
	twisted := *job
	twisted.Done = func(r *driver.Result) {
		for _, answer := range (*lie)(r) {
			job.Done(answer)
		}
	}
	return &twisted
}

// TestLyingTier: a tier that does not say of each block of a job what became of it has failed at the job: that is
// counted, whoever waits is told, what it may have stored is removed from it, and a read is a miss. Answers after the
// first are counted, and nothing else (A25).
func TestLyingTier(t *testing.T) {
	for _, row := range []struct {
		what string
		true bool // the first answer is right
		lie  func(*driver.Result) []*driver.Result
	}{
		{"no result", false, func(*driver.Result) []*driver.Result { return []*driver.Result{nil} }},
		{"too few outcomes", false, func(r *driver.Result) []*driver.Result {
			return []*driver.Result{{Job: r.Job, Outcomes: r.Outcomes[:len(r.Outcomes)-1]}}
		}},
		{"too many", false, func(r *driver.Result) []*driver.Result {
			return []*driver.Result{{Job: r.Job, Outcomes: append(r.Outcomes, driver.Outcome{})}}
		}},
		{"of another block", false, func(r *driver.Result) []*driver.Result {
			o := r.Outcomes[0]
			o.Key.Hash += "x"
			return []*driver.Result{{Job: r.Job, Outcomes: append([]driver.Outcome{o}, r.Outcomes[1:]...)}}
		}},
		{"of another job", false, func(r *driver.Result) []*driver.Result {
			return []*driver.Result{{Job: r.Job + 1, Outcomes: r.Outcomes}}
		}},
		{"two answers", true, func(r *driver.Result) []*driver.Result { return []*driver.Result{r, r} }},
	} {
		t.Run(row.what, func(t *testing.T) {
			l := &liar{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{})}
			w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: l}}}, l.Reference)
			defer w.close(false)
			must(t, w.mkdir("g"), w.put(10, "g/kept", []byte("before")))
			w.evict("memory", "g/kept")

			l.lie.Store(&row.lie)
			must(t, w.put(10, "g/new", []byte("bytes")))
			err := w.e.Fsync(until(t), resolve(t, w.world, "g/new").ID)
			if row.true != (err == nil) || err != nil && !errors.Is(err, block.ErrUnavailable) {
				t.Errorf("fsync: %v", err)
			}
			data, err := w.get(10, "g/kept")
			if row.true && string(data) != "before" || !row.true && !errors.Is(err, block.ErrNotFound) {
				t.Errorf("read %q, %v", data, err)
			}
			eventually(t, "both are counted", func() bool { return w.e.Stats().Secondaries[0].BadAnswers >= 2 })
			s := w.e.Stats().Secondaries[0]
			if row.true != (s.CascadeFailed+s.PromoteFailed == 0) {
				t.Errorf("%+v", s)
			}

			l.lie.Store(nil)
			w.drain()
			want := "[g/kept]"
			if row.true {
				want = "[g/kept g/new]"
			}
			eventually(t, "the tier holds "+want, func() bool { return holds(l.Reference) == want })
			w.wantRead("bytes", "g/new")
			w.wantRead("before", "g/kept")
			must(t, w.e.Drain(context.Background()))
			w.quiesce()
		})
	}
}
