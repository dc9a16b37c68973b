package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// owned makes a cluster of six nodes of which each knows about half of what the others have.
func owned(opts harness.ClusterOptions) harness.ClusterOptions {
	opts.Nodes, opts.Owned, opts.Flags = 6, true, withFlags(opts.Flags, "--peer-locations", "owned")
	return opts
}

// withFlags adds flags to those of each node.
func withFlags(flags func(node int) []string, more ...string) func(node int) []string {
	return func(node int) (all []string) {
		if flags != nil {
			all = flags(node)
		}
		return append(all, more...)
	}
}

// long skips a test in a short run: it does with owned locations what another one does without.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		harness.Skip(t, "a short run does this with all locations only")
	}
}

// share returns which part of all keys a node follows.
func share(n *harness.Node) float64 {
	return n.Status().Raw["cluster"].(map[string]any)["node"].(map[string]any)["followed_share"].(float64)
}

// waitOwned waits until the nodes follow only what they own, among so many members.
func (w *world) waitOwned(members int, nodes ...*harness.Node) {
	w.t.Helper()
	for _, n := range nodes {
		harness.Poll(w.t, n.Name+" follows its share", func() bool {
			got, want := share(n), 3/float64(members)
			return got > want-0.03 && got < want+0.03
		})
	}
}

// TestOwned shows six nodes of which each knows a share: on every node all blocks are found and read, by stat, read and query;
// names of nobody are absent; removals, renames and new versions are seen; and so it stays when a node is killed and comes back.
func TestOwned(t *testing.T) {
	blocks := few(60, 24) // of each node
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, owned(harness.ClusterOptions{PeerTimeout: patient}))
	w.waitOwned(6, w.Nodes...)
	version := map[string]uint64{}
	at := map[string]*harness.Node{}
	name := func(n *harness.Node, i int) string { return block("d%d/of-%s-%d", i%3, n.Name, i) }
	for d := range 3 {
		if err := os.Mkdir(w.Nodes[d].Path(block("d%d", d)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range w.Nodes {
		for d := range 3 {
			harness.Poll(t, "the directory is there", func() bool { return w.exists(n, block("d%d", d)) })
		}
		for i := range blocks {
			version[name(n, i)], at[name(n, i)] = w.mustWrite(n, name(n, i), 1000+i*100), n
		}
	}
	all := func(nodes ...*harness.Node) {
		t.Helper()
		for _, n := range nodes {
			for path, v := range version {
				if random.IntN(few(4, 8)) == 0 {
					w.wantVersion(n, path, v)
				}
			}
			for i := range 20 {
				if _, err := os.Lstat(n.Path(block("d%d/nobody-%d", i%3, i))); !errors.Is(err, unix.ENOENT) {
					t.Fatalf("%s: stat of what nobody has: %v", n.Name, err)
				}
			}
		}
	}
	all(w.Nodes...)
	w.queryAll(w.Nodes[1], version)

	for i := range blocks / 4 {
		n := w.Nodes[i%6]
		path := name(w.Nodes[(i+1)%6], i)
		switch i % 3 {
		case 0:
			w.wantVersion(n, path, version[path])
			w.remove(n, path)
			delete(version, path)
			w.wantEverywhere(path, 0)
		case 1:
			version[path] = w.mustWrite(n, path, 5000)
			w.wantEverywhere(path, version[path])
		case 2:
			w.wantVersion(n, path, version[path]) // it is in this node's memory now
			w.rename(n, path, path+"-moved")
			version[path+"-moved"] = version[path]
			delete(version, path)
			w.wantEverywhere(path, 0)
			w.wantEverywhere(path+"-moved", version[path+"-moved"])
		}
	}

	w.Nodes[5].Kill()
	w.waitOwned(5, w.Nodes[:5]...)
	for path := range version {
		if found := w.mustRead(w.Nodes[0], path); found == 0 && at[path] == w.Nodes[5] {
			delete(version, path) // it was in the memory of the killed node alone
		}
	}
	all(w.Nodes[:5]...)
	w.Nodes[5].Restart()
	w.waitOwned(6, w.Nodes...)
	all(w.Nodes...)
}

// queryAll asks .kvfs/query for many names, of which all of want and no others are there.
func (w *world) queryAll(n *harness.Node, want map[string]uint64) {
	w.t.Helper()
	keys, absent := []string{}, 0
	for path := range want {
		keys = append(keys, path)
	}
	for ; absent < 100; absent++ {
		keys = append(keys, block("d0/no-%d", absent))
	}
	list := ""
	for i, key := range keys {
		if i > 0 {
			list += ", "
		}
		list += fmt.Sprintf("%q", key)
	}
	harness.Poll(w.t, "all are found at once", func() bool {
		var answer struct{ Hits, Misses int }
		if err := w.ask(n, `{"op": "exists", "keys": [`+list+`]}`, &answer); err != nil || answer.Hits > len(want) {
			w.t.Fatalf("%+v, %v, %d are there", answer, err, len(want))
		}
		return answer.Hits == len(want) && answer.Misses == absent
	})
}

// ask writes a request to the control directory of a node and reads its answer.
func (w *world) ask(n *harness.Node, request string, answer any) error {
	f, err := os.OpenFile(n.Path(".kvfs", "query"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(request); err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}
