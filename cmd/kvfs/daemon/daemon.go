package daemon

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/otlp"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
)

// daemon runs behind one mount, or, as the owner of a store, behind many.
type daemon struct {
	program Program
	dir     string // mount point; for an owner, its socket
	cfg     *config.Config
	log     *zap.Logger
	started time.Time
	memory  *mem.Store
	peers   *peers // nil without a cluster
	engine  *tiers.Engine
	surface *surface
	server  *fs.Server                // set when mounted; nil for an owner, whose guests have their own
	serving atomic.Pointer[fs.Server] // server, for requests before it is set
	owner   *owner                    // nil unless it serves the mounts of others

	traces    *otlp.Exporter   // nil: off
	page      *metrics.Page    // for Prometheus
	view      *metrics.Page    // for the web page
	latencies device.Latencies // of all mounts
	files     *fs.Descriptors  // of the clients of all mounts
	web       *web

	endsWith int                           // the kvfs run whose end unmounts the mount; 0: none
	asleep   context.CancelFunc            // ends keepAlive; nil before that runs
	offer    atomic.Pointer[handoff.Offer] // to the process that takes the mount over, or nil
	noOffer  atomic.Pointer[string]        // why there is no offer; nil: not known yet
}

// keepAlive tells systemd that the engine works, until closeTiers.
func (d *daemon) keepAlive() {
	var ctx context.Context
	ctx, d.asleep = context.WithCancel(context.Background())
	keepAlive(ctx, func() { d.engine.Stats() })
}

// adopted reports whether memory has blocks of an earlier process, which a failed start must
// not lose.
func (d *daemon) adopted() bool { return d.engine.Stats().Counters.Adopted > 0 }

// status makes the text of .kvfs/status, or of the socket of an owner.
func (d *daemon) status() []byte {
	if d.owner != nil {
		return d.owner.Status()
	}
	doc := d.document()
	if s := d.serving.Load(); s != nil {
		doc.Mount = status.Mounted(s)
		doc.Mount.Dir, doc.Mount.Mode, doc.Mount.PID, doc.Mount.Epoch = d.dir, config.ModeEmbedded, os.Getpid(), s.Epoch()
		doc.Mount.Takeover, doc.Mount.TakeoverReason = d.takeover()
		doc.Mount.EndsWith = d.endsWith
	}
	return doc.Text()
}

// document returns the status without the part about the mount.
func (d *daemon) document() *status.Document {
	from := status.Source{Version: d.program.Version, Started: d.started, Config: d.cfg, Memory: d.memory, Engine: d.engine}
	doc := from.Collect()
	doc.Cluster, doc.Events = d.peers.status(&doc.Reads), d.surface.status()
	return doc
}
