package peer

import (
	"context"
	"os"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
)

// node is the part of *cluster.Node that this package needs.
type node interface {
	Start(b cluster.Backend) error
	Append(records ...feed.Record)
	Resync()
	locate(path string, buf []holder) []holder
	knows(hash uint64) bool
	ask(ctx context.Context, paths []string, answer func(path string, holders []holder)) // answer is not called in parallel
	buried(hash uint64) uint64
	watch(hash uint64)
	unwatch(hash uint64)
	indexStats() location.Stats
	peers() []member
	peerBy(nameOrAddr string) member // nil if there is none
	Members() []cluster.Member
	Leave(ctx context.Context) error
	Close() error
}

// member is the part of *cluster.Peer that this package needs.
type member interface {
	Name() string
	Member() cluster.Member
	Can(f meta.Feature) bool
	Usable() bool   // for fetches
	Callable() bool // for all other calls
	Fetch(ctx context.Context, blocks []*cluster.Fetch)
	Test(ctx context.Context)
	Store(ctx context.Context, blocks []cluster.BlockInfo) []cluster.StoreOutcome
	List(ctx context.Context, dir string, fn func(cluster.Name) bool) error
}

var _ member = (*cluster.Peer)(nil)

// holder is a peer that has a version of a block.
type holder struct {
	peer member
	location.Entry
}

// realNode is a cluster.Node.
type realNode struct{ *cluster.Node }

var _ node = realNode{}

func (n realNode) locate(path string, buf []holder) []holder {
	var found [8]cluster.Location
	for _, l := range n.Locate(path, found[:0]) {
		buf = append(buf, holder{l.Peer, l.Entry})
	}
	return buf
}

func (n realNode) knows(hash uint64) bool { return n.Knows(hash) }

func (n realNode) ask(ctx context.Context, paths []string, answer func(path string, holders []holder)) {
	n.Ask(ctx, paths, func(path string, found []cluster.Location) {
		holders := make([]holder, len(found))
		for i, l := range found {
			holders[i] = holder{l.Peer, l.Entry}
		}
		answer(path, holders)
	})
}

func (n realNode) buried(hash uint64) uint64  { return n.Index().Buried(hash) }
func (n realNode) watch(hash uint64)          { n.Index().Watch(hash) }
func (n realNode) unwatch(hash uint64)        { n.Index().Unwatch(hash) }
func (n realNode) indexStats() location.Stats { return n.Index().Stats() }

func (n realNode) peers() []member {
	var list []member
	for _, p := range n.Peers() {
		list = append(list, p)
	}
	return list
}

func (n realNode) peerBy(nameOrAddr string) member {
	if p := n.PeerBy(nameOrAddr); p != nil {
		return p
	}
	return nil
}

// Engine is the part of *tiers.Engine that this package needs.
type Engine interface {
	Holding(path string) (tiers.Holding, bool)
	Holdings(ctx context.Context, fn func(h *tiers.Holding) error) error
	HoldingsIn(dir, after string, limit int) (list []tiers.Holding, more bool)
	Lend(ctx context.Context, o tiers.LendOptions) (*tiers.Lent, error)
	Take(ctx context.Context, h *tiers.Holding) error
	Supersede(path string, dir bool, seq uint64)
	Observe(seq uint64, from string)
	Events() *event.Log
}

var _ Engine = (*tiers.Engine)(nil)

// engine is Engine with loans and events that tests can make.
type engine interface {
	Holding(path string) (tiers.Holding, bool)
	Holdings(ctx context.Context, fn func(h *tiers.Holding) error) error
	HoldingsIn(dir, after string, limit int) (list []tiers.Holding, more bool)
	lend(ctx context.Context, path string, seq uint64) (loan, error)
	Take(ctx context.Context, h *tiers.Holding) error
	Supersede(path string, dir bool, seq uint64)
	Observe(seq uint64, from string)
}

// loan is a block that the engine holds for a peer, until close.
type loan struct {
	tiers.Holding
	file  *os.File
	close func()
}

// events is the part of *tiers.EventLog that this package needs.
type events interface {
	Next() uint64
	Read(ctx context.Context, seq uint64, buf []event.Event) (n int, missed uint64, err error)
}

// realEngine is a tiers.Engine.
type realEngine struct{ Engine }

func (e realEngine) lend(ctx context.Context, path string, seq uint64) (loan, error) {
	l, err := e.Lend(ctx, tiers.LendOptions{Path: path, Seq: seq})
	if err != nil {
		return loan{}, err
	}
	return loan{l.Holding, l.File, l.Close}, nil
}
