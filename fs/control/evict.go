package control

import (
	"context"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers"
)

// EvictRequest is what is written to .kvfs/evict, as JSON.
type EvictRequest struct {
	Tier  string   `json:"tier"`            // "memory", or a tier below it: "disk"
	All   bool     `json:"all,omitempty"`   // every block of the tier, without Paths
	Paths []string `json:"paths,omitempty"` // below the mount; a directory means all below it
	Force bool     `json:"force,omitempty"` // also blocks that no other tier holds: they are lost
}

// auditedPaths is how many paths of a request are logged.
const auditedPaths = 16

// EvictAnswer is the JSON that is read back. The answer to a failed request is {"error":
// "why"}.
type EvictAnswer struct {
	Blocks    int64       `json:"blocks"` // evicted
	Bytes     int64       `json:"bytes"`
	KeptTotal int64       `json:"kept_total"` // number of blocks that were not evicted
	Kept      []EvictKept `json:"kept"`       // the first of them
}

// EvictKept is a block that was not evicted, or a path without a block.
type EvictKept struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Evictor is the part of the engine that .kvfs/evict needs.
type Evictor interface {
	EvictFrom(context.Context, tiers.EvictRequest) (tiers.EvictReply, error)
}

// Evict returns the file .kvfs/evict. Before it answers, flush waits until the kernel has
// forgotten the names of the evicted blocks. Each request that evicts is logged to audit.
func Evict(engine Evictor, flush func(context.Context), audit *zap.Logger) File {
	return File{Name: "evict", Open: Same(requestJSON(func(ctx context.Context, q EvictRequest) (EvictAnswer, error) {
		reply, err := engine.EvictFrom(ctx, tiers.EvictRequest(q))
		flush(ctx)
		first := q.Paths[:min(len(q.Paths), auditedPaths)]
		Audit(ctx, audit, "evict", zap.String("tier", q.Tier), zap.Bool("all", q.All), zap.Bool("force", q.Force), zap.Strings("paths", first),
			zap.Int("paths_total", len(q.Paths)), zap.Int64("blocks", reply.Blocks), zap.Int64("bytes", reply.Bytes), zap.Error(err))
		if err != nil {
			return EvictAnswer{}, err
		}
		a := EvictAnswer{Blocks: reply.Blocks, Bytes: reply.Bytes, KeptTotal: reply.KeptN, Kept: []EvictKept{}}
		for _, kept := range reply.Kept {
			a.Kept = append(a.Kept, EvictKept{kept.Path, kept.Reason.String()})
		}
		return a, nil
	}))}
}
