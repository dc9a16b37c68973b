// Package status is the status document, which .kvfs/status of a mount, the socket of an owner,
// and /status of HTTP return. It has the types, collects them in a daemon (Source), reads the
// document of a daemon of any version (Parse), and writes it for people (Print).
//
// docs/metrics.md describes each field. When a field vanishes, or changes its name, type or meaning, Schema rises.
package status

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/publish"
	"github.com/kvfs/kvfs/tiers/state"
)

// Schema numbers the form of the document. A document without a number is from a kvfs before this form.
const Schema = 2

// Document is the content of .kvfs/status. Fields may be added.
type Document struct {
	Schema        int             `json:"schema" help:"the form of this document: 2" kind:"number"`
	Version       string          `json:"version" help:"version of the daemon"`
	PID           int             `json:"pid" help:"process id of the daemon" kind:"number"`
	UptimeSeconds float64         `json:"uptime_seconds" help:"time since the start of the daemon"`
	Mount         Mount           `json:"mount"`           // the mount of this file; empty if the status came over a socket
	Store         *Store          `json:"store,omitempty"` // of an owner of many mounts
	Tiers         []Tier          `json:"tiers"`
	Groups        []Group         `json:"groups"`
	Quotas        []control.Quota `json:"quotas"` // of groups, users and control groups
	Counters      state.Counters  `json:"counters"`
	Reads         state.Summary   `json:"reads"` // by the tier in which readers found blocks

	// VersionsAhead is by how much the numbers of versions are ahead of the clock. VersionsFrom is the node whose version has
	// brought that, empty if it was one of this node. Both are absent below ClockLimit.
	VersionsAhead float64 `json:"versions_ahead_seconds,omitempty" help:"by how much the numbers of versions are ahead of the clock, from 1 s on: a [clock](cluster.md#clocks) is wrong, or was"`
	VersionsFrom  string  `json:"versions_ahead_from,omitempty" help:"the node whose version has brought that, as far as it is known; absent: this node"`

	Secondaries []lane.Stats `json:"secondaries"`       // the tiers below memory
	Cluster     *Cluster     `json:"cluster,omitempty"` // absent without bind
	Events      *Events      `json:"events,omitempty"`

	Memory  MemoryDir `json:"memory"`
	Process Process   `json:"process"`
}

// Mount is the part about one mount.
type Mount struct {
	Dir          string            `json:"dir" help:"mount point"`
	Mode         string            `json:"mode" help:"setting 'mode': 'embedded' or 'standalone-store'"`
	State        string            `json:"state" help:"'attaching', then 'serving'"`
	PID          int               `json:"pid" help:"the process that mounted; 0 while it still tests the mount, and while no process but the owner holds it" kind:"number"`
	OwnerPID     int               `json:"owner_pid" help:"the process that answers" kind:"number"`
	Epoch        uint32            `json:"epoch,omitempty" help:"number of this daemon among those that the mount has had, from 1; 0 if no other daemon can take the mount over" kind:"number"`
	ReadPath     string            `json:"read_path" help:"who moves the bytes of reads: 'passthrough' is the kernel"`
	WritePath    string            `json:"write_path" help:"who moves the bytes of writes"`
	PathReason   string            `json:"path_reason,omitempty" help:"why it is not 'passthrough'"`
	Tested       bool              `json:"tested,omitempty" help:"the read path was compared at the start (mode 'embedded')"`
	Ops          map[string]uint64 `json:"ops" help:"requests of the kernel, by FUSE operation"`
	BackingFiles int               `json:"backing_files" help:"files in memory that are registered with the kernel"`

	Takeover       string `json:"takeover,omitempty" help:"socket at which a takeover begins (mode 'embedded')"`
	TakeoverReason string `json:"takeover_reason,omitempty" help:"why there can be no takeover"`
	EndsWith       int    `json:"ends_with,omitempty" help:"process id of the 'kvfs run' that made the mount, and whose end unmounts it" kind:"number"`
}

// Tier is the part about a tier; memory is one, too.
type Tier struct {
	Name          string `json:"name" help:"name of the tier: 'memory', 'disk', 'peer', or as configured"`
	Type          string `json:"type" help:"type of the tier"`
	State         string `json:"state" help:"'online', 'degraded' or 'offline'"`
	Reason        string `json:"reason,omitempty" help:"why the tier is not online, or what filled memory in the last ten minutes"`
	CapacityBytes int64  `json:"capacity_bytes" help:"most bytes that the tier can hold"`
	UsedBytes     int64  `json:"used_bytes" help:"bytes in use: whole pages or slots, and reservations of writers"`
	PinnedBytes   int64  `json:"pinned_bytes" help:"part of 'used_bytes' that cannot be evicted now"`
	Blocks        int64  `json:"blocks" help:"blocks in the tier; in the peer tier each holder counts"`
	Policy        string `json:"policy,omitempty" help:"eviction policy"`
}

// Group is a group of the configuration, or one in use.
type Group struct {
	Name       string `json:"name" help:"name of the group, escaped; empty for files directly below the mount"`
	Pinned     bool   `json:"pinned" help:"blocks of the group are not evicted"`
	QuotaBytes int64  `json:"quota_bytes" help:"quota; 0: none"`
	UsedBytes  int64  `json:"used_bytes" help:"bytes of the group in memory"`
	BlockBytes int64  `json:"block_bytes" help:"size of its blocks, configured or learned; 0: not known yet"`
	Stored     uint64 `json:"stored_blocks" help:"commits of its blocks, since the daemon has seen the group"`
	Found      uint64 `json:"found" help:"look-ups and opens that found one of its blocks"`
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
	Dir       string `json:"dir" help:"the directory"`
	Adoptable bool   `json:"adoptable" help:"a crash of the daemon loses no committed block"`
	Discarded string `json:"discarded,omitempty" help:"why this start could not adopt what it found"`
}

