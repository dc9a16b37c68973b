package cluster

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// Limits of the calls.
const (
	maxStoring = 16   // Stores served at a time
	listPage   = 1000 // names of a ListReply
)

// service answers the calls of peers.
type service struct {
	wire.UnimplementedControlServer
	n *Node
}

// ready returns the backend, or an error while the node is starting.
func (v *service) ready() (Backend, error) {
	b := v.n.backend.Load()
	if b == nil {
		return nil, status.Error(codes.Unavailable, "node is starting")
	}
	return *b, nil
}

// lacks returns the answer to a call for a feature that this node lacks.
func (n *Node) lacks(f meta.Feature) error {
	return status.Errorf(codes.Unimplemented, "this node lacks %v", meta.FeatureNames(f))
}

// Subscribe implements wire.ControlServer.
func (v *service) Subscribe(req *wire.SubscribeRequest, stream wire.Control_SubscribeServer) error {
	n := v.n
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer n.followers.Enter(control.Caller(ctx), cancel)()
	parts := feed.Parts(req.GetParts())
	if len(parts) > 0 && !parts.Valid() {
		return status.Errorf(codes.InvalidArgument, "parts of %d bytes", len(parts))
	}
	scope, err := scopeOf(req.GetScope())
	if err != nil {
		return err
	}
	var from feed.Position
	if n.self.Features&meta.FeatureResume != 0 {
		from = feed.Position{Epoch: req.GetEpoch(), Next: req.GetNext()}
	}
	if err := stream.SendHeader(metadata.MD{}); err != nil { // tells the peer that the call has been accepted
		return err
	}
	send := func(b *feed.Batch) error {
		return stream.Send(&wire.Batch{
			Epoch: b.Position.Epoch, Next: b.Position.Next, Begin: b.Begin, End: b.End, Partial: b.Partial,
			Records: b.Records, Count: uint32(b.Count), Skipped: b.Skipped,
		})
	}
	if !req.GetCompares() || n.self.Features&meta.FeatureDigest == 0 {
		return control.Status(n.feed.Serve(ctx, from, n.snapshot, send))
	}
	err = n.feed.ServeParts(ctx, from, parts, scope, n.snapshot, send)
	if errors.Is(err, feed.ErrGap) {
		return status.Error(codes.OutOfRange, err.Error())
	}
	return control.Status(err)
}

// scopeOf returns the scope of a request.
func scopeOf(b []byte) (feed.Parts, error) {
	switch len(b) {
	case 0:
		return nil, nil
	case feed.MaxParts / 8:
		return b, nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "scope of %d bytes", len(b))
}

// Digest implements wire.ControlServer.
func (v *service) Digest(ctx context.Context, req *wire.DigestRequest) (*wire.DigestReply, error) {
	n := v.n
	if n.self.Features&meta.FeatureDigest == 0 {
		return nil, n.lacks(meta.FeatureDigest)
	}
	at, sums, err := n.feed.Digests(ctx, n.snapshot)
	if err != nil {
		return nil, control.Status(err)
	}
	scope, err := scopeOf(req.GetScope())
	if err != nil {
		return nil, err
	}
	differ, parts, err := sums.Within(scope).Compare(int(req.GetParts()), req.GetShards())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &wire.DigestReply{Epoch: at.Epoch, Next: at.Next, Shards: differ, Sums: parts}, nil
}

// List implements wire.ControlServer.
func (v *service) List(req *wire.ListRequest, stream wire.Control_ListServer) error {
	if v.n.self.Features&meta.FeatureList == 0 {
		return v.n.lacks(meta.FeatureList)
	}
	b, err := v.ready()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), control.MaxCallTime)
	defer cancel()
	after := string(req.GetAfter())
	for more := true; more; {
		var names []Name
		if names, more, err = b.List(ctx, string(req.GetDir()), after, listPage); err != nil {
			return control.Status(err)
		}
		if len(names) == 0 {
			return nil
		}
		if err := stream.Send(message.NamesToWire(names)); err != nil {
			return err
		}
		after = names[len(names)-1].Name
	}
	return nil
}

// pathsOf returns the paths of a Stat or Find.
func pathsOf(list [][]byte) ([]string, error) {
	if len(list) > control.MaxStat {
		return nil, status.Errorf(codes.InvalidArgument, "%d paths, %d is the limit", len(list), control.MaxStat)
	}
	paths := make([]string, len(list))
	for i, p := range list {
		paths[i] = string(p)
	}
	return paths, nil
}

// Stat implements wire.ControlServer.
func (v *service) Stat(_ context.Context, req *wire.StatRequest) (*wire.StatReply, error) {
	b, err := v.ready()
	if err != nil {
		return nil, err
	}
	paths, err := pathsOf(req.GetPaths())
	if err != nil {
		return nil, err
	}
	return message.StatToWire(b.Stat(paths)), nil
}

// Store implements wire.ControlServer.
func (v *service) Store(ctx context.Context, req *wire.StoreRequest) (*wire.StoreReply, error) {
	n := v.n
	if n.self.Features&meta.FeatureStore == 0 {
		return nil, n.lacks(meta.FeatureStore)
	}
	b, err := v.ready()
	if err != nil {
		return nil, err
	}
	if len(req.GetOffers()) > control.MaxOffers {
		return nil, status.Errorf(codes.InvalidArgument, "%d offers, %d is the limit", len(req.GetOffers()), control.MaxOffers)
	}
	offers, err := message.OffersFromWire(req.GetOffers())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	from := n.peer(control.Caller(ctx))
	if from == nil {
		n.counters.Denied.Add(1)
		return nil, status.Error(codes.Unavailable, "the caller is not known as a live peer")
	}
	select {
	case n.storing <- struct{}{}:
		defer func() { <-n.storing }()
	default:
		n.counters.TooMany.Add(1)
		return nil, control.Status(rdma.ErrBusy)
	}
	reply := &wire.StoreReply{}
	for _, o := range b.Store(ctx, from, offers) {
		if o.Status == StoreDone {
			n.counters.stored.Add(1)
		}
		reply.Results = append(reply.Results, message.OutcomeToWire(o))
	}
	return reply, nil
}

// peer returns the live peer with this name, or nil if there is none.
func (n *Node) peer(name string) *Peer {
	n.mu.Lock()
	p := n.mu.peers[name]
	n.mu.Unlock()
	if p == nil || p.live() == nil {
		return nil
	}
	return p
}
