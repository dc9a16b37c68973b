package control

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// newPair starts two nodes that follow each other, with the directories dirs on both. Where opts
// say nothing else, a peer may be slow.
func newPair(t *testing.T, opts harness.ClusterOptions, dirs ...string) (*harness.Cluster, *harness.Node, *harness.Node) {
	t.Helper()
	opts.Nodes = 2
	if opts.PeerTimeout == 0 {
		opts.PeerTimeout, opts.PeerSilence = 20*time.Second, 5*time.Second
	}
	w := harness.NewCluster(t, opts)
	for _, n := range w.Nodes {
		for _, dir := range dirs {
			must(t, "mkdir", os.MkdirAll(n.Path(dir), 0o755))
		}
	}
	return w, w.Nodes[0], w.Nodes[1]
}

// waitStates waits until blocks have these states, of which no event tells on another node.
func waitStates(t testing.TB, c *dialogue, want string, keys ...string) {
	t.Helper()
	harness.Poll(t, "the states are "+want, func() bool { return c.states(keys...) == want })
}

// TestPeers shows the control surface of a node whose peer has blocks. exists reports them and brings nothing over.
// longest_hit counts them. prefetch fetches them with the right bytes, and both nodes tell of it. why says where they
// are.
func TestPeers(t *testing.T) {
	_, a, b := newPair(t, harness.ClusterOptions{}, "g", "s")
	const n, size = 20, 64 * kib
	keys := keysOf("g", hashes(n))
	fa, fb := follow(t, a.Daemon, nil), follow(t, b.Daemon, nil)
	for _, key := range keys {
		store(t, a.Path(key), pattern(key, size))
	}
	for i := range n {
		put(t, b.Path("s", hash(i)), []byte("x")) // The window's blocks are here.
	}
	fa.allStored("memory", "", keys...)
	c := talk(t, b.Daemon, "query")
	waitStates(t, c, strings.Repeat("p", n), keys...)

	asked := append([]string{"s/" + hash(0), "g/none"}, keys...)
	want := "m." + strings.Repeat("p", n)
	for _, lease := range []bool{false, true} {
		got := c.exists(obj{"keys": asked, "lease": lease})
		if got.States != want {
			t.Errorf("lease %v: got %q, want %q", lease, got.States, want)
		}
	}
	if got := c.binaryExists(binaryRequest{group: "g", hashes: hashes(n)}); got.States != strings.Repeat("p", n) || got.Prefix != n {
		t.Errorf("in binary: got %+v", got)
	}
	hit := c.longestHit(obj{"spec": specOf([]layer{{"g", "full", 0}, {"s", "swa", 40}}), "hashes": hashes(n + 4), "fetch": true})
	if hit.Tokens != n*tokensPerBlock || len(hit.Groups[0].Fetch) != n || len(hit.Groups[1].Fetch) != 3 {
		t.Errorf("longest_hit: got %+v, want %d tokens", hit, n*tokensPerBlock)
	}
	if got := c.why(keys[0])[0]; got.Verdict != "present" || !strings.Contains(got.Tier, "peer") {
		t.Errorf("why: got %+v, want it at a peer", got)
	}

	got := talk(t, b.Daemon, "prefetch").prefetch(obj{"keys": asked, "request": "req-peers"})
	if got.Results != "m."+strings.Repeat("l", n) || got.Bytes != n*size {
		t.Errorf("prefetch: got %+v", got)
	}
	fb.allStored("memory", "promoted", keys...)
	wantStates(t, c, strings.Repeat("m", n), keys...)
	for _, key := range keys {
		wantBytes(t, b.Path(key), pattern(key, size))
	}
	// A removal on one node is told and known on the other.
	unlink(t, a.Path(keys[0]))
	fa.until("the removal", func(e event) bool { return e.Event == "removed" && e.Group+"/"+e.Hash == keys[0] })
	fb.until("the removal on the other node", func(e event) bool { return e.Event == "removed" && e.Group+"/"+e.Hash == keys[0] })
	harness.Poll(t, "the other node misses it", func() bool { return c.states(keys[0]) == "." })
	if got := c.why(keys[0])[0]; got.Verdict != "removed" || !strings.Contains(got.By, "node") {
		t.Errorf("why after the removal on the other node: got %+v", got)
	}
}
