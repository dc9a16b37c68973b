package inproc_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

func TestConformance(t *testing.T) {
	rdmatest.Run(t, func(testing.TB) *rdmatest.Harness {
		n := inproc.NewNetwork()
		var nodes atomic.Int64
		return &rdmatest.Harness{
			Open: func(tb testing.TB, s rdma.Source) rdma.Transport {
				tr, err := n.Transport(fmt.Sprint("node", nodes.Add(1)), s)
				if err != nil {
					tb.Fatal(err)
				}
				return tr
			},
			Cut: func(a, b rdma.Transport) (heal func()) {
				n.Cut(a.Addr(), b.Addr())
				return func() { n.Heal(a.Addr(), b.Addr()) }
			},
			Stall: func(a, b rdma.Transport) (resume func()) { return n.Stall(a.Addr(), b.Addr()) },
		}
	})
}
