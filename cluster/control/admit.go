package control

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cluster/wire"
)

// Limits of calls over all connections.
const (
	maxCalls     = 512      // at a time, not counting calls that follow the feed
	maxOddCalls  = 32       // of maxCalls: calls that no peer makes, such as health, reflection and unknown methods
	maxFollowers = maxConns // calls that follow the feed
	maxDecoded   = 64 << 20 // bytes of messages that are being decoded or handled
)

// callTable limits the calls that are served and the memory of their messages.
type callTable struct {
	mu struct {
		sync.Mutex
		calls, odd, followers int
		bytes                 int64
	}
}

// enter takes a place for a call. It returns the function that gives the place back, or nil if
// all places are taken.
func (t *callTable) enter(method string) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kinds, bound := []*int{&t.mu.calls}, []int{maxCalls}
	switch {
	case method == wire.Control_Subscribe_FullMethodName:
		kinds, bound = []*int{&t.mu.followers}, []int{maxFollowers}
	case !ofControl(method):
		kinds, bound = append(kinds, &t.mu.odd), append(bound, maxOddCalls)
	}
	for i, k := range kinds {
		if *k >= bound[i] {
			return nil
		}
	}
	for _, k := range kinds {
		*k++
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, k := range kinds {
			*k--
		}
	}
}

// charge takes n bytes of the room for messages. A negative n gives bytes back. If there is
// not enough room, charge takes nothing and returns false.
func (t *callTable) charge(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > maxDecoded-t.mu.bytes {
		return false
	}
	t.mu.bytes += n
	return true
}

// ofControl reports whether a method belongs to the service Control.
func ofControl(method string) bool {
	return strings.HasPrefix(method, "/"+wire.Control_ServiceDesc.ServiceName+"/")
}

// asStreams returns the service with every call turned into a stream. Calls of one message
// look the same on the network as before. The handler of a stream starts before its first
// message is decoded; the handler of another call starts after it.
func asStreams(d grpc.ServiceDesc) *grpc.ServiceDesc {
	for _, m := range d.Methods {
		d.Streams = append(d.Streams[:len(d.Streams):len(d.Streams)], grpc.StreamDesc{
			StreamName: m.MethodName,
			Handler: func(srv any, s grpc.ServerStream) error {
				reply, err := m.Handler(srv, s.Context(), s.RecvMsg, nil)
				if err != nil {
					return err
				}
				return s.SendMsg(reply)
			},
		})
	}
	d.Methods = nil
	return &d
}

// admitStream checks the caller and takes a place for the call. It does both before the
// message is decoded.
func (v *Server) admitStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := v.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	leave := v.calls.enter(info.FullMethod)
	if leave == nil {
		v.o.Counters.TooMany.Add(1)
		return status.Error(codes.Aborted, "too many calls")
	}
	defer leave()
	s := &admittedStream{ServerStream: ss, ctx: ctx, v: v}
	defer s.discharge()
	return next(srv, s)
}

// admittedStream is a stream with the caller's name in its context and a limit on its
// messages.
type admittedStream struct {
	grpc.ServerStream
	ctx     context.Context
	v       *Server
	charged int64 // for the latest message, in bytes
}

// Context implements grpc.ServerStream.
func (s *admittedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *admittedStream) RecvMsg(m any) error {
	s.discharge()
	in := &incoming{message: m, calls: &s.v.calls}
	err := s.ServerStream.RecvMsg(in)
	s.charged = in.charged
	if in.refused != nil {
		if status.Code(in.refused) == codes.Aborted {
			s.v.o.Counters.TooMany.Add(1)
		}
		return in.refused
	}
	return err
}

func (s *admittedStream) discharge() {
	s.v.calls.charge(-s.charged)
	s.charged = 0
}

type callerKey struct{}

// Caller returns the name of the node that makes a call, or "". The name is verified.
func Caller(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

// admit checks the caller. Any certificate of the CA allows health and reflection. All other
// calls need the name of the calling node. That name must match the certificate, and the node
// must not be refused as a peer.
func (v *Server) admit(ctx context.Context, method string) (context.Context, error) {
	conn := ConnOf(ctx)
	if !ofControl(method) {
		conn.known()
		return ctx, nil
	}
	names := metadata.ValueFromIncomingContext(ctx, nodeKey)
	if len(names) != 1 || names[0] == "" || len(names[0]) > MaxName {
		v.o.Counters.Denied.Add(1)
		return nil, status.Error(codes.Unauthenticated, "the call does not say which node makes it")
	}
	name := names[0]
	if err := v.checkCertificate(ctx, name); err != nil {
		v.o.Counters.Denied.Add(1)
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	if reason := v.o.Refusal(name); reason != "" {
		v.o.Counters.Denied.Add(1)
		return nil, status.Error(codes.FailedPrecondition, "node "+name+" is refused: "+reason)
	}
	conn.known()
	if err := bounded(ctx, method); err != nil {
		return nil, err
	}
	return context.WithValue(ctx, callerKey{}, name), nil
}

// checkCertificate fails if the certificate belongs to another node than the caller names.
func (v *Server) checkCertificate(ctx context.Context, name string) error {
	if v.o.TLS == nil {
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

// bounded refuses calls without a deadline and calls with a distant one. A silent caller would
// keep its place until then.
func bounded(ctx context.Context, method string) error {
	if method == wire.Control_Subscribe_FullMethodName {
		return nil
	}
	if d, ok := ctx.Deadline(); !ok || time.Until(d) > maxDeadline {
		return status.Errorf(codes.InvalidArgument, "a call without a deadline within %v", maxDeadline)
	}
	return nil
}
