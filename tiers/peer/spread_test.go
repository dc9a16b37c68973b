package peer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestLendLater shows that a large block is lent to few patient readers at a time, and to all others without a limit.
func TestLendLater(t *testing.T) {
	c := newCell(t, 0, nil)
	b := &backend{c.Tier}
	c.engine.put(tiers.Holding{Path: "g/large", Seq: 4}, payload(spreadBytes, 1))
	c.engine.put(tiers.Holding{Path: "g/other", Seq: 4}, payload(spreadBytes, 2))
	c.engine.put(tiers.Holding{Path: "g/small", Seq: 4}, payload(spreadBytes-1, 3))
	lend := func(path string, patient bool) (rdma.Loan, error) {
		_, l, err := b.Lend(context.Background(), &cluster.BlockRef{Path: path, Patient: patient})
		return l, err
	}
	var open []rdma.Loan
	for range spreadLoans {
		l, err := lend("g/large", true)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
	}
	if _, err := lend("g/large", true); !errors.Is(err, rdma.ErrLater) || !errors.Is(err, rdma.ErrBusy) {
		t.Fatalf("one more: %v", err)
	}
	for range spreadLoans {
		for path, patient := range map[string]bool{"g/large": false, "g/other": true, "g/small": true} {
			l, err := lend(path, patient)
			if err != nil {
				t.Fatalf("%s, patient %v: %v", path, patient, err)
			}
			open = append(open, l)
		}
	}
	at := c.Tier.now()
	if c.Tier.loans.enter(lentBlock{"g/large", 4}, spreadBytes, true, at) != nil {
		t.Error("a patient reader does not come back")
	}
	if leave := c.Tier.loans.enter(lentBlock{"g/large", 4}, spreadBytes, true, at.Add(time.Second)); leave == nil {
		t.Error("readers that have stopped keep others from the block")
	} else {
		leave()
	}
	if l, err := lend("g/small", true); err != nil {
		t.Errorf("a small block: %v", err)
	} else {
		l.Close()
	}
	for _, l := range open {
		l.Close()
	}
	if l, err := lend("g/large", true); err != nil {
		t.Errorf("after the others: %v", err)
	} else {
		l.Close()
	}
	if n := len(c.Tier.loans.open); n != 0 {
		t.Errorf("%d blocks are still counted", n)
	}
	if d := c.Tier.Stats().Detail.(*Detail); d.Later != 1 {
		t.Errorf("%d answers counted, want 1", d.Later)
	}
}

// TestComeBack shows that a reader that is told to come back asks the nodes that have the block by then, and that it is
// served in time if none has.
func TestComeBack(t *testing.T) {
	data := payload(5000, 1)
	info := cluster.BlockInfo{Path: "g/x", Seq: 7, Size: 5000, Sum: block.Sum(data), Mode: modeRegular | 0o640}
	for _, spreads := range []bool{true, false} {
		n := newStubNode()
		a, b := n.addPeer("a"), n.addPeer("b")
		n.put(a, entryOf("g/x", 7))
		b.memBackend.blocks["g/x"] = &memBlock{info, data}
		asked, impatient := 0, 0
		a.fetch = answers(func(f *cluster.Fetch) {
			if asked++; f.Patient {
				f.Done(nil, rdma.ErrLater)
				return
			}
			impatient++
			give(f, &info, data)
		})
		var rested time.Duration
		clock := stillClock()
		other := clock.after
		clock.after = func(kind timerKind, d time.Duration) (<-chan time.Time, func()) {
			if kind != restTimer {
				return other(kind, d)
			}
			if rested += d; spreads && rested > 4*leastRest {
				n.put(b, entryOf("g/x", 7))
			}
			now := make(chan time.Time, 1)
			now <- time.Time{}
			return now, func() {}
		}
		tier := openStub(t, n, testOptions(n), clock)
		out, got := load(t, tier, want{"g/x", 5000, block.Checksum{}, 7})
		if o := out[0]; o.Status != driver.Loaded || !bytes.Equal(got[0], data) {
			t.Errorf("spreads %v: got %v (%v) of %d bytes", spreads, o.Status, o.Err, len(got[0]))
		}
		d := tier.Stats().Detail.(*Detail)
		half := tier.opts.Timeout / 2
		if spreads && (impatient != 0 || asked < 2) || !spreads && (impatient != 1 || rested < half || rested > half+2*mostRest) {
			t.Errorf("spreads %v: asked %d times, %d of them impatient, after rests of %v", spreads, asked, impatient, rested)
		}
		if d.Rests == 0 || d.Failures+d.Timeouts > 0 {
			t.Errorf("spreads %v: %+v", spreads, d)
		}
	}
}
