package lease

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// region counts how often it is closed.
type region struct {
	rdma.Region
	closed *int
}

func (r region) Close() error {
	*r.closed++
	return nil
}

// TestTable shows the bounds of leases and of their memory, and what ends a lease: the peer that has
// it, the end of its connection, time, and the table. Each closes its region once.
func TestTable(t *testing.T) {
	var table Table
	closed := 0
	now := time.Now()
	enter := func(conn any) uint64 {
		t.Helper()
		p := table.Reserve(conn)
		if p == nil || !p.Bytes(PageBytes+1, 100*PageBytes) {
			t.Fatal("no place")
		}
		return p.Enter(region{closed: &closed}, rdma.Loan{Close: func() {}}, now)
	}
	want := func(what string, leases, pages, ended int) {
		t.Helper()
		if n, bytes := table.Held(); n != leases || bytes != int64(pages)*PageBytes || closed != ended {
			t.Errorf("%s: %d leases, %d bytes, %d ended", what, n, bytes, closed)
		}
	}
	id := enter("a")
	table.Release("b", id)
	table.Release("a", id+1)
	want("released by another, and another", 1, 2, 0)
	table.Release("a", id)
	table.Release("a", id)
	want("released twice", 0, 0, 1)

	enter("a")
	enter("b")
	if p := table.Reserve("a"); p.Bytes(97*PageBytes, 100*PageBytes) {
		t.Error("memory beyond the bound")
	} else if !p.Bytes(96*PageBytes, 100*PageBytes) {
		t.Error("no memory within the bound")
	} else {
		p.Cancel()
	}
	want("a place given back", 2, 4, 1)
	table.Abandon("a")
	table.Abandon("c")
	table.abandoned.Wait()
	want("a connection ended", 1, 2, 2)
	if table.Expire(now) != 0 || table.Expire(now.Add(1)) != 1 {
		t.Error("it does not end by time")
	}
	want("time is over", 0, 0, 3)

	for range MaxConn {
		table.Reserve("a").Enter(region{closed: &closed}, rdma.Loan{Close: func() {}}, now)
	}
	if table.Reserve("a") != nil {
		t.Error("a connection has more than its part")
	}
	for i := range Max - MaxConn {
		table.Reserve(i)
	}
	if table.Reserve("z") != nil {
		t.Error("more leases than may be")
	}
	table.Close()
	want("closed", Max-MaxConn, 0, 3+MaxConn)
}
