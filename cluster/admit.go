package cluster

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
	maxCalls     = 512      // at a time, other than those that follow the feed
	maxOddCalls  = 32       // of them, those that no peer makes: health, reflection, unknown methods
	maxFollowers = maxConns // calls that follow the feed
	maxDecoded   = 64 << 20 // bytes of messages that are being decoded or handled
)

// callTable counts the calls that are served, and the memory of their messages.
type callTable struct {
	mu struct {
		sync.Mutex
		calls, odd, followers int
		bytes                 int64
	}
}

// enter takes a place for a call of a method. It returns what gives it back; nil if there is none.
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

// charge takes n bytes of the room for messages, or gives them back if n is negative. It
// returns false, and takes none, if there is not enough.
func (t *callTable) charge(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > maxDecoded-t.mu.bytes {
		return false
	}
	t.mu.bytes += n
	return true
}

// ofControl reports whether a method is of the service Control.
func ofControl(method string) bool {
	return strings.HasPrefix(method, "/"+wire.Control_ServiceDesc.ServiceName+"/")
}

// asStreams returns a service whose calls are all streams, also those of one message, which look
// the same on the network: a stream's handler begins before anything of it is decoded, and
// that of another call after.
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

// admitStream looks at who makes a call, and whether there is a place for it, before its
// message is decoded.
func (n *Node) admitStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := n.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	leave := n.calls.enter(info.FullMethod)
	if leave == nil {
		n.counters.tooMany.Add(1)
		return status.Error(codes.Aborted, "too many calls")
	}
	defer leave()
	s := &admittedStream{ServerStream: ss, ctx: ctx, n: n}
	defer s.discharge()
	return next(srv, s)
}

// admittedStream is a stream whose context knows the caller, and whose messages are bounded.
type admittedStream struct {
	grpc.ServerStream
	ctx     context.Context
	n       *Node
	charged int64 // for the latest message
}

// Context implements grpc.ServerStream.
func (s *admittedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *admittedStream) RecvMsg(m any) error {
	s.discharge()
	in := &incoming{message: m, calls: &s.n.calls}
	err := s.ServerStream.RecvMsg(in)
	s.charged = in.charged
	if in.refused != nil {
		if status.Code(in.refused) == codes.Aborted {
			s.n.counters.tooMany.Add(1)
		}
		return in.refused
	}
	return err
}

func (s *admittedStream) discharge() {
	s.n.calls.charge(-s.charged)
	s.charged = 0
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
	if !ofControl(method) {
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
	if err := bounded(ctx, method); err != nil {
		return nil, err
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

// bounded refuses calls that have no end, or one that is far away: who makes one and goes
// silent would keep its place.
func bounded(ctx context.Context, method string) error {
	if method == wire.Control_Subscribe_FullMethodName {
		return nil
	}
	if d, ok := ctx.Deadline(); !ok || time.Until(d) > maxDeadline {
		return status.Errorf(codes.InvalidArgument, "a call without a deadline within %v", maxDeadline)
	}
	return nil
}
