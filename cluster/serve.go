package cluster

import (
	"context"
	"io"
	"net"
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
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/wire"
)

// Limits of the control channel.
const (
	maxMessage    = 320 << 10        // bytes of a message that comes with a call; graves are the largest
	maxReply      = 4 << 20          // bytes of one message of an answer; this node sends far less
	maxHeaderList = 16 << 10         // bytes of the header of a call
	maxStreams    = 128              // calls at a time on one connection
	maxCallTime   = time.Minute      // of a call that this node makes, other than Subscribe
	maxDeadline   = 2 * time.Minute  // the longest deadline of a call that is accepted
	pingAfter     = 10 * time.Second // of silence on a connection
	pingTimeout   = 5 * time.Second  // without an answer to a ping, the connection is dead
	pingAtMost    = 5 * time.Second  // shortest time between two pings of a peer
	idleAfter     = time.Minute      // without a call the connection is closed; a peer follows the feed
	readBuffer    = 8 << 10          // bytes; each peer takes two buffers
)

// nodeKey is the metadata key of the caller's name.
const nodeKey = "kvfs-node-bin"

// quiet keeps gRPC from writing errors to standard error; its calls return them anyway.
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
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxReply),
		grpc.MaxHeaderListSize(maxHeaderList), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionIdle: idleAfter}),
		grpc.ChainStreamInterceptor(n.admitStream),
		grpc.UnknownServiceHandler(n.unknownMethod),
		grpc.StatsHandler(callEnds{n}),
		grpc.ReadBufferSize(readBuffer), grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true),
	)
	s.RegisterService(asStreams(wire.Control_ServiceDesc), &service{n: n})
	h := health.NewServer()
	h.SetServingStatus(wire.Control_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	s.RegisterService(asStreams(healthpb.Health_ServiceDesc), h)
	reflection.Register(s)
	return s
}

// dial makes a connection to the control channel of a peer. It does not wait for the network.
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
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: n.o.CallTimeout,
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(n.introduce(ctx), maxCallTime) // the peer refuses longer deadlines
			defer cancel()
			return next(ctx, method, req, reply, cc, opts...)
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

// unknownMethod answers calls of unknown methods.
func (n *Node) unknownMethod(_ any, s grpc.ServerStream) error {
	n.counters.unknown.Add(1)
	method, _ := grpc.MethodFromServerStream(s)
	return status.Errorf(codes.Unimplemented, "no method %.100q", method)
}

// callEnds counts calls whose message was too large or made no sense. Many of those never
// reach a handler. Handlers use InvalidArgument for that, and no other of these codes.
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
