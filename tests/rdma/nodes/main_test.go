// Package nodes holds the tests of reading a peer's memory with libfabric: the conformance suite over rdma/fabric,
// and real daemons, one of which dies.
//
// They run here over the provider tcp, in network namespaces, and in the virtual machine of tests/rdma over verbs and
// soft-RoCE, which sets these variables:
//
//	KVFS_TEST_FABRIC_PROVIDER   a provider of rdma/fabric; default tcp
//	KVFS_TEST_FABRIC_DEVICES    its devices
//	KVFS_TEST_FABRIC_ADDRESSES  two IP addresses of the device, for two nodes
//
// Every test also shows that bytes that come are the right ones, and that nothing hangs.
package nodes

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	os.Exit(harness.Main(m))
}

// inMachine says whether these are the tests in the virtual machine: there all must run.
func inMachine() bool { return os.Getenv("KVFS_TEST_FABRIC_ADDRESSES") != "" }

// provider returns the provider under test and its devices; device is for provider tcp.
func provider(device string) (name string, devices []string) {
	if name = os.Getenv("KVFS_TEST_FABRIC_PROVIDER"); name == "" {
		return fabric.TCP, []string{device}
	}
	return name, strings.Split(os.Getenv("KVFS_TEST_FABRIC_DEVICES"), ",")
}

// openFabric opens a transport on this machine. Without libfabric the test is skipped.
func openFabric(tb testing.TB) *fabric.Transport {
	tb.Helper()
	o := fabric.Options{StallTimeout: 15 * time.Second} // an emulated processor may well stand still for 5, a busy one, too
	o.Provider, o.Devices = provider("lo")
	t, err := fabric.Open(o)
	if errors.Is(err, fabric.ErrUnavailable) && !inMachine() {
		harness.Skip(tb, "%v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := t.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return t
}
