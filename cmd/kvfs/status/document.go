// Package status is the status document, which .kvfs/status of a mount, the socket of an owner,
// and /status of HTTP return. It has the types, collects them in a daemon (Source), reads the
// document of a daemon of any version (Parse), and writes it for people (Print).
//
// docs/status.md describes each field. When a field vanishes, or changes its name, type or meaning, Schema rises.
package status

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/publish"
)

// Schema numbers the form of the document. A document without a number is from a kvfs before this form.
const Schema = 2

// Document is the content of .kvfs/status. Fields may be added.
type Document struct {
	Schema        int             `json:"schema"`
	Version       string          `json:"version"`
	PID           int             `json:"pid"`
	UptimeSeconds float64         `json:"uptime_seconds"`
	Mount         Mount           `json:"mount"`           // the mount of this file; empty if the status came over a socket
	Store         *Store          `json:"store,omitempty"` // of an owner of many mounts
	Tiers         []Tier          `json:"tiers"`
	Groups        []Group         `json:"groups"`
	Quotas        []control.Quota `json:"quotas"` // of groups, users and control groups
	Counters      tiers.Counters  `json:"counters"`
	Reads         tiers.Summary   `json:"reads"` // by the tier in which readers found blocks

	// VersionsAhead is by how much the numbers of versions are ahead of the clock. VersionsFrom is the node whose version has
	// brought that, empty if it was one of this node. Both are absent below ClockLimit.
	VersionsAhead float64 `json:"versions_ahead_seconds,omitempty"`
	VersionsFrom  string  `json:"versions_ahead_from,omitempty"`

	Secondaries []tiers.SecondaryStats `json:"secondaries"`       // the tiers below memory
	Cluster     *Cluster               `json:"cluster,omitempty"` // absent without bind
	Events      *Events                `json:"events,omitempty"`

	Memory  MemoryDir `json:"memory"`
	Process Process   `json:"process"`
}

// Mount is the part about one mount.
type Mount struct {
	Dir          string            `json:"dir"`
	Mode         string            `json:"mode"`            // as in the configuration
	State        string            `json:"state"`           // "attaching", then "serving"
	PID          int               `json:"pid"`             // of the process that mounted
	OwnerPID     int               `json:"owner_pid"`       // of the one that answers
	Epoch        uint32            `json:"epoch,omitempty"` // number of this owner among those of the mount, from 1; 0 if no other can answer it
	ReadPath     string            `json:"read_path"`
	WritePath    string            `json:"write_path"`
	PathReason   string            `json:"path_reason,omitempty"` // why not passthrough
	Tested       bool              `json:"tested,omitempty"`      // the read path, at the start. In mode embedded
	Ops          map[string]uint64 `json:"ops"`                   // requests of the kernel, by FUSE operation
	BackingFiles int               `json:"backing_files"`         // registered with the kernel

	Takeover       string `json:"takeover,omitempty"`        // socket at which a takeover begins, in mode embedded
	TakeoverReason string `json:"takeover_reason,omitempty"` // why there can be none
	EndsWith       int    `json:"ends_with,omitempty"`       // the kvfs run that made the mount, and whose end unmounts it
}

// Tier is the part about a tier; memory is one, too.
type Tier struct {
	Name          string `json:"name"`
	Type          string `json:"type"`
	State         string `json:"state"`
	Reason        string `json:"reason,omitempty"`
	CapacityBytes int64  `json:"capacity_bytes"`
	UsedBytes     int64  `json:"used_bytes"`
	PinnedBytes   int64  `json:"pinned_bytes"`
	Blocks        int64  `json:"blocks"`
	Policy        string `json:"policy,omitempty"`
}

// Group is a group of the configuration, or one in use.
type Group struct {
	Name       string `json:"name"` // escaped, because it need not be UTF-8
	Pinned     bool   `json:"pinned"`
	QuotaBytes int64  `json:"quota_bytes"`
	UsedBytes  int64  `json:"used_bytes"`
	BlockBytes int64  `json:"block_bytes"` // configured or learned; 0: not known yet
	Stored     uint64 `json:"stored_blocks"`
	Found      uint64 `json:"found"` // look-ups and opens that found a block
}

