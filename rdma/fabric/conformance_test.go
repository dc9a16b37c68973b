//go:build ofi && cgo

package fabric

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"cache", Options{CacheBytes: 64 << 20, CacheTime: 50 * time.Millisecond}},
		{"poll only", Options{pollOnly: true}},
		{"direct", Options{direct: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.StallTimeout = time.Second
			rdmatest.Run(t, func(testing.TB) *rdmatest.Harness {
				return &rdmatest.Harness{Open: func(tb testing.TB, _ rdma.Source) rdma.Transport { return open(tb, c.o) }}
			})
		})
	}
}

// TestConformanceFaults has relays between the transports, which can be cut and stalled.
func TestConformanceFaults(t *testing.T) {
	rdmatest.Run(t, func(tb testing.TB) *rdmatest.Harness {
		n := &relays{tb: tb, all: map[string]*relay{}}
		return &rdmatest.Harness{
			Open: func(tb testing.TB, _ rdma.Source) rdma.Transport {
				return &relayed{Transport: open(tb, Options{StallTimeout: time.Second}), net: n}
			},
			Cut: n.cut, Stall: n.stall, GivesUp: true,
		}
	})
}

// open opens a transport over the loopback interface; the test is skipped where there is no
// library.
func open(tb testing.TB, o Options) *Transport {
	tb.Helper()
	needLibrary(tb)
	o.Provider = TCP
	if len(o.Devices) == 0 {
		o.Devices, o.Host = []string{"lo"}, "127.0.0.1"
	}
	t, err := Open(o)
	if err != nil {
		tb.Fatal(err)
		panic("unreachable")
	}
	tb.Cleanup(func() {
		if err := t.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return t
}

func needLibrary(tb testing.TB) {
	tb.Helper()
	if _, err := Probe(); err != nil {
		tb.Skip(err)
	}
}
