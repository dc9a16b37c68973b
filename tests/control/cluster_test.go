package control

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// TestPeersPromote shows that a query with promote brings a peer's blocks over.
func TestPeersPromote(t *testing.T) {
	_, a, b := newPair(t, harness.ClusterOptions{}, "g")
	keys := keysOf("g", hashes(10))
	for _, key := range keys {
		store(t, a.Path(key), pattern(key, 10_000))
	}
	f := follow(t, b.Daemon, nil)
	c := talk(t, b.Daemon, "query")
	waitStates(t, c, strings.Repeat("p", 10), keys...)
	if got := c.exists(obj{"keys": keys, "promote": true}); got.States != strings.Repeat("p", 10) {
		t.Errorf("got %q", got.States)
	}
	f.allStored("memory", "promoted", keys...)
	wantStates(t, c, strings.Repeat("m", 10), keys...)
}

// TestPeerGone kills the node that had blocks: they are misses, and why says that the peer
// is gone; a prefetch of them ends.
func TestPeerGone(t *testing.T) {
	w, a, b := newPair(t, harness.ClusterOptions{}, "g")
	keys := keysOf("g", hashes(6))
	for _, key := range keys {
		store(t, a.Path(key), pattern(key, 10_000))
	}
	c := talk(t, b.Daemon, "query")
	waitStates(t, c, "pppppp", keys...)
	// Some are known on this node by name, others are not.
	for _, key := range keys[:3] {
		fd, err := unix.Open(b.Path(key), unix.O_PATH|unix.O_CLOEXEC, 0) // or they are forgotten again
		must(t, "open of the name", err)
		defer unix.Close(fd)
	}
	wantBytes(t, b.Path(keys[0]), pattern(keys[0], 10_000))
	a.Kill()
	b.WaitState(a, "failed", "left")
	harness.Poll(t, "what the peer had is missed", func() bool { return c.states(keys...) == "m....." })
	for i, v := range c.why(keys...)[1:3] {
		if v.Verdict != "peer_gone" {
			t.Errorf("why %d: got %+v, want peer_gone", i+1, v)
		}
	}
	if got := talk(t, b.Daemon, "prefetch").prefetch(obj{"keys": keys}); got.Results != "m....." {
		t.Errorf("prefetch: got %+v", got)
	}
	wantMiss(t, b.Path(keys[5]))
	// With the node back there are blocks again.
	a.Restart()
	w.WaitJoined()
	for i, key := range keys {
		store(t, a.Path(key), pattern(fmt.Sprint(i), 10_000))
	}
	harness.Poll(t, "they are there again", func() bool { return strings.Trim(c.states(keys...), "pm") == "" })
}

// TestPeerUnreachable cuts the line to the node that has blocks: an open is a miss, and why
// says that they could not be had, which is not that there were none.
func TestPeerUnreachable(t *testing.T) {
	w, a, b := newPair(t, harness.ClusterOptions{PeerTimeout: 2 * time.Second}, "g")
	keys := keysOf("g", hashes(3))
	for _, key := range keys {
		store(t, a.Path(key), pattern(key, 10_000))
	}
	c := talk(t, b.Daemon, "query")
	waitStates(t, c, "ppp", keys...)
	w.Net.Partition(0, 1)
	within(t, "the open gives up", func() { wantMiss(t, b.Path(keys[0])) })
	got := c.why(keys[0])[0]
	if got.Verdict != "unreachable" && got.Verdict != "peer_gone" {
		t.Errorf("why: got %+v, want unreachable or peer_gone", got)
	}
	w.Net.Heal()
	w.WaitJoined()
	harness.Poll(t, "it can be read again", func() bool {
		b, err := readBlock(b.Path(keys[0]))
		return err == nil && string(b) == string(pattern(keys[0], 10_000))
	})
	if got := c.why(keys[0])[0]; got.Verdict != "present" {
		t.Errorf("why afterwards: got %+v, want present", got)
	}
}

// TestPeerReplaced has a node replace another one's block by a newer version, and die: what
// the first one had is not there any more, and why says so.
func TestPeerReplaced(t *testing.T) {
	_, a, b := newPair(t, harness.ClusterOptions{}, "g")
	key := "g/" + hash(0)
	store(t, b.Path(key), pattern("old", 10_000))
	c, remote := talk(t, b.Daemon, "query"), talk(t, a.Daemon, "query")
	waitStates(t, remote, "p", key)
	store(t, a.Path(key), pattern("new", 10_000))
	waitStates(t, c, "p", key)
	a.Kill()
	b.WaitState(a, "failed", "left")
	waitStates(t, c, ".", key)
	// The notice that the old version is void may come before or after that of the new one.
	if got := c.why(key)[0]; got.Verdict != "replaced" && got.Verdict != "peer_gone" && (got.Verdict != "removed" || got.By != "another node") {
		t.Errorf("why: got %+v, want replaced, peer_gone, or removed by another node", got)
	}
}

// TestPeerDeadline stops the node that has a block in the middle of its life: an open gives
// up after the open deadline, long before the peer counts as lost, and works once the node
// goes on.
func TestPeerDeadline(t *testing.T) {
	_, a, b := newPair(t, harness.ClusterOptions{
		PeerTimeout: 20 * time.Second, Options: harness.Options{Flags: []string{"--promotion-open-deadline", "50ms"}},
	}, "g")
	key := "g/" + hash(0)
	store(t, a.Path(key), pattern(key, 100_000))
	c := talk(t, b.Daemon, "query")
	waitStates(t, c, "p", key)
	harness.Freeze(t, a.Pid)
	within(t, "the open gives up", func() { wantMiss(t, b.Path(key)) })
	if got := counter(t, b.Daemon, "deadline_exceeded_misses") + counter(t, b.Daemon, "deadline_predicted_misses"); got == 0 {
		t.Error("no deadline is counted")
	}
	must(t, "SIGCONT", unix.Kill(a.Pid, unix.SIGCONT))
	harness.Poll(t, "it can be read", func() bool {
		got, err := readBlock(b.Path(key))
		return err == nil && string(got) == string(pattern(key, 100_000))
	})
}
