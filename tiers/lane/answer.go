package lane

import (
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// ErrAnswer: a tier did not say of each block of a job what became of it.
var ErrAnswer = errors.New("tier did not answer for each block of the job")

// answered returns what the tier is to call when job is done: it calls fn, once, with an outcome for each block. An
// answer that is none to this job counts as the failure of all of it; what a tier says after its first answer counts
// for nothing. Both are counted.
func (l *Lane) answered(job *driver.Job, fn func(*driver.Result)) func(*driver.Result) {
	var done atomic.Bool
	return func(r *driver.Result) {
		again := done.Swap(true)
		if again || !answers(job, r) {
			l.o.Lock.Lock()
			l.stats.BadAnswers++
			l.o.Lock.Unlock()
			l.o.Logger.Error("wrong answer of a tier", zap.String("tier", l.o.Name), zap.Uint64("job", uint64(job.ID)), zap.Bool("again", again))
			r = l.unanswered(job)
		}
		if !again {
			fn(r)
		}
	}
}

// answers reports whether r has one outcome for each block of job, in order.
func answers(job *driver.Job, r *driver.Result) bool {
	if r == nil || r.Job != job.ID || len(r.Outcomes) != len(job.Blocks) {
		return false
	}
	for i := range r.Outcomes {
		if r.Outcomes[i].Key != job.Blocks[i].Key {
			return false
		}
	}
	return true
}

// unanswered is the result of a job of which nobody knows what became: what it was to load may still be written to.
func (l *Lane) unanswered(job *driver.Job) *driver.Result {
	r := &driver.Result{Job: job.ID, Outcomes: make([]driver.Outcome, len(job.Blocks))}
	for i := range r.Outcomes {
		key := job.Blocks[i].Key
		r.Outcomes[i] = driver.Outcome{Key: key, Err: &block.Error{Op: "answer", Tier: l.o.Name, Key: key, Err: errors.Join(block.ErrUnavailable, ErrAnswer)}}
	}
	return r
}
