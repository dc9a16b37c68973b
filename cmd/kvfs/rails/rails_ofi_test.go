//go:build ofi && cgo

package rails

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/rdma/fabric"
)

// TestDoctorOverSockets shows the command with the library that is here, if there is one.
func TestDoctorOverSockets(t *testing.T) {
	withoutSettings(t)
	f, err := ThisMachine().OpenFabric(rdmaConfig(t, `, "rdma": {"provider": "tcp"}`), zap.NewNop())
	must(t, err)
	if errors.Is(f.err, fabric.ErrUnavailable) {
		t.Skip(f.err)
	}
	if f.err != nil || len(f.transport.Caps().Rails) != 1 {
		t.Fatalf("got %+v", f.Status())
	}
	f.transport.Forget(1, 2)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	code, out, errs := runDoctor(&fakeMachine{Machine: ThisMachine()}, "--rdma-provider=tcp")
	if code != exit.OK || !strings.Contains(out, "16.0 MiB in ") || !strings.Contains(out, "RDMA works.") {
		t.Errorf("exit code %d, %s\n%s", code, errs, out)
	}
}
