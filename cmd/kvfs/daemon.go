package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
)

// daemon is what runs behind one mount, or, as the owner of a store, behind many.
type daemon struct {
	dir     string // mount point; of an owner, its socket
	cfg     *config.Config
	log     *zap.Logger
	started time.Time
	memory  *mem.Store
	peers   *peers // nil without a cluster
	engine  *tiers.Engine
	surface *surface
	server  *fs.Server                // set when mounted; an owner has its own
	serving atomic.Pointer[fs.Server] // server, for requests that come meanwhile
	owner   *owner                    // nil unless it serves the mounts of others

	endsWith int // process, the kvfs run, with which the mount is to end; 0: none
	stopHTTP func() error
	asleep   context.CancelFunc            // ends keepAlive; nil before it
	offer    atomic.Pointer[handoff.Offer] // to the process that takes the mount over; nil if none can
	noOffer  atomic.Pointer[string]        // why not; nil: not known yet
}

// keepAlive has systemd know that the engine works, until closeTiers.
func (d *daemon) keepAlive() {
	var ctx context.Context
	ctx, d.asleep = context.WithCancel(context.Background())
	keepAlive(ctx, func() { d.engine.Stats() })
}

// adopted reports whether blocks of an earlier process are in memory, so that a
// start that fails must not lose them.
func (d *daemon) adopted() bool { return d.engine.Stats().Counters.Adopted > 0 }

// statusDocument is what .kvfs/status holds. Sizes are in bytes. Fields may be
// added; none changes its meaning.
type statusDocument struct {
	Version       string         `json:"version"`
	PID           int            `json:"pid"`
	UptimeSeconds float64        `json:"uptime_seconds"`
	Mount         statusMount    `json:"mount"`           // that the status was read from; empty for one that came over a socket
	Store         *statusStore   `json:"store,omitempty"` // of an owner of many mounts
	Tiers         []statusTier   `json:"tiers"`
	Groups        []statusGroup  `json:"groups"`
	Counters      tiers.Counters `json:"counters"`
	Summary       tiers.Summary  `json:"summary"` // keys by where readers found them

	Secondaries []tiers.SecondaryStats `json:"secondaries"`       // the tiers below memory
	Cluster     *statusCluster         `json:"cluster,omitempty"` // absent without bind
	Events      *statusEvents          `json:"events,omitempty"`

	Memory  statusMemoryDir `json:"memory"`
	Process statusProcess   `json:"process"`
}

type statusMount struct {
	Dir          string            `json:"dir"`
	Mode         string            `json:"mode"`            // as in the configuration
	State        string            `json:"state"`           // "attaching", then "serving"
	PID          int               `json:"pid"`             // of the process that mounted
	OwnerPID     int               `json:"owner_pid"`       // of the one that answers
	Epoch        uint32            `json:"epoch,omitempty"` // number of this owner among those of the mount, from 1; 0 where there can be no other
	ReadPath     string            `json:"read_path"`
	WritePath    string            `json:"write_path"`
	PathReason   string            `json:"path_reason,omitempty"` // why not passthrough
	Tested       bool              `json:"tested,omitempty"`      // the read path, at the start. In mode embedded
	Ops          map[string]uint64 `json:"ops"`                   // requests of the kernel, by FUSE operation
	BackingFiles int               `json:"backing_files"`         // registered with the kernel

	Takeover       string `json:"takeover,omitempty"`        // socket at which a takeover begins, in mode embedded
	TakeoverReason string `json:"takeover_reason,omitempty"` // why there can be none
	EndsWith       int    `json:"ends_with,omitempty"`       // the kvfs run that made the mount, and with which it ends
}

