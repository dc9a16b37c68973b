package status

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
)

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
			HeapBytes: liveHeap(), IndexBytes: st.IndexBytes, Goroutines: runtime.NumGoroutine(),
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

// liveHeap returns the bytes that the last collection found reachable.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
