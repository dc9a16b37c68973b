package lane_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// push queues stores of blocks of one byte each, in jobs of their own.
func (n *names) push(ids ...index.ID) {
	n.locked(func(l *lane.Lane) {
		for _, id := range ids {
			n.key[id] = key(fmt.Sprint("g/", id))
			l.PushLocked(&lane.Store{ID: id, Bytes: lane.StoreJobBytes}, false)
		}
	})
}

func (n *names) missed() (blocks int64) {
	n.locked(func(l *lane.Lane) { blocks = l.StatsLocked().MissedBlocks })
	return blocks
}

// TestMissed shows that blocks that a tier missed while it was away come to it when it is back: one is tried each second, and
// when it is stored the others follow, oldest first, and not those that are gone meanwhile. A drain waits for them.
func TestMissed(t *testing.T) {
	run(t, lane.Options{CatchUpRate: 1}, func(t *testing.T, n *names, tier *slow) {
		n.push(1, 2, 3)
		want(t, "three jobs", tier.took(), []string{"store g/1", "store g/2", "store g/3"})
		for range 3 {
			tier.fail()
		}
		drained, waits := make(chan error, 1), true
		var p lane.Progress
		drain := func(l *lane.Lane) { waits = l.BarrierLocked(&p, false, func(err error) { drained <- err }) }
		n.locked(drain)
		n.locked(func(l *lane.Lane) {
			if l.BarrierLocked(&lane.Progress{}, true, func(error) {}) || l.ReturnedLocked() {
				t.Error("a drain waits for the tier although it need not")
			}
		})
		want(t, "at once", tier.took(), nil)
		for range 2 {
			time.Sleep(1100 * time.Millisecond) // reason: the time of the bubble
			want(t, "one a second, the oldest", tier.took(), []string{"store g/1"})
			tier.fail()
		}
		if got := n.missed(); got != 3 || !waits || len(drained) > 0 {
			t.Errorf("%d missed; a drain waits: %v, ended: %d", got, waits, len(drained))
		}
		n.push(4) // the tier is tried with new blocks all the same
		want(t, "a new block", tier.took(), []string{"store g/4"})
		tier.fail()
		n.locked(func(*lane.Lane) { delete(n.key, 2) })
		time.Sleep(time.Second) // reason: the time of the bubble
		want(t, "the oldest", tier.took(), []string{"store g/1"})
		tier.answer(driver.Stored)
		time.Sleep(500 * time.Millisecond) // reason: the time of the bubble
		want(t, "before its second is over", tier.took(), nil)
		time.Sleep(600 * time.Millisecond) // reason: the time of the bubble
		want(t, "the next that is there", tier.took(), []string{"store g/3"})
		n.locked(func(l *lane.Lane) {
			if !l.ReturnedLocked() {
				t.Error("the tier is not back")
			}
		})
		tier.answer(driver.Stored)
		time.Sleep(1100 * time.Millisecond) // reason: the time of the bubble
		want(t, "the last", tier.took(), []string{"store g/4"})
		tier.answer(driver.Stored)
		for waits {
			if err := <-drained; err != nil {
				t.Fatal(err)
			}
			n.locked(drain)
		}
		if err := <-drained; err != nil || n.missed() != 0 {
			t.Errorf("drained: %v, %d missed", err, n.missed())
		}
		time.Sleep(time.Hour) // reason: the time of the bubble
		want(t, "nothing is left", tier.took(), nil)
	})
}

// TestMissedForGood shows that a drain does not wait for a tier that does not come back.
func TestMissedForGood(t *testing.T) {
	run(t, lane.Options{Tier: &failing{}}, func(t *testing.T, n *names, tier *slow) {
		n.push(1)
		want(t, "a job", tier.took(), []string{"store g/1"})
		drained := make(chan error, 1)
		var p lane.Progress
		for waits := true; waits; {
			n.locked(func(l *lane.Lane) { waits = l.BarrierLocked(&p, false, func(err error) { drained <- err }) })
			if waits {
				tier.fail()
			}
			if err := <-drained; err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour) // reason: the time of the bubble
		if want(t, "nothing more", tier.took(), nil); n.missed() != 0 {
			t.Errorf("%d missed", n.missed())
		}
	})
}

// TestMissedInFlight shows that a drain waits for blocks that are under way when it begins, and that the tier misses. What a
// tier refuses for another reason it does not get again. A close ends the drain.
func TestMissedInFlight(t *testing.T) {
	drained := make(chan error, 1)
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		n.push(1, 2)
		want(t, "two jobs", tier.took(), []string{"store g/1", "store g/2"})
		var p lane.Progress
		barrier := func(l *lane.Lane) {
			if !l.BarrierLocked(&p, false, func(err error) { drained <- err }) {
				t.Error("the drain does not wait")
			}
		}
		n.locked(barrier)
		tier.fail()
		tier.answerWith(driver.Failed, block.ErrTooLarge)
		if err := <-drained; err != nil || n.missed() != 1 {
			t.Errorf("barrier: %v, %d missed", err, n.missed())
		}
		n.locked(barrier)
	})
	if err := <-drained; !errors.Is(err, block.ErrClosed) {
		t.Errorf("the drain ends with %v", err)
	}
}

// TestMissedAgain shows that a tier is tried again whatever becomes of an attempt: another block fails while the rate holds
// the next one back, and the block of the attempt is gone when its turn comes.
func TestMissedAgain(t *testing.T) {
	run(t, lane.Options{CatchUpRate: 1}, func(t *testing.T, n *names, tier *slow) {
		n.push(1, 2, 3)
		want(t, "three jobs", tier.took(), []string{"store g/1", "store g/2", "store g/3"})
		for range 3 {
			tier.fail()
		}
		time.Sleep(1100 * time.Millisecond) // reason: the time of the bubble
		want(t, "an attempt", tier.took(), []string{"store g/1"})
		tier.answer(driver.Stored)
		n.push(4)
		want(t, "a new block", tier.took(), []string{"store g/4"})
		tier.fail()
		time.Sleep(2 * time.Second) // reason: the time of the bubble
		want(t, "an attempt after it", tier.took(), []string{"store g/2"})
		tier.fail()
		n.locked(func(l *lane.Lane) { n.gone = 2 })
		time.Sleep(3 * time.Second) // reason: the time of the bubble
		want(t, "the next one", tier.took(), []string{"store g/3"})
		tier.fail()
	})
}
