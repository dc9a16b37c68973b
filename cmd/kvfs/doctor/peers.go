package doctor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// peerChecks are about the other nodes of a mount.
func peerChecks() []Check {
	return []Check{
		{Name: "peers", Run: needCluster(checkPeers)},
		{Name: "versions of peers", Run: needCluster(checkVersions)},
		{Name: "settings of peers", Run: needCluster(checkSettings)},
		{Name: "clocks of peers", Run: needStatus(checkClocks)},
		{Name: "reuse", Run: needStatus(checkReuse)},
	}
}

const noPeers = "the mount has no peers: bind is not set"

// needCluster is a check of a mount with peers.
func needCluster(run func(context.Context, *Env, *status.Cluster) Result) func(context.Context, *Env) Result {
	return needStatus(func(ctx context.Context, e *Env, s *status.Document) Result {
		if s.Cluster == nil {
			return skip(noPeers)
		}
		return run(ctx, e, s.Cluster)
	})
}

// dialTimeout is the time that a peer has to accept a connection.
const dialTimeout = 3 * time.Second

func checkPeers(ctx context.Context, e *Env, c *status.Cluster) Result {
	var others []*cluster.Member
	for i := range c.Members {
		if m := &c.Members[i]; !m.Self && m.State != "left" {
			others = append(others, m)
		}
	}
	if len(others) == 0 {
		return warn("kvfs members MOUNT; see join", "the mount has joined no other node")
	}
	faults := make([]string, len(others))
	var dials sync.WaitGroup
	for i, m := range others {
		dials.Go(func() { faults[i] = e.reach(ctx, m) })
	}
	dials.Wait()
	faults = slices.DeleteFunc(faults, func(s string) bool { return s == "" })
	if len(faults) > 0 {
		return fail("kvfs members MOUNT; see docs/cluster.md: Look and find out", "%d of %d peers are not well: %s", len(faults), len(others), strings.Join(faults, "; "))
	}
	return ok("all %d peers are alive and accept connections", len(others))
}

// reach returns why a peer is not well, or "".
func (e *Env) reach(ctx context.Context, m *cluster.Member) string {
	if m.State != "alive" {
		return fmt.Sprintf("%s is %s", m.Name, strings.TrimSpace(m.State+" "+m.Reason))
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for _, addr := range []string{m.ControlAddr, m.BulkAddr} {
		if addr == "" {
			continue
		}
		conn, err := e.Dial(ctx, "tcp", addr)
		if err != nil {
			return fmt.Sprintf("%s: %v", m.Name, err)
		}
		conn.Close()
	}
	if m.Breaker == "open" {
		return fmt.Sprintf("%s is not asked since it failed: %s", m.Name, cmp.Or(m.LastError, "no reason known"))
	}
	return ""
}

func checkVersions(_ context.Context, _ *Env, c *status.Cluster) Result {
	versions := map[string]bool{}
	var missing []string
	for i := range c.Members {
		m := &c.Members[i]
		if m.State != "alive" {
			continue
		}
		versions[m.Version] = true
		if len(m.Missing) > 0 {
			missing = append(missing, m.Name+" lacks "+strings.Join(m.Missing, ", "))
		}
	}
	switch {
	case len(missing) > 0:
		return warn("the same version and settings on all nodes", "peers lack features of this node: %s", strings.Join(missing, "; "))
	case len(versions) > 1:
		return warn("the same version on all nodes", "the nodes have %d versions of kvfs", len(versions))
	}
	return ok("all nodes have one version of kvfs")
}

func checkSettings(_ context.Context, _ *Env, c *status.Cluster) Result {
	var differ []string
	for i := range c.Members {
		if m := &c.Members[i]; m.SettingsDiffer && m.State == "alive" {
			differ = append(differ, m.Name)
		}
	}
	if len(differ) > 0 {
		return warn("kvfs config print, on both nodes", "other groups, specs, mount.temp_patterns, mount.plain_patterns or replicas than on this node: %s", strings.Join(differ, ", "))
	}
	return ok("all nodes have the groups, specs, patterns and replicas of this one")
}

func checkClocks(_ context.Context, _ *Env, s *status.Document) Result {
	if s.Cluster == nil {
		return skip(noPeers)
	}
	var wrong, found []string
	worst := 0.0
	for i := range s.Cluster.Members {
		m := &s.Cluster.Members[i]
		if m.Self || m.State != "alive" {
			continue
		}
		off := max(0, math.Abs(m.ClockAhead)-m.ClockError) // that is certain
		worst = max(worst, off)
		if off > status.ClockLimit.Seconds() {
			wrong = append(wrong, fmt.Sprintf("%s %+.1f s", m.Name, m.ClockAhead))
		}
	}
	if len(wrong) > 0 {
		found = append(found, fmt.Sprintf("clocks are ahead of (+) or behind (-) this node's: %s; times to live end that much early or late, and the node ahead wins conflicts of writes", strings.Join(wrong, ", ")))
	}
	if ahead := s.Ahead(); ahead != "" {
		found = append(found, ahead+": a clock is wrong, or was; blocks have times in the future, and nodes that do not know these versions lose conflicts of writes. It ends when the clock gets there")
	}
	if len(found) > 0 {
		return warn("chronyc tracking, on all nodes; see docs/cluster.md: Clocks", "%s", strings.Join(found, "; "))
	}
	return ok("the clocks of peers are within %.1f s of this node's", max(worst, 0.1))
}

// manyStored is the number of blocks of a group after which at least one hit is expected.
const manyStored = 1000

func checkReuse(_ context.Context, _ *Env, s *status.Document) Result {
	var stored, found uint64
	var never []string
	for i := range s.Groups {
		g := &s.Groups[i]
		stored, found = stored+g.Stored, found+g.Found
		if g.Found == 0 && g.Stored >= manyStored {
			never = append(never, fmt.Sprintf("%s (%d blocks)", cmp.Or(show.Text(g.Name), "the empty group"), g.Stored))
		}
	}
	switch {
	case len(never) > 0:
		return warn("PYTHONHASHSEED set to one number for all engines, and the same model, block size and type of the KV cache in all",
			"groups that store blocks of which none was ever found: %s. Probably each engine computes other names for the same tokens", strings.Join(never, ", "))
	case found > 0:
		return ok("%d blocks were stored, and %d look-ups and opens found one", stored, found)
	}
	return skip("only %d blocks were stored so far", stored)
}
