package cluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/wire"
)

// The versions of the protocol that this program speaks. They cover the control channel, the
// bulk channel and the feed. A mere addition gets a feature bit instead.
const (
	protocolVersion    = 1
	protocolMinVersion = 1
)

// Limits of what a meta tells, so that all of it fits in gossip.MaxMeta.
const (
	maxMetaAddr = 96 // bytes of an address
	maxMetaText = 64 // bytes of zone, version and name of the bulk protocol
)

// meta is what a node tells all others of itself.
type meta struct {
	protocol, minProtocol uint32
	features              Feature
	control, bulk         string
	bulkProto             string
	zone, version         string
	total, free           int64
}

// errNoMeta says that a node has not told its meta yet.
var errNoMeta = errors.New("no meta")

// encode returns the wire form. It fails if that does not fit in gossip.
func (m *meta) encode() ([]byte, error) {
	if err := m.checkText(); err != nil {
		return nil, err
	}
	b, err := proto.Marshal(&wire.Meta{
		Protocol: m.protocol, MinProtocol: m.minProtocol, Features: uint64(m.features),
		Control: m.control, Bulk: m.bulk, BulkProto: m.bulkProto,
		Zone: m.zone, Version: m.version, TotalBytes: m.total, FreeBytes: m.free,
	})
	if err != nil {
		return nil, fmt.Errorf("meta: %w", err)
	}
	if len(b) > gossip.MaxMeta {
		return nil, fmt.Errorf("meta of %d bytes, %d is the limit: shorten zone or addresses", len(b), gossip.MaxMeta)
	}
	return b, nil
}

// decodeMeta decodes the meta of another node. It skips what newer versions add. It checks
// only the versions of the protocol: check does the rest.
func decodeMeta(b []byte) (meta, error) {
	if len(b) == 0 {
		return meta{}, errNoMeta
	}
	var w wire.Meta
	if len(b) > gossip.MaxMeta {
		return meta{}, fmt.Errorf("meta of %d bytes", len(b))
	}
	if err := proto.Unmarshal(b, &w); err != nil {
		return meta{}, fmt.Errorf("meta: %w", err)
	}
	m := meta{
		protocol: w.GetProtocol(), minProtocol: w.GetMinProtocol(), features: Feature(w.GetFeatures()),
		control: w.GetControl(), bulk: w.GetBulk(), bulkProto: w.GetBulkProto(),
		zone: w.GetZone(), version: w.GetVersion(), total: w.GetTotalBytes(), free: w.GetFreeBytes(),
	}
	if m.protocol == 0 || m.minProtocol > m.protocol {
		return meta{}, fmt.Errorf("meta: protocol %d, at least %d", m.protocol, m.minProtocol)
	}
	return m, nil
}

// check returns what makes no sense in a meta of a supported protocol.
func (m *meta) check() error {
	if err := m.checkText(); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	if m.total < 0 || m.free < 0 || m.free > m.total {
		return fmt.Errorf("meta: %d bytes free of %d", m.free, m.total)
	}
	return nil
}

// checkText returns what is wrong with the texts of a meta.
func (m *meta) checkText() error {
	for _, t := range []struct {
		what, text string
		limit      int
	}{
		{"control address", m.control, maxMetaAddr},
		{"bulk address", m.bulk, maxMetaAddr},
		{"bulk protocol", m.bulkProto, maxMetaText},
		{"zone", m.zone, maxMetaText},
		{"version", m.version, maxMetaText},
	} {
		if len(t.text) > t.limit {
			return fmt.Errorf("%s of %d bytes, %d is the limit", t.what, len(t.text), t.limit)
		}
		if !printable(t.text) {
			return fmt.Errorf("%s %q: not printable", t.what, t.text)
		}
	}
	if m.bulk == "" {
		return errors.New("no bulk address")
	}
	host, port, err := net.SplitHostPort(m.control)
	if err != nil {
		return fmt.Errorf("control address: %w", err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return fmt.Errorf("control address %q: not host:port", m.control)
	}
	return nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// offered returns the features that the node has and lets others use.
func (m *meta) offered() Feature {
	if m.features&noCopies != 0 {
		return m.features &^ FeatureStore
	}
	return m.features
}

// wanted returns the features whose lack in a peer is logged. Peer.without logs the lack of
// RDMA.
func (n *Node) wanted() Feature { return n.self.features &^ FeatureRDMA }

// sameLink reports whether a session that was made for m also fits o.
func (m *meta) sameLink(o *meta) bool {
	return m.control == o.control && m.bulk == o.bulk && m.features == o.features && m.protocol == o.protocol
}

// judge returns why a node with meta m cannot be a peer, or "" if it can. lacks is the
// required features that the node lacks.
func (n *Node) judge(m *meta) (reason string, lacks Feature) {
	own := &n.self
	switch {
	case m.protocol < own.minProtocol || own.protocol < m.minProtocol:
		return fmt.Sprintf("speaks protocol %d to %d, this node %d to %d",
			m.minProtocol, m.protocol, own.minProtocol, own.protocol), 0
	case m.check() != nil:
		n.counters.badMeta.Add(1)
		return m.check().Error(), 0
	case m.bulkProto != own.bulkProto:
		return fmt.Sprintf("moves bytes by %q, this node by %q", m.bulkProto, own.bulkProto), 0
	}
	if lacks = n.require &^ m.features; lacks != 0 {
		return fmt.Sprintf("lacks required feature %s", FeatureNames(lacks)[0]), lacks
	}
	return "", 0
}
