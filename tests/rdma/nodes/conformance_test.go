package nodes

import (
	"testing"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

// TestConformance runs the suite of all transports.
func TestConformance(t *testing.T) {
	openFabric(t).Close() // or all of it is skipped
	rdmatest.Run(t, func(testing.TB) *rdmatest.Harness {
		return &rdmatest.Harness{
			Open: func(tb testing.TB, _ rdma.Source) rdma.Transport { return openFabric(tb) },
		}
	})
}

// TestCaps shows that the transport is what was asked for.
func TestCaps(t *testing.T) {
	caps := openFabric(t).Caps()
	t.Logf("%+v", caps)
	name, devices := provider("lo")
	if !caps.OneSided || caps.Get {
		t.Errorf("one-sided %v, get %v", caps.OneSided, caps.Get)
	}
	if len(caps.Rails) != len(devices) || caps.Rails[0] != devices[0] {
		t.Errorf("rails %q of provider %s, want %q", caps.Rails, name, devices)
	}
}
