package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// sockets are the flags of a node that does with sockets what RDMA does with network cards.
var sockets = []string{"--rdma-provider", "tcp"}

// bySockets is that of each node.
func bySockets(int) []string { return sockets }

// newRDMAWorld is newWorld with nodes that read each other's memory. It is skipped without
// the library.
func newRDMAWorld(t *testing.T, opts harness.ClusterOptions) *world {
	t.Helper()
	harness.KvfsOnly(t, "no peers")
	harness.NeedFuse(t)
	if _, errs, code := harness.Kvfs(t, append([]string{"doctor", "rdma"}, sockets...)...); code != 0 {
		if strings.Contains(errs, "RDMA is not available") {
			harness.Skip(t, "%s", strings.TrimSpace(errs))
		}
		t.Fatalf("kvfs doctor rdma: exit code %d: %s", code, errs)
	}
	return newWorld(t, opts)
}

// waitPath waits until blocks come to a node from another one by that path.
func (w *world) waitPath(n, from *harness.Node, path string) {
	w.t.Helper()
	var m harness.Member
	defer func() {
		if m.Path != path {
			w.t.Logf("%s from %s: %q (%s)\n%s", n.Name, from.Name, m.Path, m.PathReason, n.LastLog())
		}
	}()
	harness.Poll(w.t, fmt.Sprintf("%s reads from %s by %s", n.Name, from.Name, path), func() bool {
		m = n.Member(from.Name)
		return m.Path == path
	})
}

// readRDMA checks that a block of that size comes whole to a node from another one by RDMA, with all its bytes. On a machine
// that is busy with other things a read can stall, and TCP takes over: then it tries again with another block.
func (w *world) readRDMA(n, from *harness.Node, size int) {
	w.t.Helper()
	for try := range 10 {
		before := n.Cluster().Node
		name := block("rdma-%d-%d", size, try)
		w.wantVersion(n, name, w.mustWrite(from, name, size))
		after := n.Cluster().Node
		fetched, bytes := after.FabricFetches-before.FabricFetches, after.FabricBytes-before.FabricBytes
		if after.FabricFallbacks > before.FabricFallbacks && strings.Contains(n.LastLog(), "stalled: ") {
			w.waitPath(n, from, "rdma")
			continue
		}
		if fetched != 1 || bytes != uint64(size) {
			w.t.Errorf("a block of %d bytes: %d blocks and %d bytes by RDMA, want one and all", size, fetched, bytes)
		}
		return
	}
	w.t.Errorf("10 blocks of %d bytes: all reads by RDMA stalled", size)
}

// TestRDMA shows that blocks of any size come whole out of a peer's memory, by RDMA alone, with
// certificates and without, that status and doctor say so, and that what was evicted is not
// pinned any more (A8).
func TestRDMA(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("secure %v", secure), func(t *testing.T) {
			w := newRDMAWorld(t, harness.ClusterOptions{Nodes: 2, Secure: secure, PeerTimeout: patient, Flags: bySockets})
			a, b := w.Nodes[0], w.Nodes[1]
			w.waitPath(a, b, "rdma")
			w.waitPath(b, a, "rdma")
			var sum uint64
			for _, size := range []int{headerBytes, 4095, 4096, 4097, 64*kib + 1, mib, 17*mib + 3} {
				w.readRDMA(b, a, size)
				sum += uint64(size)
			}
			after := b.Cluster()
			if s := after.RDMA; s.Transport != "auto" || !strings.HasPrefix(s.Provider, "libfabric ") || s.Error != "" || s.Stats == nil || s.Stats.ReadBytes < int64(sum) {
				t.Errorf("status: %+v", s)
			}
			if log := b.LastLog(); strings.Count(log, "RDMA: reading the memory of peers") != 1 || secure != strings.Contains(log, "without encryption") {
				t.Errorf("log:\n%s", log)
			}
			if out, errs, code := harness.Kvfs(t, "doctor", "rdma", b.Dir); code != 0 || !containsLine(out, a.Name, "rdma") {
				t.Errorf("doctor: exit code %d\n%s%s", code, out, errs)
			}
			w.wantUnpinned(a)
			w.agree()
		})
	}
}

