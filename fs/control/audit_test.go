package control

import (
	"context"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestAuditNamesNoProcess0 shows that an audit line has no pid 0, which is no process, but says that the process is not
// visible.
func TestAuditNamesNoProcess0(t *testing.T) {
	for pid, want := range map[uint32]map[string]any{
		7: {"uid": uint32(1), "gid": uint32(2), "pid": uint32(7), "command": "rm"},
		0: {"uid": uint32(1), "gid": uint32(2), "process": "not visible: in another pid name space"},
	} {
		core, lines := observer.New(zap.InfoLevel)
		by := Opener{UID: 1, GID: 2, Process: func() (uint32, string) { return pid, "rm" }}
		Audit(context.WithValue(t.Context(), openerKey{}, by), zap.New(core), "drain")
		got := lines.All()[0].ContextMap()
		if len(got) != len(want) {
			t.Errorf("pid %d: %v, want %v", pid, got, want)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("pid %d: %v, want %v", pid, got, want)
			}
		}
	}
}
