package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cluster/wire"
)

// Limits of the control channel.
const (
	maxMessage    = 4 << 20          // bytes of a message; what this node sends is far below
	maxHeaderList = 16 << 10         // bytes of the header of a call
	maxStreams    = 128              // calls at a time on one connection
	maxCallTime   = time.Minute      // of a call that a peer makes, other than Subscribe
	maxDeadline   = 2 * time.Minute  // that one of them may come with whose handler waits for the peer
	pingAfter     = 10 * time.Second // of silence on a connection
	pingTimeout   = 5 * time.Second  // after which it is dead
	pingAtMost    = 5 * time.Second  // between two pings of a peer
	idleAfter     = time.Minute      // without a call a connection is closed; a peer follows the feed
	readBuffer    = 8 << 10          // bytes; a thousand peers have two thousand
)

// nodeKey is the metadata that has the caller's name.
const nodeKey = "kvfs-node-bin"

// quiet keeps gRPC from writing to standard error what calls return as errors anyway.
var quiet sync.Once

// newServer returns the server of the control channel.
func (n *Node) newServer() *grpc.Server {
	quiet.Do(func() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) })
	creds := insecure.NewCredentials()
	if n.o.TLS != nil {
		creds = credentials.NewTLS(n.o.TLS.Server())
	}
	s := grpc.NewServer(
		grpc.Creds(creds),
		grpc.ConnectionTimeout(n.o.CallTimeout),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaderList), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionIdle: idleAfter}),
		grpc.ChainUnaryInterceptor(n.admitUnary), grpc.ChainStreamInterceptor(n.admitStream),
		grpc.InTapHandle(n.bounded),
		grpc.UnknownServiceHandler(n.unknownMethod),
		grpc.StatsHandler(callEnds{n}),
		grpc.ReadBufferSize(readBuffer), grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true),
	)
	wire.RegisterControlServer(s, &service{n: n})
	h := health.NewServer()
	h.SetServingStatus(wire.Control_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, h)
	reflection.Register(s)
	return s
}

// dial makes a connection to the control channel of a peer, without waiting for it.
func (n *Node) dial(name, addr string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if n.o.TLS != nil {
		creds = credentials.NewTLS(n.o.TLS.Client(name))
	}
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dialTCP), // never through a proxy
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(readBuffer), grpc.WithSharedWriteBuffer(true),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithDisableHealthCheck(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: n.o.CallTimeout,
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return next(n.introduce(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return next(n.introduce(ctx), desc, cc, method, opts...)
		}),
	)
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// introduce adds this node's name to a call.
func (n *Node) introduce(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, nodeKey, n.o.Gossip.Name)
}

type callerKey struct{}

// callerName returns the name of the node that makes a call, as admit has verified it.
func callerName(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

// admit looks at who makes a call. Health and reflection are for everybody whose
// certificate is of the CA; the rest is for nodes that say their name, which must
// be the certificate's, and that are not refused as peers.
func (n *Node) admit(ctx context.Context, method string) (context.Context, error) {
	conn := connOf(ctx)
	if !strings.HasPrefix(method, "/"+wire.Control_ServiceDesc.ServiceName+"/") {
		if conn != nil {
			conn.friend.Store(true)
		}
		return ctx, nil
	}
	names := metadata.ValueFromIncomingContext(ctx, nodeKey)
	if len(names) != 1 || names[0] == "" || len(names[0]) > maxNodeName {
		n.counters.denied.Add(1)
		return nil, status.Error(codes.Unauthenticated, "the call does not say which node makes it")
	}
	name := names[0]
	if err := n.checkCertificate(ctx, name); err != nil {
		n.counters.denied.Add(1)
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	n.mu.Lock()
	p := n.mu.peers[name]
	n.mu.Unlock()
	if p != nil {
		if reason := p.refusal(); reason != "" {
			n.counters.denied.Add(1)
			return nil, status.Error(codes.FailedPrecondition, "node "+name+" is refused: "+reason)
		}
	}
	if conn != nil {
		conn.friend.Store(true)
	}
	return context.WithValue(ctx, callerKey{}, name), nil
}

// checkCertificate fails if the caller's certificate is another node's.
func (n *Node) checkCertificate(ctx context.Context, name string) error {
	if n.o.TLS == nil {
		return nil
	}
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return fmt.Errorf("no connection")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return fmt.Errorf("no certificate")
	}
	if err := info.State.PeerCertificates[0].VerifyHostname(pki.DNSName(name)); err != nil {
		return fmt.Errorf("the certificate is not that of node %s: %w", name, err)
	}
	return nil
}

// refusal returns why the peer is refused; "" if it is not.
func (p *Peer) refusal() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.state != stateRefused {
		return ""
	}
	return p.mu.reason
}

// bounded refuses calls of peers that have no end, or one that is far away, where the
// handler receives and sends more than once: with the deadline of a call that ends, too.
func (n *Node) bounded(ctx context.Context, info *tap.Info) (context.Context, error) {
	switch info.FullMethodName {
	case wire.Control_List_FullMethodName, wire.Control_Remove_FullMethodName:
	default:
		return ctx, nil
	}
	if d, ok := ctx.Deadline(); !ok || time.Until(d) > maxDeadline {
		n.counters.malformed.Add(1)
		return nil, status.Errorf(codes.InvalidArgument, "a call without a deadline within %v", maxDeadline)
	}
	return ctx, nil
}

func (n *Node) admitUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := n.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxCallTime)
	defer cancel()
	return next(ctx, req)
}

func (n *Node) admitStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := n.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, admittedStream{ss, ctx})
}

// admittedStream is a stream whose context knows the caller.
type admittedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s admittedStream) Context() context.Context { return s.ctx }

// unknownMethod answers calls of what there is not.
func (n *Node) unknownMethod(_ any, s grpc.ServerStream) error {
	n.counters.unknown.Add(1)
	method, _ := grpc.MethodFromServerStream(s)
	return status.Errorf(codes.Unimplemented, "no method %.100q", method)
}

// callEnds counts calls whose message was too large or made no sense. Many of those never
// reach a handler; ours answer InvalidArgument to the rest, and none of the other codes.
type callEnds struct{ n *Node }

// TagRPC implements stats.Handler.
func (callEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (h callEnds) HandleRPC(_ context.Context, s stats.RPCStats) {
	if end, ok := s.(*stats.End); ok && end.Error != nil {
		switch status.Code(end.Error) {
		case codes.ResourceExhausted, codes.Internal, codes.InvalidArgument:
			h.n.counters.malformed.Add(1)
		}
	}
}

// TagConn implements stats.Handler.
func (callEnds) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (callEnds) HandleConn(context.Context, stats.ConnStats) {}
