package cluster

import (
	"fmt"

	"github.com/kvfs/kvfs/cluster/meta"
)

// judge returns why a node with meta m cannot be a peer, or "" if it can. lacks is the
// required features that the node lacks.
func (n *Node) judge(m *meta.Meta) (reason string, lacks meta.Feature) {
	own := &n.self
	switch {
	case m.Protocol < own.MinProtocol || own.Protocol < m.MinProtocol:
		return fmt.Sprintf("speaks protocol %d to %d, this node %d to %d",
			m.MinProtocol, m.Protocol, own.MinProtocol, own.Protocol), 0
	case m.Check() != nil:
		n.counters.badMeta.Add(1)
		return m.Check().Error(), 0
	case m.BulkProto != own.BulkProto:
		return fmt.Sprintf("moves bytes by %q, this node by %q", m.BulkProto, own.BulkProto), 0
	}
	if lacks = n.require &^ m.Features; lacks != 0 {
		return fmt.Sprintf("lacks required feature %s", meta.FeatureNames(lacks)[0]), lacks
	}
	return "", 0
}

// wanted returns the features whose lack in a peer is logged. links.without logs the lack of
// RDMA.
func (n *Node) wanted() meta.Feature { return n.self.Features &^ meta.FeatureRDMA }