// wantUnpinned evicts all of a node's blocks once no process reads them, after which none is
// registered: at once, not when the cache grows too old.
func (w *world) wantUnpinned(n *harness.Node) {
	w.t.Helper()
	const probes, trial = 1, mib // one for as long as the node runs, one of a trial at start
	harness.Poll(w.t, "the leases of "+n.Name+" have ended", func() bool {
		s := n.Cluster().RDMA.Stats
		return s != nil && s.Regions == probes
	})
	if _, errs, code := harness.Kvfs(w.t, "evict", "--force", "--tier", "memory", n.Path(group)); code != 0 {
		w.t.Fatalf("evict: %s", errs)
	}
	if s := n.Cluster().RDMA.Stats; s.CachedBytes > trial {
		w.t.Errorf("%d bytes of evicted blocks are still registered: %+v", s.CachedBytes, s)
	}
}

// TestRDMAWithout shows a node without RDMA in a cluster with RDMA. Blocks come by TCP, both ways, and the other
// nodes log that once. A node with peer.transport rdma gets none of its blocks.
func TestRDMAWithout(t *testing.T) {
	w := newRDMAWorld(t, harness.ClusterOptions{PeerTimeout: patient, Flags: func(i int) []string {
		return [][]string{sockets, {"--peer-transport", "tcp"}, append([]string{"--peer-transport", "rdma"}, sockets...)}[i]
	}})
	a, without, only := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	w.waitPath(a, only, "rdma")
	w.waitPath(only, a, "rdma")
	w.waitPath(a, without, "tcp")
	theirs, ours := block("theirs"), block("ours")
	version := w.mustWrite(without, theirs, 3*mib)
	w.wantVersion(a, ours, w.mustWrite(a, ours, 3*mib))
	harness.Poll(t, "the block is known", func() bool { return w.exists(only, theirs) })
	if got := w.mustRead(only, theirs); got != 0 {
		t.Errorf("%s has read version %d without RDMA", only.Name, got)
	}
	w.wantVersion(a, theirs, version)
	w.wantVersion(only, theirs, version) // From the copy of a.
	w.wantVersion(without, ours, w.mustRead(a, ours))
	if m := a.Member(without.Name); m.PathReason == "" || len(m.Missing) != 0 {
		t.Errorf("member: %+v", m)
	}
	said := func() (times int) {
		for line := range strings.Lines(a.LastLog()) {
			if containsLine(line, "peer without RDMA", without.Name) {
				times++
			}
		}
		return times
	}
	harness.Poll(t, "it is said", func() bool { return said() > 0 })
	if n := said(); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, a.LastLog())
	}
	if out, _, code := harness.Kvfs(t, "doctor", "rdma", a.Dir); code != 1 || !containsLine(out, without.Name, "tcp") {
		t.Errorf("doctor: exit code %d\n%s", code, out)
	}
}

// TestRDMAHolderLost lets each of the faults happen to the holder in the middle of a one-sided read. Readers get the
// bytes of the other holder if there is one, else no such file, in time. When the holder is back, all is well, by
// RDMA again.
func TestRDMAHolderLost(t *testing.T) {
	for _, copied := range []bool{true, false} {
		w := newRDMAWorld(t, harness.ClusterOptions{
			Options: harness.Options{MemorySize: "192MiB"}, PeerTimeout: loseTimeout, Flags: bySockets,
		})
		a, c := w.Nodes[0], w.Nodes[2]
		for i, f := range faults {
			t.Run(fmt.Sprintf("%s, another holder %v", f.name, copied), func(t *testing.T) {
				w.t = t
				w.waitPath(c, a, "rdma")
				w.lose(block("rdma-lost-%v-%d", copied, i), copied, f.do, f.undo)
				w.waitPath(c, a, "rdma")
			})
		}
		w.t = t
		w.agree()
	}
}

