package publish

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestCrowd shows that connections from one address leave room for those of others, that refused
// ones are counted and sometimes logged, and that a client that subscribes to nothing is cut.
func TestCrowd(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	p := open(t, Options{Log: newTestLog(10), Logger: zap.New(core)})
	for range maxAddrConns {
		newWireSub(t, dial(t, p.Stats().Endpoint))
	}
	const more = 20
	for range more {
		c := dial(t, p.Stats().Endpoint)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("one more than the share of its address is not refused")
		}
	}
	if n := p.Stats().Refused; n != more {
		t.Errorf("%d refused, want %d", n, more)
	}
	if n := logs.FilterMessageSnippet("refused").Len(); n == 0 || n == more {
		t.Errorf("%d lines in the log of %d refusals", n, more)
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	from := func() net.Conn {
		c, err := other.DialContext(t.Context(), "tcp", strings.TrimPrefix(p.Stats().Endpoint, "tcp://"))
		check(t, err)
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	newWireSub(t, from())
	eventually(t, "all are served", func() bool { return p.Stats().Subscribers == maxAddrConns+1 })

	p.pub.idle.Store(int64(10 * time.Millisecond))
	idle := from()
	if _, err := idle.Write(hello("SUB")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(idle); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("who subscribes to nothing is not cut off")
	}
	newWireSub(t, from()) // a connection that subscribes stays
	eventually(t, "all but the idle", func() bool { return p.Stats().Subscribers == maxAddrConns+2 })
}
