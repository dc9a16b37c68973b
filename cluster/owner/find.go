package owner

import (
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// maxFound is how many holders of a path an owner tells, besides itself.
const maxFound = 8

// Holder is a node and what it holds of a path.
type Holder struct {
	Node string
	location.Entry
}

// Answer returns the answer to a call that asks this node about paths. own is what this node holds of each path, nil for
// nothing. locate appends to buf the live holders of the latest version of a path that the index knows, without this node, the
// best first.
func (s *Scopes) Answer(paths []string, own []*message.BlockInfo, locate func(path string, buf []Holder) []Holder) *wire.FindReply {
	reply, numbers := &wire.FindReply{}, map[string]uint32{}
	add := func(i int, h *Holder) {
		k, ok := numbers[h.Node]
		if !ok {
			k = uint32(len(reply.Nodes))
			numbers[h.Node], reply.Nodes = k, append(reply.Nodes, h.Node)
		}
		reply.Found = append(reply.Found, message.FoundToWire(&h.Entry, uint32(i), k))
	}
	var buf []Holder
	for i, own := range own {
		hash := location.HashPath(paths[i])
		if !s.Knows(hash) {
			reply.Unsure = append(reply.Unsure, uint32(i))
			continue
		}
		buf = locate(paths[i], buf[:0])
		if own != nil && (len(buf) == 0 || own.Seq >= buf[0].Seq) {
			e := location.Entry{Seq: own.Seq, Size: own.Size, Mode: own.Mode, UID: own.UID, GID: own.GID, Memory: true}
			add(i, &Holder{s.o.Self, e})
			buf = slices.DeleteFunc(buf, func(h Holder) bool { return h.Seq < own.Seq })
		} else if len(buf) == 0 && !s.Sure(hash) {
			reply.Unsure = append(reply.Unsure, uint32(i))
		}
		for k := range min(len(buf), maxFound) {
			add(i, &buf[k])
		}
	}
	return reply
}

// Found returns the holders in the answer of an owner about paths. live makes an H of each; it returns false for one that is of
// no use. Found fails with rdma.ErrProtocol if the answer makes no sense.
func Found[H any](
	reply *wire.FindReply, paths []string, live func(node string, e location.Entry) (H, bool),
) (found []Holders[H], err error) {
	for _, w := range reply.GetFound() {
		if int(w.GetPath()) >= len(paths) || int(w.GetNode()) >= len(reply.GetNodes()) {
			return nil, fmt.Errorf("%w: holder %d of path %d", rdma.ErrProtocol, w.GetNode(), w.GetPath())
		}
		e, err := message.FoundFromWire(w, paths[w.GetPath()])
		if err != nil {
			return nil, err
		}
		h, ok := live(reply.GetNodes()[w.GetNode()], e)
		if !ok {
			continue
		}
		if last := len(found) - 1; last >= 0 && found[last].Path == w.GetPath() {
			found[last].List = append(found[last].List, h)
		} else {
			found = append(found, Holders[H]{Path: w.GetPath(), List: []H{h}})
		}
	}
	return found, nil
}
