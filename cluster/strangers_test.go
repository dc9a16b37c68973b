package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cluster/wire"
)

// TestGarbage shows that garbage on the control port changes nothing and is counted.
func TestGarbage(t *testing.T) {
	a := start(t, "a", func(o *Options) { o.CallTimeout, o.tuning.stranger = 200*time.Millisecond, 300*time.Millisecond })
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for _, c := range []struct{ name, data string }{
		{"nothing", ""},
		{"http/1", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"bytes", string(bytes.Repeat([]byte{0xff, 0x00, 0x13}, 1000))},
		{"oversized frame", preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\xff\xff\xff\x00\x00\x00\x00\x00\x01" + string(make([]byte, 100_000))},
		{"settings only", preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := a.Stats().Strangers
			conn, err := net.Dial("tcp", a.self.Control)
			must(t, err)
			conn.SetDeadline(time.Now().Add(patience))
			io.WriteString(conn, c.data) // it may be closed before all is written
			// Also who speaks the protocol, but makes no call, is cut off.
			io.Copy(io.Discard, conn)
			conn.Close()
			eventually(t, "a stranger more", func() bool { return a.Stats().Strangers == before+1 })
			eventually(t, "no connection", func() bool { return a.Stats().Conns == 0 })
		})
	}
	b := start(t, "b", nil, a)
	together(t, a, b)
}

// TestSilentFlood shows that connections that say nothing take a part of the places of the control channel, however many
// there are, and keep no peer out: nodes that join meanwhile are known, and read.
func TestSilentFlood(t *testing.T) {
	const places = 64
	a := start(t, "a", func(o *Options) { o.MaxConns, o.tuning.stranger = places, time.Hour })
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			c.Close()
		}
	}()
	flood := func() {
		for range 10 * places {
			c, err := net.Dial("tcp", a.self.Control)
			must(t, err)
			silent = append(silent, c)
		}
	}
	flood()
	eventually(t, "most of them are cut", func() bool { return a.Stats().Strangers >= 9*places })
	if n := a.Stats().Conns; n > places/8 {
		t.Errorf("%d of %d places are taken by strangers", n, places)
	}
	b := start(t, "b", nil, a)
	flood()
	together(t, a, b)
	a.put("g/x", 1, pattern(1, 100))
	if _, _, err := fetchOne(t, t.Context(), b.located(t, "g/x", 1)[0].Peer, BlockRef{Path: "g/x", Seq: 1}); err != nil {
		t.Error(err)
	}
}

// TestFakeNames shows that names in the gossip that nobody answers for cost a node next to nothing: a goroutine
// each, between two tries.
func TestFakeNames(t *testing.T) {
	a := start(t, "a", func(o *Options) { o.tuning.retryMin, o.tuning.retryMax = time.Hour, time.Hour })
	closing, encoded := pretender(t, a)
	go func() { // ends with closing
		for conn, err := closing.Accept(); err == nil; conn, err = closing.Accept() {
			conn.Close()
		}
	}()
	const names = 100
	before := ours()
	for i := range names {
		a.seen(gossip.Node{Name: fmt.Sprintf("fake-%d", i), Addr: closing.Addr().String(), Meta: encoded})
	}
	eventually(t, "all were tried", func() bool {
		n := 0
		for _, m := range a.Members() {
			if m.Failures > 0 {
				n++
			}
		}
		return n == names
	})
	eventually(t, "a goroutine a name", func() bool { return ours() <= before+names+names/10 }) // the node has others
}

// pretender listens in the place of a node that is like a but for its address, and returns what that would tell of itself.
func pretender(t *testing.T, a *testNode) (net.Listener, []byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	fake := a.self
	fake.Control, fake.Bulk = l.Addr().String(), l.Addr().String()
	encoded, err := fake.Encode()
	must(t, err)
	return l, encoded
}

// TestSilentName shows that nobody asks a peer that has never answered, not while it is tried either.
func TestSilentName(t *testing.T) {
	a := start(t, "a", nil)
	silent, encoded := pretender(t, a)
	a.seen(gossip.Node{Name: "fake", Addr: silent.Addr().String(), Meta: encoded})
	conn, err := silent.Accept() // it is being tried
	must(t, err)
	defer conn.Close()
	if peers := a.Peers(); len(peers) != 0 {
		t.Errorf("%s is a peer", peers[0].Name())
	}
	if m, ok := a.member("fake"); !ok || m.State != stateAlive || m.Feed != feedWaiting {
		t.Errorf("member %+v", m)
	}
}