type statusTier struct {
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

type statusGroup struct {
	Name       string `json:"name"`
	Pinned     bool   `json:"pinned"`
	QuotaBytes int64  `json:"quota_bytes"`
	UsedBytes  int64  `json:"used_bytes"`
	BlockBytes int64  `json:"block_bytes"` // configured or learned; 0: not known yet
}

type statusMemoryDir struct {
	Dir       string `json:"dir"`
	Adoptable bool   `json:"adoptable"`           // a crash of the daemon loses no committed block
	Discarded string `json:"discarded,omitempty"` // why this start could not adopt what it found
}

type statusProcess struct {
	HeapBytes  uint64 `json:"heap_bytes"` // live objects, after a collection made for this answer
	IndexBytes int64  `json:"index_bytes"`
	Goroutines int    `json:"goroutines"`
	Names      int64  `json:"names"`
	Writing    int64  `json:"writing"`
}

// status makes the text of .kvfs/status, and of an owner that of its socket.
func (d *daemon) status() []byte {
	if d.owner != nil {
		return d.owner.Status()
	}
	doc := d.document()
	if s := d.serving.Load(); s != nil {
		doc.Mount = mountedStatus(s)
		doc.Mount.Dir, doc.Mount.Mode, doc.Mount.PID, doc.Mount.Epoch = d.dir, config.ModeEmbedded, os.Getpid(), s.Epoch()
		doc.Mount.Takeover, doc.Mount.TakeoverReason = d.takeover()
		doc.Mount.EndsWith = d.endsWith
	}
	return doc.text()
}

// mountedStatus says what a mount says of itself.
func mountedStatus(s *fs.Server) statusMount {
	return statusMount{
		State: "serving", OwnerPID: os.Getpid(), ReadPath: s.ReadPath(), WritePath: s.WritePath(), PathReason: s.PathReason(), Tested: s.Tested(),
		Ops: s.Ops(), BackingFiles: s.Backings(),
	}
}

// fullShown is how long status tells that memory was full of open files.
const fullShown = 10 * time.Minute

// document says all but which mount it is about.
func (d *daemon) document() *statusDocument {
	st := d.engine.Stats()
	ms := d.memory.Status()
	doc := &statusDocument{
		Version: version, PID: os.Getpid(), UptimeSeconds: time.Since(d.started).Seconds(),
		Tiers: []statusTier{{
			Name: "memory", Type: "memory", State: "online", CapacityBytes: st.CapacityBytes, UsedBytes: st.UsedBytes,
			PinnedBytes: st.PinnedBytes, Blocks: st.Blocks, Policy: d.cfg.Memory.Policy,
		}},
		Counters: st.Counters, Summary: st.Summary, Secondaries: st.Secondaries, Cluster: d.peers.status(&st.Summary), Events: d.surface.status(),
		Memory: statusMemoryDir{Dir: ms.Dir, Adoptable: ms.Adoptable, Discarded: ms.Discarded},
		Process: statusProcess{
			HeapBytes: liveHeap(), IndexBytes: st.IndexBytes, Goroutines: runtime.NumGoroutine(),
			Names: st.Names, Writing: st.Writing,
		},
	}
	if ago := time.Since(st.FullAt); !st.FullAt.IsZero() && ago < fullShown {
		doc.Tiers[0].Reason = fmt.Sprintf("full of %s %v ago", st.FullOf, ago.Round(time.Second))
	}
	for _, s := range st.Secondaries {
		kind, policy := d.cfg.TypeOf(s.Name), ""
		if kind == config.TierDisk {
			policy = d.cfg.Disk.Policy
		}
		doc.Tiers = append(doc.Tiers, statusTier{
			Name: s.Name, Type: kind, State: s.State, Reason: s.Reason, CapacityBytes: s.CapacityBytes,
			UsedBytes: s.UsedBytes, PinnedBytes: s.PinnedBytes, Blocks: s.Blocks, Policy: policy,
		})
	}
	for _, g := range d.engine.Groups() {
		doc.Groups = append(doc.Groups, statusGroup{string(g.Name), g.Pinned, g.QuotaBytes, g.UsedBytes, g.BlockBytes})
	}
	return doc
}

func (doc *statusDocument) text() []byte {
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return []byte("{}\n") // a name that is no UTF-8 is replaced, so this cannot be
	}
	return append(text, '\n')
}

// liveHeap returns the bytes that the last collection found reachable.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
