package daemon

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/otlp"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers"
)

// openTraces begins to send spans, if the configuration says to where.
func (p Program) openTraces(ctx context.Context, cfg *config.Config, log *zap.Logger) (*otlp.Exporter, error) {
	if cfg.OTLP == "" {
		return nil, nil
	}
	return otlp.Open(ctx, otlp.Options{Endpoint: cfg.OTLP, Node: cfg.NodeName, Version: p.Version, Log: log})
}

// snapshot collects what the metrics tell. No part of it waits for I/O or walks over blocks.
func (d *daemon) snapshot() *metrics.Snapshot {
	st := d.engine.Stats()
	_, loading := d.engine.Jobs()
	s := &metrics.Snapshot{
		Time: time.Now(), Version: d.program.Version, Unready: d.unready(&st),
		Engine: st, Groups: d.engine.Accounts().Groups(), Quotas: d.engine.Accounts().Quotas(), Loading: loading, Evictions: d.engine.Events().Evictions(),
		Adoptable: d.memory.Status().Adoptable, Mounts: d.mounts(), Requests: &d.latencies,
		Events: d.engine.Events().Next(), Cluster: d.peers.snapshot(),
	}
	if e := d.surface.status(); e != nil {
		s.ZMQ = e.ZMQ
	}
	return s
}

// mounts returns the mounts that the daemon answers.
func (d *daemon) mounts() (list []status.Mount) {
	if d.owner != nil {
		for _, g := range d.owner.list() {
			list = append(list, g.mount())
		}
		return list
	}
	if s := d.serving.Load(); s != nil {
		list = append(list, status.Mounted(s))
	}
	return list
}

func (p *peers) snapshot() *metrics.Cluster {
	if p == nil {
		return nil
	}
	return &metrics.Cluster{Members: p.node.Members(), Node: p.node.Stats(), Bulk: p.transport.Stats(), RDMA: p.memory.Status()}
}

// unready returns what the daemon lacks to do its work, a line for each thing. st is of the engine.
func (d *daemon) unready(st *tiers.Stats) (lines []string) {
	for i := range st.Secondaries {
		if t := &st.Secondaries[i]; t.State == "offline" {
			lines = append(lines, fmt.Sprintf("tier %s: offline: %s", t.Name, oneLine(t.Reason)))
		}
	}
	if d.peers != nil && !d.peers.node.Stats().Gossip.Joined {
		lines = append(lines, "cluster: not joined: no address of join has answered")
	}
	if d.owner != nil {
		return lines
	}
	s := d.serving.Load()
	if s == nil {
		return append(lines, "mount "+d.dir+": not serving")
	}
	select {
	case <-s.Served():
		lines = append(lines, "mount "+d.dir+": gone")
	default:
	}
	return lines
}