// TestStrangeCalls shows what calls get that no peer makes: unknown methods, no name,
// too much, none of it making a lasting difference; and that health and reflection are there.
func TestStrangeCalls(t *testing.T) {
	a := start(t, "a", nil)
	conn, err := grpc.NewClient("passthrough:///"+a.self.Control, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(1<<30)))
	must(t, err)
	defer conn.Close()
	ctx, cancel := withPatience(t.Context())
	defer cancel()
	named := control.Introduce(ctx, "x")
	client := wire.NewControlClient(conn)
	stat := func(ctx context.Context, paths ...[]byte) func() error {
		return func() error { _, err := client.Stat(ctx, &wire.StatRequest{Paths: paths}); return err }
	}
	lease := func(blocks ...*wire.BlockRef) func() error {
		return func() error { _, err := client.Lease(named, &wire.LeaseRequest{Blocks: blocks}); return err }
	}
	store := func(offers ...*wire.BlockInfo) func() error {
		return func() error { _, err := client.Store(named, &wire.StoreRequest{Offers: offers}); return err }
	}
	invoke := func(method string) func() error {
		return func() error { return conn.Invoke(named, method, &emptypb.Empty{}, &emptypb.Empty{}) }
	}
	for _, tc := range []struct {
		name string
		call func() error
		want codes.Code
	}{
		{"unknown method", invoke("/kvfs.control.v1.Control/Format"), codes.Unimplemented},
		{"unknown service", invoke("/x.Y/Z"), codes.Unimplemented},
		{"no name", stat(t.Context()), codes.Unauthenticated},
		{"empty name", stat(control.Introduce(t.Context(), "")), codes.Unauthenticated},
		{"too large", stat(named, make([]byte, control.MaxMessage+1)), codes.ResourceExhausted},
		{"too many paths", stat(named, make([][]byte, control.MaxStat+1)...), codes.InvalidArgument},
		{"too many leases", lease(make([]*wire.BlockRef, control.MaxOffers+1)...), codes.InvalidArgument},
		{"lease of nothing", lease(&wire.BlockRef{}), codes.InvalidArgument},
		{"store of a stranger", store(), codes.Unavailable},
		{"store of no path", store(&wire.BlockInfo{}), codes.InvalidArgument},
		{"store of no size", store(&wire.BlockInfo{Path: []byte("g/x"), Size: -1}), codes.InvalidArgument},
		{"store of too much", store(make([]*wire.BlockInfo, control.MaxOffers+1)...), codes.InvalidArgument},
		{"health", func() error {
			_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
			return err
		}, codes.OK},
		{"reflection", func() error {
			s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			if err != nil {
				return err
			}
			if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		}, codes.OK},
	} {
		if err := tc.call(); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	// Calls whose handler waits for the peer must have an end.
	endless := control.Introduce(t.Context(), "x")
	long, cancel := context.WithTimeout(endless, time.Hour)
	defer cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		want codes.Code
	}{
		"no end": {endless, codes.InvalidArgument}, "an hour": {long, codes.InvalidArgument}, "a minute": {named, codes.OK},
	} {
		remove, err := client.Remove(tc.ctx)
		if err == nil {
			_ = remove.Send(&wire.Graves{}) // Recv has the error
			_, err = remove.Recv()
		}
		if status.Code(err) != tc.want {
			t.Errorf("Remove with %s: %v, want %v", name, err, tc.want)
		}
		list, err := client.List(tc.ctx, &wire.ListRequest{Dir: []byte("g")})
		if err == nil {
			_, err = list.Recv()
		}
		if (status.Code(err) == codes.InvalidArgument) != (tc.want != codes.OK) {
			t.Errorf("List with %s: %v", name, err)
		}
	}
	// Release of what somebody else has leased, or nobody, does nothing.
	if _, err := client.Release(named, &wire.ReleaseRequest{Leases: []uint64{0, 1, 2}}); err != nil {
		t.Error(err)
	}
	eventually(t, "all is counted", func() bool {
		s := a.Stats()
		return s.Unknown == 2 && s.Denied == 3 && s.Malformed == 11 && s.Strangers == 0
	})
}

// certs makes a CA with certificates of nodes, and loads one.
func certs(t *testing.T, dir, name string) *pki.Loader {
	t.Helper()
	must(t, pki.Issue(dir, pki.NodeOptions{Name: name, Addrs: []net.IP{net.IPv4(127, 0, 0, 1)}, Valid: time.Hour}))
	l, err := pki.Load(pki.Files{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem"),
	}, nil)
	must(t, err)
	return l
}

// TestTLS shows that with TLS only nodes of the cluster's CA can make calls, each in its
// own name.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	must(t, pki.CreateCA(dir, time.Hour))
	a := start(t, "a", func(o *Options) { o.TLS = certs(t, dir, "a") })
	b := start(t, "b", func(o *Options) { o.TLS = certs(t, dir, "b") }, a)
	together(t, a, b)
	a.put("g/x", 1, pattern(1, 100))
	if _, _, err := fetchOne(t, t.Context(), b.located(t, "g/x", 1)[0].Peer, BlockRef{Path: "g/x", Seq: 1}); err != nil {
		t.Error(err)
	}
	if s := a.Stats().Strangers; s != 0 {
		t.Errorf("%d strangers among friends", s)
	}
	own := certs(t, dir, "c")
	for _, tc := range []struct {
		name  string
		creds credentials.TransportCredentials
		as    string
		want  codes.Code
	}{
		{"plain", insecure.NewCredentials(), "b", codes.Unavailable},
		{"no certificate", credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}), "b", codes.Unavailable},
		{"other name", credentials.NewTLS(own.Client("a")), "b", codes.PermissionDenied},
		{"own name", credentials.NewTLS(own.Client("a")), "c", codes.OK},
	} {
		before := a.Stats()
		conn, err := grpc.NewClient("passthrough:///"+a.self.Control, grpc.WithTransportCredentials(tc.creds))
		must(t, err)
		ctx, cancel := withPatience(t.Context())
		_, err = wire.NewControlClient(conn).Stat(control.Introduce(ctx, tc.as), &wire.StatRequest{})
		cancel()
		if status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		conn.Close()
		if tc.want != codes.OK {
			eventually(t, tc.name+" is counted", func() bool {
				s := a.Stats()
				return s.Strangers > before.Strangers || s.Denied > before.Denied
			})
		}
	}
	// A node that is not who gossip says is not talked to.
	d := start(t, "d", func(o *Options) { o.TLS = own }, a)
	eventually(t, "d is not followed", func() bool { m, _ := a.member("d"); return m.Failures > 0 && m.Feed == feedWaiting })
	d.Node.Close()
}
