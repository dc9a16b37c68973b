package control

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
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

	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cluster/wire"
)

// Limits of the control channel.
const (
	maxReply      = 4 << 20          // bytes of one message of an answer; this node sends far less
	maxHeaderList = 16 << 10         // bytes of the header of a call
	maxStreams    = 128              // calls at a time on one connection
	maxDeadline   = 2 * time.Minute  // the longest deadline of a call that is accepted
	pingAfter     = 10 * time.Second // of silence on a connection
	pingTimeout   = 5 * time.Second  // without an answer to a ping, the connection is dead
	pingAtMost    = 5 * time.Second  // shortest time between two pings of a peer
	idleAfter     = time.Minute      // without a call the connection is closed; a peer follows the feed
	readBuffer    = 8 << 10          // bytes; each peer takes two buffers
)

// Options configures a Server and the connections to other nodes.
type Options struct {
	Name        string        // of this node
	TLS         *pki.Loader   // nil: plain TCP
	CallTimeout time.Duration // bounds the time in which a connection is made
	Stranger    time.Duration // after which a connection without a call of a peer is closed
	MaxConns    int           // most connections of a Server; 0: 16384
	Network     Network       // of Dial; nil: TCP

	// Refusal returns why the node of that name is refused as a peer, or "" if it is not.
	Refusal func(name string) string
	// Closed is called when a connection of a Server has been closed. It must not block.
	Closed func(c *Conn)
	// Counters gets what a Server turns away.
	Counters *Counters
}

// Network makes the connections of the channel.
type Network interface {
	Listen(ctx context.Context, addr string) (net.Listener, error)
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// TCP is the Network of real nodes. It never goes through a proxy.
type TCP struct{}

// Listen implements Network.
func (TCP) Listen(ctx context.Context, addr string) (net.Listener, error) {
	var l net.ListenConfig
	return l.Listen(ctx, "tcp", addr)
}

// Dial implements Network.
func (TCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// Counters are totals of what was turned away.
type Counters struct {
	Strangers atomic.Uint64 // connections that ended without a call of a peer
	TooMany   atomic.Uint64 // connections, nodes and calls beyond the limits
	Unknown   atomic.Uint64 // calls of unknown methods
	Malformed atomic.Uint64 // messages and names that were too large or made no sense
	Denied    atomic.Uint64 // calls by callers that are not peers, or not yet
}

// Server serves the control channel.
type Server struct {
	o        Options
	grpc     *grpc.Server
	listener *listener
	calls    callTable
}

// nodeKey is the metadata key of the caller's name.
const nodeKey = "kvfs-node-bin"

// quiet keeps gRPC from writing errors to standard error; its calls return them anyway.
var quiet sync.Once

// NewServer returns a server of l that hands calls to service. It does not serve yet. Close closes
// l.
func NewServer(l net.Listener, service wire.ControlServer, o Options) *Server {
	quiet.Do(func() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) })
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS.Server())
	}
	if o.MaxConns == 0 {
		o.MaxConns = maxConns
	}
	v := &Server{o: o}
	v.listener = newListener(l, v)
	s := grpc.NewServer(
		grpc.Creds(creds),
		grpc.ConnectionTimeout(o.CallTimeout),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(maxReply),
		grpc.MaxHeaderListSize(maxHeaderList), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionIdle: idleAfter}),
		grpc.ChainStreamInterceptor(v.admitStream),
		grpc.UnknownServiceHandler(v.unknownMethod),
		grpc.StatsHandler(callEnds{o.Counters}),
		grpc.ReadBufferSize(readBuffer), grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true),
	)
	s.RegisterService(asStreams(wire.Control_ServiceDesc), service)
	h := health.NewServer()
	h.SetServingStatus(wire.Control_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	s.RegisterService(asStreams(healthpb.Health_ServiceDesc), h)
	reflection.Register(s)
	v.grpc = s
	return v
}

// Serve serves until Close. It fails if the listener does.
func (v *Server) Serve() error {
	if err := v.grpc.Serve(v.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Close ends all calls, waits for their handlers, and closes the listener.
func (v *Server) Close() error {
	v.grpc.Stop()
	return v.listener.Close()
}

// Conns returns how many connections are open.
func (v *Server) Conns() int { return v.listener.open() }

// Dial makes a connection to the control channel of the node name. It does not wait for the
// network.
func Dial(name, addr string, o *Options) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS.Client(name))
	}
	dial := TCP{}.Dial
	if o.Network != nil {
		dial = o.Network.Dial
	}
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(readBuffer), grpc.WithSharedWriteBuffer(true),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithDisableHealthCheck(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: o.CallTimeout,
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(Introduce(ctx, o.Name), MaxCallTime) // the peer refuses longer deadlines
			defer cancel()
			return next(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return next(Introduce(ctx, o.Name), desc, cc, method, opts...)
		}),
	)
}

// Introduce adds the name of the calling node to a call. Connections of Dial do that.
func Introduce(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, nodeKey, name)
}

// unknownMethod answers calls of unknown methods.
func (v *Server) unknownMethod(_ any, s grpc.ServerStream) error {
	v.o.Counters.Unknown.Add(1)
	method, _ := grpc.MethodFromServerStream(s)
	return status.Errorf(codes.Unimplemented, "no method %.100q", method)
}

// callEnds counts calls whose message was too large or made no sense. Many of those never
// reach a handler. Handlers use InvalidArgument for that, and no other of these codes.
type callEnds struct{ c *Counters }

// TagRPC implements stats.Handler.
func (callEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (h callEnds) HandleRPC(_ context.Context, s stats.RPCStats) {
	if end, ok := s.(*stats.End); ok && end.Error != nil {
		switch status.Code(end.Error) {
		case codes.ResourceExhausted, codes.Internal, codes.InvalidArgument:
			h.c.Malformed.Add(1)
		}
	}
}

// TagConn implements stats.Handler.
func (callEnds) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (callEnds) HandleConn(context.Context, stats.ConnStats) {}
