package message

import (
	"fmt"
	"strings"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Name is one entry of a directory at a peer.
type Name struct {
	Name string // one component
	BlockInfo
}

// StoreStatus is the result of one offer of a copy.
type StoreStatus uint8

// The outcomes of an offer.
const (
	StoreFailed  StoreStatus = iota // Err says why
	StoreDone                       // the peer has it now, by this offer
	StoreHad                        // the peer already had it
	StoreRefused                    // no room, read-only, or a later version is known
)

// StoreOutcome is the answer to one offer.
type StoreOutcome struct {
	Status StoreStatus
	Err    error // StoreFailed and StoreRefused: one of the kinds of package block
}

// OffersFromWire returns the blocks of a Store. It fails with rdma.ErrProtocol, or as
// block.ParseKey, if an offer makes no sense.
func OffersFromWire(list []*wire.BlockInfo) ([]BlockInfo, error) {
	offers := make([]BlockInfo, 0, len(list))
	for _, w := range list {
		path := string(w.GetPath())
		if _, err := block.ParseKey(path); err != nil {
			return nil, fmt.Errorf("path %.100q: %w", path, err)
		}
		info, err := FromWire(w, path)
		if err != nil {
			return nil, err
		}
		offers = append(offers, info)
	}
	return offers, nil
}

// OutcomeToWire returns the message for o.
func OutcomeToWire(o StoreOutcome) *wire.StoreResult {
	return &wire.StoreResult{Status: wire.StoreStatus(o.Status), Kind: KindToWire(o.Err)}
}

// OutcomesFromWire returns the outcomes of n offers. It fails with rdma.ErrProtocol if the reply
// has not that many, or one that makes no sense.
func OutcomesFromWire(reply *wire.StoreReply, n int) ([]StoreOutcome, error) {
	if len(reply.GetResults()) != n {
		return nil, fmt.Errorf("%w: %d answers to %d offers", rdma.ErrProtocol, len(reply.GetResults()), n)
	}
	outcomes := make([]StoreOutcome, n)
	for i, r := range reply.GetResults() {
		if r.GetStatus() < wire.StoreStatus_STORE_FAILED || r.GetStatus() > wire.StoreStatus_STORE_REFUSED {
			return nil, fmt.Errorf("%w: store status %d", rdma.ErrProtocol, r.GetStatus())
		}
		o := &outcomes[i]
		o.Status = StoreStatus(r.GetStatus())
		if o.Status == StoreDone || o.Status == StoreHad {
			continue
		}
		if o.Err = KindFromWire(r.GetKind()); o.Err == nil {
			o.Err = block.ErrUnavailable
		}
	}
	return outcomes, nil
}

// NamesToWire returns the message for some names of a directory.
func NamesToWire(names []Name) *wire.ListReply {
	reply := &wire.ListReply{}
	for i := range names {
		info := ToWire(&names[i].BlockInfo, true)
		info.Path, info.Dirs = nil, nil // the caller knows them
		reply.Names = append(reply.Names, &wire.Name{Name: []byte(names[i].Name), Info: info})
	}
	return reply
}

// EachName calls fn for the names of a directory that a reply has, until fn returns false: then
// more is false. It fails with rdma.ErrProtocol at a name that makes no sense.
func EachName(dir string, reply *wire.ListReply, fn func(Name) bool) (more bool, err error) {
	for _, w := range reply.GetNames() {
		name := string(w.GetName())
		path := name
		if dir != "" {
			path = dir + "/" + name
		}
		if _, err := block.ParseKey(path); err != nil || strings.Contains(name, "/") {
			return false, fmt.Errorf("%w: name %.100q in a directory", rdma.ErrProtocol, name)
		}
		info, err := FromWire(w.GetInfo(), path)
		if err != nil {
			return false, err
		}
		if !fn(Name{Name: name, BlockInfo: info}) {
			return false, nil
		}
	}
	return true, nil
}

// StatToWire returns the message for what is held of some paths: nil for nothing.
func StatToWire(list []*BlockInfo) *wire.StatReply {
	reply := &wire.StatReply{}
	for _, info := range list {
		r := &wire.StatResult{}
		if info != nil {
			r.Info = ToWire(info, false)
		}
		reply.Results = append(reply.Results, r)
	}
	return reply
}

// StatFromWire is the inverse of StatToWire. It fails with rdma.ErrProtocol if the reply makes no
// sense.
func StatFromWire(reply *wire.StatReply, paths []string) ([]*BlockInfo, error) {
	if len(reply.GetResults()) != len(paths) {
		return nil, fmt.Errorf("%w: %d answers to %d paths", rdma.ErrProtocol, len(reply.GetResults()), len(paths))
	}
	list := make([]*BlockInfo, len(paths))
	for i, r := range reply.GetResults() {
		if r.GetInfo() == nil {
			continue
		}
		if err := CheckPath(r.GetInfo(), paths[i]); err != nil {
			return nil, err
		}
		info, err := FromWire(r.GetInfo(), paths[i])
		if err != nil {
			return nil, err
		}
		list[i] = &info
	}
	return list, nil
}
