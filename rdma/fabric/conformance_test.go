//go:build ofi && cgo

package fabric

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

// churn is the longest part of the suite. It closes regions while they are read, so it needs a
// cache that keeps them registered, and buffers.
const churn = "read_churn"

// TestConformance runs the whole suite with a cache and with buffers. Without them it runs all but
// churn. With polling it runs the parts that wait for messages and that give up waiting.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Options
		leave func(check string) bool
	}{
		{"cache", Options{CacheBytes: 64 << 20, CacheTime: 50 * time.Millisecond, KeepUnnamed: true}, func(string) bool { return false }},
		{"direct", Options{direct: true}, func(check string) bool { return check == churn }},
		{"poll only", Options{pollOnly: true}, func(check string) bool {
			return check != "read_sizes" && check != "read_many" && check != "read_holder_dies" && !strings.HasPrefix(check, "read_cancel") &&
				!strings.HasSuffix(check, "_during")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rdmatest.Run(t, func(tb testing.TB) *rdmatest.Harness {
				switch name := check(tb); {
				case name != "caps" && !strings.HasPrefix(name, "re"): // read and region
					tb.Skip("the transport has no Get")
				case c.leave(name):
					tb.Skip("no different from another variant")
				}
				return &rdmatest.Harness{Open: func(tb testing.TB, _ rdma.Source) rdma.Transport { return open(tb, c.o) }}
			})
		})
	}
}

// check returns the name of the part of the suite that tb runs.
func check(tb testing.TB) string { return tb.Name()[strings.LastIndexByte(tb.Name(), '/')+1:] }

// TestConformanceFaults has relays between the transports, which can be cut and stalled. It runs
// the checks that need them.
func TestConformanceFaults(t *testing.T) {
	faults := []string{"read_cut", "read_stalled", "read_stalled_close", "read_stall_given_up"}
	rdmatest.Run(t, func(tb testing.TB) *rdmatest.Harness {
		if !slices.Contains(faults, check(tb)) {
			tb.Skip("needs no faults")
		}
		n := &relays{tb: tb}
		return &rdmatest.Harness{
			Open: func(tb testing.TB, _ rdma.Source) rdma.Transport {
				tr := open(tb, Options{StallTimeout: patience})
				if check(tb) == "read_stall_given_up" { // the others end their reads themselves
					tr.opts.StallTimeout = time.Second
				}
				return &relayed{Transport: tr, net: n}
			},
			Cut: n.Cut, Stall: n.Stall, GivesUp: true,
		}
	})
}

// open opens a transport over the loopback interface. Its peers have all the time they need, unless
// the test sets a limit. The test is skipped without a library.
func open(tb testing.TB, o Options) *Transport {
	tb.Helper()
	needLibrary(tb)
	o.Provider = TCP
	if o.StallTimeout == 0 {
		o.StallTimeout = patience
	}
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
