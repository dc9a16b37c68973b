package cluster

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/wire"
)

// client returns a client of n's control channel that sends what it likes.
func (tn *testNode) client(t *testing.T) wire.ControlClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+tn.self.control, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return wire.NewControlClient(conn)
}

// TestCallerBeforeMessage shows that a call whose caller is not known is refused before its
// message is looked at: one that is too large is refused for its caller, not for its size.
func TestCallerBeforeMessage(t *testing.T) {
	a := start(t, "a", nil)
	ctx := t.Context()
	_, err := a.client(t).Stat(ctx, &wire.StatRequest{Paths: make([][]byte, 3<<20)})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a Stat of 6 MiB by nobody: %v, want %v", err, codes.Unauthenticated)
	}
	eventually(t, "it is counted as denied", func() bool { return a.Stats().Denied == 1 && a.Stats().Malformed == 0 })
}

// TestStreamsOfAll shows that there is a bound of the calls over all connections, that those
// beyond it are refused at once, and that what peers do goes on meanwhile.
func TestStreamsOfAll(t *testing.T) {
	nodes := cluster(t, "a", "b")
	a, b := nodes[0], nodes[1]
	ctx := (&Node{}).introduceAs(t.Context(), "x")
	var streams []wire.Control_RemoveClient
	const conns, each = 10, 120 // below the bound of one connection
	for range conns {
		c := a.client(t)
		for range each {
			ctx, cancel := withPatience(ctx)
			defer cancel()
			s, err := c.Remove(ctx)
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
	}
	eventually(t, "some are refused", func() bool { return a.Stats().TooMany >= conns*each-maxCalls })
	a.put("g/x", 1, pattern(1, 100))
	b.located(t, "g/x", 1)
	refused := 0
	for _, s := range streams {
		s.CloseSend()
	}
	for _, s := range streams {
		for {
			_, err := s.Recv()
			if err == nil {
				continue
			}
			if status.Code(err) == codes.Aborted {
				refused++
			}
			break
		}
	}
	if refused < conns*each-maxCalls {
		t.Errorf("%d of %d calls refused, want all beyond %d", refused, len(streams), maxCalls)
	}
	eventually(t, "all places are free", func() bool { return a.calls.count() == 0 })
}

// TestMessagesBounded shows that a message with more elements than a call has is refused
// before it is decoded, and that all that are decoded at a time have one bound.
func TestMessagesBounded(t *testing.T) {
	a := start(t, "a", nil)
	ctx, cancel := withPatience((&Node{}).introduceAs(t.Context(), "x"))
	defer cancel()
	c := a.client(t)
	dirs := &wire.StoreRequest{Offers: []*wire.BlockInfo{{Path: []byte("g/x"), Dirs: make([]*wire.DirInfo, 100_000)}}}
	if _, err := c.Store(ctx, dirs); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a block below 100,000 directories: %v", err)
	}
	if !a.calls.charge(maxDecoded) {
		t.Fatal("no room though nothing is decoded")
	}
	if _, err := c.Stat(ctx, &wire.StatRequest{Paths: [][]byte{[]byte("g/x")}}); status.Code(err) != codes.Aborted {
		t.Errorf("a message while there is no room to decode: %v, want %v", err, codes.Aborted)
	}
	a.calls.charge(-maxDecoded)
	if _, err := c.Stat(ctx, &wire.StatRequest{Paths: [][]byte{[]byte("g/x")}}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	eventually(t, "nothing is charged", func() bool { return a.calls.charged() == 0 })
	if _, err := c.Stat((&Node{}).introduceAs(t.Context(), "x"), &wire.StatRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a call without a deadline: %v", err)
	}
}

// count returns how many calls are served, other than those that follow the feed.
func (t *callTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.calls
}

func (t *callTable) charged() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.bytes
}
