package peer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
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
		must(t, err)
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
