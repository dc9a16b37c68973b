package control

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/tests/harness"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// testService answers some calls. It is a service without a node.
type testService struct {
	wire.UnimplementedControlServer
	more chan struct{} // each element is a batch for the call that follows the feed
}

func (*testService) Stat(context.Context, *wire.StatRequest) (*wire.StatReply, error) {
	return &wire.StatReply{}, nil
}

// Remove reads until the caller ends.
func (*testService) Remove(s wire.Control_RemoveServer) error {
	for {
		if _, err := s.Recv(); err != nil {
			return nil
		}
	}
}

func (v *testService) Subscribe(_ *wire.SubscribeRequest, s wire.Control_SubscribeServer) error {
	for range v.more {
		if err := s.Send(&wire.Batch{}); err != nil {
			return err
		}
	}
	return nil
}

// testServer is a server with its address.
type testServer struct {
	*Server
	*testService
	addr string
}

// serve opens a server for the length of a test.
func serve(t *testing.T) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &testService{more: make(chan struct{})}
	s := &testServer{testService: v, addr: l.Addr().String(), Server: NewServer(l, v, Options{
		CallTimeout: patience, Stranger: patience,
		Refusal: func(string) string { return "" }, Closed: func(*Conn) {}, Counters: &Counters{},
	})}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve() }() // ends with Close, and is waited for
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client returns a client of s that sends what it likes.
func (s *testServer) client(t *testing.T) wire.ControlClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return wire.NewControlClient(conn)
}

var eventually = harness.Poll

// TestCallerBeforeMessage shows that a call whose caller is not known is refused before its
// message is looked at: one that is too large is refused for its caller, not for its size.
func TestCallerBeforeMessage(t *testing.T) {
	a := serve(t)
	ctx := t.Context()
	_, err := a.client(t).Stat(ctx, &wire.StatRequest{Paths: make([][]byte, 3<<20)})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a Stat of 6 MiB by nobody: %v, want %v", err, codes.Unauthenticated)
	}
	eventually(t, "it is counted as denied", func() bool { return a.o.Counters.Denied.Load() == 1 && a.o.Counters.Malformed.Load() == 0 })
}

// TestStreamsOfAll shows that there is a bound of the calls over all connections, that those
// beyond it are refused at once, and that calls which follow the feed go on and begin meanwhile.
func TestStreamsOfAll(t *testing.T) {
	a := serve(t)
	ctx := Introduce(t.Context(), "x")
	feed, err := a.client(t).Subscribe(ctx, &wire.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var streams []wire.Control_RemoveClient
	const conns, each = 10, 120 // below the bound of one connection
	for range conns {
		c := a.client(t)
		for range each {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			s, err := c.Remove(ctx)
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
	}
	eventually(t, "some are refused", func() bool { return a.o.Counters.TooMany.Load() >= conns*each-maxCalls })
	a.more <- struct{}{}
	if _, err := feed.Recv(); err != nil {
		t.Errorf("a feed beside as many calls as may be: %v", err)
	}
	close(a.more)
	if _, err := feed.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the feed ended with %v", err)
	}
	if feed, err = a.client(t).Subscribe(ctx, &wire.SubscribeRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := feed.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a new feed beside as many calls as may be: %v", err)
	}
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
	a := serve(t)
	ctx, cancel := context.WithTimeout(Introduce(t.Context(), "x"), patience)
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
	if _, err := c.Stat(Introduce(t.Context(), "x"), &wire.StatRequest{}); status.Code(err) != codes.InvalidArgument {
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
