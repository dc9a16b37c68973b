package gossip

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestContested shows when this node complains of another with its name: not while that
// may be its former self, then now and then, and not when the other has gone.
func TestContested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.ErrorLevel)
		m := newMembers("a", nil, nil, zap.New(core))
		own := &memberlist.Node{Name: "a", Addr: net.IPv4(192, 0, 2, 1), Port: 7946}
		other := &memberlist.Node{Name: "a", Addr: net.IPv4(192, 0, 2, 2), Port: 7946}
		meet := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(time.Second) // reason: the fake clock
				m.NotifyConflict(own, other)
			}
		}
		meet(contestGrace)
		if w := m.contestWarning(); w != "" || logs.Len() != 0 {
			t.Fatalf("at once: %q, %d errors", w, logs.Len())
		}
		meet(10 * time.Second)
		if w := m.contestWarning(); !strings.Contains(w, "192.0.2.2:7946") || logs.Len() != 1 {
			t.Fatalf("later: %q, %d errors", w, logs.Len())
		}
		meet(blameEvery)
		if logs.Len() != 2 {
			t.Errorf("%d errors, want one in %v", logs.Len(), blameEvery)
		}
		time.Sleep(contestLife + time.Second) // reason: the fake clock
		if w := m.contestWarning(); w != "" {
			t.Errorf("the other has gone: %q", w)
		}
		meet(contestGrace)
		if w := m.contestWarning(); w != "" {
			t.Errorf("it is back: %q", w)
		}
	})
}
