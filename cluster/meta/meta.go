// Package meta is what a node tells all others of itself, by gossip: where it is reached, which
// protocol it speaks, what it can do, and how much room it has. A meta is made and checked here;
// whether its node can be a peer is decided elsewhere.
package meta

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
	Protocol    = 1
	MinProtocol = 1
)

// Limits of what a meta tells, so that all of it fits in gossip.MaxMeta.
const (
	maxAddr = 96 // bytes of an address
	MaxText = 64 // bytes of zone, version and name of the bulk protocol
)

// Meta is what a node tells all others of itself.
type Meta struct {
	Protocol, MinProtocol uint32
	Features              Feature
	Control, Bulk         string
	BulkProto             string
	Zone, Version         string
	Total, Free           int64
	Settings              uint32 // sum of the settings that all nodes should share; 0: not told
}

// ErrNone says that a node has not told its meta yet.
var ErrNone = errors.New("no meta")

// Encode returns the wire form. It fails if that does not fit in gossip.
func (m *Meta) Encode() ([]byte, error) {
	if err := m.checkText(); err != nil {
		return nil, err
	}
	b, err := proto.Marshal(&wire.Meta{
		Protocol: m.Protocol, MinProtocol: m.MinProtocol, Features: uint64(m.Features),
		Control: m.Control, Bulk: m.Bulk, BulkProto: m.BulkProto,
		Zone: m.Zone, Version: m.Version, TotalBytes: m.Total, FreeBytes: m.Free, Settings: m.Settings,
	})
	if err != nil {
		return nil, fmt.Errorf("meta: %w", err)
	}
	if len(b) > gossip.MaxMeta {
		return nil, fmt.Errorf("meta of %d bytes, %d is the limit: shorten zone or addresses", len(b), gossip.MaxMeta)
	}
	return b, nil
}

// Decode decodes the meta of another node. It skips what newer versions add. It checks
// only the versions of the protocol: Check does the rest.
func Decode(b []byte) (Meta, error) {
	if len(b) == 0 {
		return Meta{}, ErrNone
	}
	var w wire.Meta
	if len(b) > gossip.MaxMeta {
		return Meta{}, fmt.Errorf("meta of %d bytes", len(b))
	}
	if err := proto.Unmarshal(b, &w); err != nil {
		return Meta{}, fmt.Errorf("meta: %w", err)
	}
	m := Meta{
		Protocol: w.GetProtocol(), MinProtocol: w.GetMinProtocol(), Features: Feature(w.GetFeatures()),
		Control: w.GetControl(), Bulk: w.GetBulk(), BulkProto: w.GetBulkProto(),
		Zone: w.GetZone(), Version: w.GetVersion(), Total: w.GetTotalBytes(), Free: w.GetFreeBytes(), Settings: w.GetSettings(),
	}
	if m.Protocol == 0 || m.MinProtocol > m.Protocol {
		return Meta{}, fmt.Errorf("meta: protocol %d, at least %d", m.Protocol, m.MinProtocol)
	}
	return m, nil
}

// Check returns what makes no sense in a meta of a supported protocol.
func (m *Meta) Check() error {
	if err := m.checkText(); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	if m.Total < 0 || m.Free < 0 || m.Free > m.Total {
		return fmt.Errorf("meta: %d bytes free of %d", m.Free, m.Total)
	}
	return nil
}

// checkText returns what is wrong with the texts of a meta.
func (m *Meta) checkText() error {
	for _, t := range []struct {
		what, text string
		limit      int
	}{
		{"control address", m.Control, maxAddr},
		{"bulk address", m.Bulk, maxAddr},
		{"bulk protocol", m.BulkProto, MaxText},
		{"zone", m.Zone, MaxText},
		{"version", m.Version, MaxText},
	} {
		if len(t.text) > t.limit {
			return fmt.Errorf("%s of %d bytes, %d is the limit", t.what, len(t.text), t.limit)
		}
		if !Printable(t.text) {
			return fmt.Errorf("%s %q: not printable", t.what, t.text)
		}
	}
	if m.Bulk == "" {
		return errors.New("no bulk address")
	}
	host, port, err := net.SplitHostPort(m.Control)
	if err != nil {
		return fmt.Errorf("control address: %w", err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return fmt.Errorf("control address %q: not host:port", m.Control)
	}
	return nil
}

// Printable reports whether s has only printable characters.
func Printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Offered returns the features that the node has and lets others use.
func (m *Meta) Offered() Feature {
	if m.Features&NoCopies != 0 {
		return m.Features &^ FeatureStore
	}
	return m.Features
}

// SameLink reports whether a session that was made for m also fits o.
func (m *Meta) SameLink(o *Meta) bool {
	return m.Control == o.Control && m.Bulk == o.Bulk && m.Features == o.Features && m.Protocol == o.Protocol
}
