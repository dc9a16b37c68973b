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