// Process is the daemon's own use of resources.
type Process struct {
	HeapBytes  uint64 `json:"heap_bytes" help:"live objects at the last garbage collection" kind:"gauge"`
	IndexBytes int64  `json:"index_bytes" help:"memory of the table of names"`
	Goroutines int    `json:"goroutines" help:"goroutines"`
	Names      int64  `json:"names" help:"files and directories"`
	Writing    int64  `json:"writing_files" help:"files being written, or held back under a temporary name"`
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
	Socket string  `json:"socket" help:"the socket of the owner"`
	Mounts []Mount `json:"mounts"`
}

// Cluster is the part about the cluster.
type Cluster struct {
	Members []cluster.Member `json:"members"` // this node first
	// Rejected counts messages from strangers, by fault.
	Rejected map[string]uint64 `json:"rejected" help:"messages from strangers: of 'gossip', 'connections', 'unknown' methods, 'malformed', 'denied', 'bulk'"`
	Warning  string            `json:"warning,omitempty" help:"about the address that this node announces"`

	// LocalReadRatio is the share of the blocks read here that were in this node's own memory
	// or SSD. It is 1 before the first read.
	LocalReadRatio float64 `json:"local_read_ratio" help:"share of the blocks read here that this node's memory or SSD had; 1 before the first read"`

	Requested []string `json:"requested" help:"features that this node would use with each peer"`
	Required  []string `json:"required,omitempty" help:"features without which a peer is refused"`

	RDMA *rails.State  `json:"rdma"`
	Node cluster.Stats `json:"node"`
	Bulk tcp.Stats     `json:"bulk"`
}

// LocalReadRatio is the share of the blocks read that no peer had to send. A block from a peer
// counts as remote at its fetch, and as local at every further read.
func LocalReadRatio(s *state.Summary) float64 {
	local, far := s.MemoryKeys+s.DiskKeys, s.PeerKeys
	if local+far == 0 {
		return 1
	}
	return float64(local) / float64(local+far)
}

// Events is the part about the event log and its publisher.
type Events struct {
	Next uint64         `json:"next" help:"number of the next event" kind:"number"`
	ZMQ  *publish.Stats `json:"zmq,omitempty"`
}

// Parse reads the document of a daemon of any Schema. What the daemon does not tell, or tells by another name, is zero.
// Commands may rely on the fields that no Schema changes: see docs/metrics.md. After an error everything is zero.
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

// fullShown is how long the status reports that memory was full of open files.
const fullShown = 10 * time.Minute

// Source is what a status document is collected from.
type Source struct {
	Version string // of the program
	Started time.Time
	Config  *config.Config // in effect
	Memory  *mem.Store
	Engine  *tiers.Engine
}

// Collect makes the document of a daemon, without mounts, cluster and events.
func (s *Source) Collect() *Document {
	st := s.Engine.Stats()
	ms := s.Memory.Status()
	doc := &Document{
		Schema: Schema, Version: s.Version, PID: os.Getpid(), UptimeSeconds: time.Since(s.Started).Seconds(),
		Tiers: []Tier{{
			Name: "memory", Type: "memory", State: "online", CapacityBytes: st.CapacityBytes, UsedBytes: st.UsedBytes,
			PinnedBytes: st.PinnedBytes, Blocks: st.Blocks, Policy: s.Config.Memory.Policy,
		}},
		Counters: st.Counters, Reads: st.Summary, Secondaries: st.Secondaries,
		Memory: MemoryDir{Dir: ms.Dir, Adoptable: ms.Adoptable, Discarded: ms.Discarded},
		Process: Process{
			HeapBytes: Sample("/gc/heap/live:bytes"), IndexBytes: st.IndexBytes, Goroutines: runtime.NumGoroutine(),
			Names: st.Names, Writing: st.Writing,
		},
	}
	if st.VersionsAhead >= ClockLimit {
		doc.VersionsAhead, doc.VersionsFrom = st.VersionsAhead.Seconds(), st.VersionsFrom
	}
	if ago := time.Since(st.FullAt); !st.FullAt.IsZero() && ago < fullShown {
		doc.Tiers[0].Reason = fmt.Sprintf("full of %s %v ago", st.FullOf, ago.Round(time.Second))
	}
	for _, t := range st.Secondaries {
		kind, policy := s.Config.TypeOf(t.Name), ""
		if kind == config.TierDisk {
			policy = s.Config.Disk.Policy
		}
		doc.Tiers = append(doc.Tiers, Tier{
			Name: t.Name, Type: kind, State: t.State, Reason: t.Reason, CapacityBytes: t.CapacityBytes,
			UsedBytes: t.UsedBytes, PinnedBytes: t.PinnedBytes, Blocks: t.Blocks, Policy: policy,
		})
	}
	for _, g := range s.Engine.Accounts().Groups() {
		doc.Groups = append(doc.Groups, Group{show.Text(string(g.Name)), g.Pinned, g.QuotaBytes, g.UsedBytes, g.BlockBytes, g.Stored, g.Found})
	}
	doc.Quotas = control.Quotas(s.Engine.Accounts())
	return doc
}

// Mounted returns the part about a mount.
func Mounted(s *fs.Server) Mount {
	return Mount{
		State: "serving", OwnerPID: os.Getpid(), ReadPath: s.ReadPath(), WritePath: s.WritePath(), PathReason: s.PathReason(), Tested: s.Tested(),
		Ops: s.Ops(), BackingFiles: s.Backings(),
	}
}

// Sample returns a metric of the Go runtime, 0 if there is none of that name.
func Sample(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	if metrics.Read(s); s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