// TestRDMAEvictedMeanwhile shows that a reader of a holder that evicts the block meanwhile gets a miss or the block
// from another holder. It never gets an error or other bytes, such as those of the next block in the same place.
func TestRDMAEvictedMeanwhile(t *testing.T) {
	newRDMAWorld(t, harness.ClusterOptions{Flags: littleMemory(sockets)}).evictMeanwhile()
}

// TestRDMARestart shows that a holder has other keys after a restart: a read with the old keys returns only bytes
// that were committed under the name.
func TestRDMARestart(t *testing.T) {
	w := newRDMAWorld(t, harness.ClusterOptions{Nodes: 2, Flags: bySockets})
	a, b := w.Nodes[0], w.Nodes[1]
	for i := range rounds(t, 5, 2) {
		w.waitPath(b, a, "rdma")
		name := block("restart-%d", i)
		w.wantVersion(b, name, w.mustWrite(a, name, mib))
		if i%2 == 0 {
			a.Kill()
		}
		a.Restart()
		w.WaitJoined()
	}
	w.waitPath(b, a, "rdma")
	w.agree()
}

// TestRDMARefused shows that a node that must have RDMA and has none ends with one error, that
// an empty entry is refused before, and that without the must it is one warning.
func TestRDMARefused(t *testing.T) {
	harness.KvfsOnly(t, "no peers")
	flags := []string{"--bind", "127.0.0.1:0", "--rdma-devices", "no_such_card0"}
	for _, tc := range []struct {
		more []string
		code int
		want string
	}{
		{[]string{"--peer-transport", "rdma"}, 1, "peer.transport rdma: "},
		{[]string{"--peer-transport", "rdma", "--rdma-devices", "a,,b"}, 3, "contains an empty RDMA device entry"},
		{[]string{"--rdma-policy", "gpu-index"}, 3, "rdma.policy: unknown value"},
	} {
		d := harness.Mount(t, harness.Options{ExpectFail: true, Flags: append(flags[:len(flags):len(flags)], tc.more...)})
		var errs []string
		for line := range strings.Lines(d.LastLog()) {
			if strings.HasPrefix(line, "kvfs: ") {
				errs = append(errs, line)
			}
		}
		if len(errs) != 1 || !strings.Contains(errs[0], tc.want) || d.ExitCode != tc.code {
			t.Errorf("%q: exit code %d, want %d and %s:\n%s", tc.more, d.ExitCode, tc.code, tc.want, d.LastLog())
		}
	}
	d := harness.Mount(t, harness.Options{Flags: flags})
	if n := strings.Count(d.LastLog(), "RDMA cannot be used"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, d.LastLog())
	}
	if _, _, code := harness.Kvfs(t, "doctor", "rdma", d.Dir); code != 1 {
		t.Errorf("doctor: exit code %d", code)
	}
}

// TestRDMARails shows that blocks come whole also where one of the planned cards does not reach
// that of the peer (lo, which ends at the node itself), and that this card is named.
func TestRDMARails(t *testing.T) {
	for _, policy := range []string{"all", "affinity"} { // each read over both, or over one in turn
		t.Run(policy, func(t *testing.T) {
			w := newRDMAWorld(t, harness.ClusterOptions{Nodes: 2, PeerTimeout: patient, Flags: func(int) []string {
				return append(sockets[:len(sockets):len(sockets)], "--rdma-policy", policy, "--rdma-devices", "eth0,lo")
			}})
			a, b := w.Nodes[0], w.Nodes[1]
			harness.Poll(t, "the card is named", func() bool {
				m := b.Member(a.Name)
				return m.Path == "rdma" && strings.Contains(m.PathReason, "rail 1, lo")
			})
			if out, _, code := harness.Kvfs(t, "doctor", "rdma", b.Dir); code != 1 || !containsLine(out, a.Name, "rail 1, lo") {
				t.Errorf("doctor: exit code %d\n%s", code, out)
			}
			for i := range 4 {
				name := block("rails-%d", i)
				w.wantVersion(b, name, w.mustWrite(a, name, 3*mib+1))
			}
			w.agree()
		})
	}
}
