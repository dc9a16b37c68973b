package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestStrangerNodes shows that a node with other gossip keys, with certificates of another CA, or with none joins no
// node, gets no block and gives none. The nodes count it, and the cluster goes on.
func TestStrangerNodes(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Secure: true, Spare: 1})
	others := harness.NewClusterKeys(t)
	const spare = 3
	name := harness.NodeName(spare)
	own, foreign := w.Keys.Flags(name), others.Flags(name)
	for i, c := range []struct {
		name  string
		flags []string
	}{
		{"other gossip keys", slices.Concat(foreign[:2], own[2:])},
		{"other CA", slices.Concat(own[:2], foreign[2:])},
		{"other gossip keys and CA", foreign},
		{"no keys", []string{"--insecure"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			w.stranger(spare, block("secret-%d", i), c.flags)
		})
	}
	w.t = t
	w.agree()
}

func (w *world) stranger(spare int, name string, flags []string) {
	t := w.t
	t.Helper()
	version := w.mustWrite(w.Nodes[0], name, 100_000)
	w.wantEverywhere(name, version)
	rejected := func() (sum uint64) {
		for _, n := range w.Nodes {
			sum += n.Rejected()
		}
		return sum
	}
	before := rejected()
	opts := w.Options(spare)
	opts.Flags = slices.Concat(w.JoinFlags(spare)[:10], flags) // What follows these are keys.
	stranger := &harness.Node{Name: harness.NodeName(spare), Index: spare}
	w.Net.In(spare, func() { stranger.Daemon = harness.Mount(t, opts) })
	harness.Poll(t, "strangers are counted", func() bool { return rejected() > before })
	must(t, os.MkdirAll(stranger.Path(group), 0o755))
	own := block("stranger-of-%s", filepath.Base(name))
	must(t, os.WriteFile(stranger.Path(own), content(own, w.begin(own), 5000), 0o644))
	if w.exists(stranger, name) {
		t.Error("a stranger sees a block of the cluster")
	}
	if b, err := os.ReadFile(stranger.Path(name)); err == nil {
		t.Errorf("a stranger reads %d bytes of a block of the cluster", len(b))
	}
	for _, n := range w.Nodes {
		if m := n.Member(stranger.Name); m.Feed == "following" || m.Blocks > 0 {
			t.Errorf("%s follows the stranger: %+v", n.Name, m)
		}
		if w.exists(n, own) {
			t.Errorf("%s sees a block of the stranger", n.Name)
		}
	}
	// It cannot remove what it does not see, and a block of its own by that name
	// replaces nothing.
	must(t, os.WriteFile(stranger.Path(name), []byte("not of this cluster"), 0o644))
	must(t, os.Remove(stranger.Path(name)))
	stranger.Stop()
	w.WaitJoined()
	w.wantEverywhere(name, version)
}

// TestKeyRotation shows that gossip keys can be added, used and removed, and
// certificates replaced, while the nodes run.
func TestKeyRotation(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Secure: true})
	kvfs := func(args ...string) string {
		t.Helper()
		out, errs, code := harness.Kvfs(t, args...)
		if code != 0 {
			t.Fatalf("kvfs %q: exit code %d\n%s", args, code, errs)
		}
		return strings.TrimSpace(out)
	}
	old := firstKey(t, w.Keys.Gossip)
	key := ""
	for _, step := range []string{"add", "use", "remove"} {
		switch step {
		case "add":
			key = kvfs("keys", step, w.Keys.Gossip)
		case "use":
			kvfs("keys", step, w.Keys.Gossip, key)
		case "remove":
			kvfs("keys", step, w.Keys.Gossip, old)
		}
		// A node that starts now has the new state; the others take it over in a moment.
		w.Nodes[2].Restart()
		w.WaitJoined()
	}
	if got := firstKey(t, w.Keys.Gossip); got != key {
		t.Errorf("first key of the file: %q, want %q", got, key)
	}
	n := w.Nodes[1]
	before := servedSerial(t, w, n)
	cert, certKey := w.Keys.Files(n.Name)
	for _, file := range []string{cert, certKey} {
		must(t, os.Remove(file))
	}
	w.Keys.Flags(n.Name) // Makes new ones.
	harness.Poll(t, "the new certificate is served", func() bool { return servedSerial(t, w, n) != before })
	name := block("rotated")
	w.wantEverywhere(name, w.mustWrite(n, name, 100_000))
	w.Nodes[0].Restart()
	w.WaitJoined()
	w.agree()
}

// firstKey returns the key that encrypts.
func firstKey(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line
		}
	}
	t.Fatalf("%s: no key", file)
	return ""
}
