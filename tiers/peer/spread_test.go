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
	var open []rdma.Loan
	lend := func(path string, patient bool) error {
		_, l, err := b.Lend(context.Background(), &cluster.BlockRef{Path: path, Patient: patient})
		if err == nil {
			open = append(open, l)
		}
		return err
	}
	giveBack := func() {
		for _, l := range open {
			l.Close()
		}
		open = nil
	}
	for range spreadLoans {
		must(t, lend("g/large", true))
	}
	if err := lend("g/large", true); !errors.Is(err, rdma.ErrLater) || !errors.Is(err, rdma.ErrBusy) {
		t.Fatalf("one more: %v", err)
	}
	for range spreadLoans {
		must(t, errors.Join(lend("g/large", false), lend("g/other", true), lend("g/small", true)))
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
	must(t, lend("g/small", true))
	giveBack()
	must(t, lend("g/large", true))
	giveBack()
	if n := len(c.Tier.loans.open); n != 0 {
		t.Errorf("%d blocks are still counted", n)
	}
	if d := c.Tier.Stats().Detail.(*Detail); d.Later != 1 {
		t.Errorf("%d answers counted, want 1", d.Later)
	}
}