// Lower is the answer of .kvfs/usage: what the tiers of a node below memory have of each group, by the names of both.
// Names of groups are escaped.
type Lower struct {
	Groups map[string]map[string]Share `json:"groups"`
}

// Share is what a tier has of a group.
type Share struct {
	Blocks int64 `json:"blocks"`
	Bytes  int64 `json:"bytes"`
}

// MemoryDir is the directory of the blocks in memory.
type MemoryDir struct {
	Dir       string `json:"dir"`
	Adoptable bool   `json:"adoptable"`           // a crash of the daemon loses no committed block
	Discarded string `json:"discarded,omitempty"` // why this start could not adopt what it found
}

// Process is the daemon's own use of resources.
type Process struct {
	HeapBytes  uint64 `json:"heap_bytes"` // live objects at the last collection
	IndexBytes int64  `json:"index_bytes"`
	Goroutines int    `json:"goroutines"`
	Names      int64  `json:"names"`
	Writing    int64  `json:"writing_files"`
}

// Text returns the document as JSON.
func (doc *Document) Text() []byte { return JSON(doc) }

// JSON returns v as JSON in characters that a terminal only shows, whatever names v has. v has no type that cannot be
// encoded.
func JSON(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return []byte("{}\n") // impossible: a name that is no UTF-8 is replaced
	}
	var out []byte
	for _, r := range string(text) {
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) { // in a string; encoding/json escapes only some of them
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return append(out, '\n')
}

// Store is an owner's part about its mounts.
type Store struct {
	Socket string  `json:"socket"`
	Mounts []Mount `json:"mounts"`
}

// Cluster is the part about the cluster.
type Cluster struct {
	Members []cluster.Member `json:"members"` // this node first
	// Rejected counts messages from strangers, by fault.
	Rejected map[string]uint64 `json:"rejected"`
	Warning  string            `json:"warning,omitempty"` // about the address that this node announces to peers

	// LocalReadRatio is the share of the blocks read here that were in this node's own memory
	// or SSD. It is 1 before the first read.
	LocalReadRatio float64 `json:"local_read_ratio"`

	Requested []string `json:"requested"`          // features that this node would use with each peer; see Member.Missing
	Required  []string `json:"required,omitempty"` // those without which a peer is refused

	RDMA *rails.State  `json:"rdma"`
	Node cluster.Stats `json:"node"`
	Bulk tcp.Stats     `json:"bulk"`
}

// LocalReadRatio is the share of the blocks read that no peer had to send. A block from a peer
// counts as remote at its fetch, and as local at every further read.
func LocalReadRatio(s *tiers.Summary) float64 {
	local, far := s.MemoryKeys+s.DiskKeys, s.PeerKeys
	if local+far == 0 {
		return 1
	}
	return float64(local) / float64(local+far)
}

// Events is the part about the event log and its publisher.
type Events struct {
	Next uint64         `json:"next"` // number of the next event
	ZMQ  *publish.Stats `json:"zmq,omitempty"`
}

// Parse reads the document of a daemon of any Schema. What the daemon does not tell, or tells by another name, is zero.
// Commands may rely on the fields that no Schema changes: see docs/status.md. After an error everything is zero.
func Parse(text []byte) (*Document, error) {
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber() // for the details of tiers
	doc := &Document{}
	if err := in.Decode(doc); err != nil {
		return doc, fmt.Errorf("status of the daemon: %w", err)
	}
	return doc, nil
}

// Ahead returns the words about numbers of versions that are ahead of the clock, "" if they are not.
func (s *Document) Ahead() string {
	if s.VersionsAhead == 0 {
		return ""
	}
	ahead := time.Duration(s.VersionsAhead * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("versions are %v ahead of the clock, since one of %s", ahead, show.Text(cmp.Or(s.VersionsFrom, "this node")))
}

// ClockLimit is how far the clocks of two nodes may differ before kvfs says so. Of two versions that nodes made without
// the other's, that of the clock ahead wins, and the end of a block's time to live is a time of the node that set it.
const ClockLimit = time.Second

// PathRDMA is Member.Path of a peer whose memory is read by RDMA.
const PathRDMA = "rdma"
