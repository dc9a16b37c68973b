package mooncake

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const (
	shardBytes = 1 << 20
	rounds     = 8  // of two writers
	looks      = 50 // at another node, in a state that must not show there
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOneNode has two clients on one mount share shards of a pinned group: each finds what the other has written, at
// once and while both have the shards open.
func TestOneNode(t *testing.T) {
	harness.KvfsOnly(t, "pinned groups")
	d := harness.Mount(t, harness.Options{Config: "groups: {mooncake: {pinned: true, quota: 16MiB}}"})
	root := d.Path("mooncake")
	must(t, os.Mkdir(root, 0o755))
	const shards, object = 4, 128 << 10
	var a, b [shards]client
	for i := range shards {
		must(t, preallocate(shardPath(root, i), shardBytes))
		for _, c := range []*client{&a[i], &b[i]} {
			var err error
			*c, err = open(shardPath(root, i))
			must(t, err)
			defer c.file.Close()
		}
	}
	p := make([]byte, object)
	for k := range shards * shardBytes / object {
		writer, reader, off := a[k%shards], b[k%shards], int64(k/shards)*object
		if k%3 == 0 {
			writer, reader = reader, writer
		}
		replay.Fill(p, fmt.Sprint(k))
		must(t, writer.put(off, p))
		clear(p)
		must(t, errors.Join(reader.get(off, p), replay.Check(p, fmt.Sprint(k))))
	}
}

// TestTwoNodes has clients on two nodes. While a client on the first writes a shard in place, the second has the version
// that was committed last, whole, or no such file: after a close, after an fsync, and as the first version of all.
func TestTwoNodes(t *testing.T) {
	for name, opts := range map[string]harness.ClusterOptions{
		"memory":   {},
		"SSD":      {Options: harness.Options{Disk: "128MiB"}},
		"replicas": {Options: harness.Options{Flags: []string{"--replicas", "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			opts.Nodes = 2
			opts.Options.Config = "groups: {pinned: {pinned: true, quota: 16MiB}}"
			n := &nodes{t: t, cluster: harness.NewCluster(t, opts), dir: "mooncake"}
			for _, node := range n.cluster.Nodes {
				for _, dir := range []string{"mooncake", "pinned"} {
					must(t, os.MkdirAll(node.Path(dir), 0o755))
				}
			}
			t.Run("first version", n.first)
			t.Run("not read before", func(t *testing.T) { n.inPlace(t, 1, false) })
			t.Run("read before", func(t *testing.T) { n.inPlace(t, 2, true) })
			t.Run("fsync", n.fsync)
			t.Run("both write", n.both)
			t.Run("private names", n.private)
		})
	}
}

// nodes are two nodes and a directory of shards.
type nodes struct {
	t       *testing.T
	cluster *harness.Cluster
	dir     string
}

func (n *nodes) path(node, shard int) string {
	return shardPath(n.cluster.Nodes[node].Path(n.dir), shard)
}

// write fills a part of a shard with what a version has there.
func write(t *testing.T, c client, version string, from, to int) {
	t.Helper()
	p := make([]byte, shardBytes)
	if version != "" {
		replay.Fill(p, version)
	}
	must(t, c.put(int64(from), p[from:to]))
}

// look reads a shard by its name and returns which of the versions it is; "-" is ENOENT.
func look(path string, versions ...string) (string, error) {
	f, err := replay.Open(path, unix.O_RDONLY, 0)
	if errors.Is(err, unix.ENOENT) {
		return "-", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	return client{f}.look(versions...)
}

func (c client) look(versions ...string) (string, error) {
	size, err := c.file.Size()
	if err != nil || size != shardBytes {
		return "", fmt.Errorf("size %d, %v; want %d", size, err, shardBytes)
	}
	p := make([]byte, shardBytes)
	if err := c.get(0, p); err != nil {
		return "", err
	}
	for _, v := range versions {
		if err = replay.Check(p, v); err == nil {
			return v, nil
		}
	}
	return "", fmt.Errorf("no committed version, not %q: %w", versions, err)
}

// only fails unless a node has one of the versions, or no such file, all the time.
func only(t *testing.T, when, path string, versions ...string) {
	t.Helper()
	for range looks {
		got, err := look(path, versions...)
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if err != nil || got == "-" && len(versions) > 0 {
			return // a node asks the other one for seconds before it says that
		}
	}
}

// until waits until a node has a version, and fails for anything but that and the one before, or no such file.
func until(t *testing.T, path, version string, before ...string) {
	t.Helper()
	harness.Poll(t, "the other node has "+version, func() bool {
		got, err := look(path, append(before, version)...)
		if err != nil {
			t.Fatalf("until %s: %v", version, err)
		}
		return got == version
	})
}

// first makes a shard that nobody but its writer has until the close.
func (n *nodes) first(t *testing.T) {
	here, there := n.path(0, 0), n.path(1, 0)
	c, err := open(here)
	must(t, err)
	only(t, "empty and open", there)
	must(t, c.file.Truncate(shardBytes))
	only(t, "of its size and open", there)
	write(t, c, "first", 0, shardBytes/2)
	only(t, "half written", there)
	write(t, c, "first", shardBytes/2, shardBytes)
	only(t, "written and open", there)
	must(t, c.file.Close())
	until(t, there, "first")
}

// shard commits the first version of a shard on the first node.
func (n *nodes) shard(t *testing.T, shard int) (here, there string) {
	t.Helper()
	here, there = n.path(0, shard), n.path(1, shard)
	c, err := open(here)
	must(t, err)
	write(t, c, "one", 0, shardBytes)
	must(t, c.file.Close())
	return here, there
}

// inPlace rewrites a shard while the other node looks. The other node has a copy of it before, or only knows of it.
func (n *nodes) inPlace(t *testing.T, shard int, copied bool) {
	here, there := n.shard(t, shard)
	harness.Poll(t, "the shard is known", func() bool { return replay.Exists(there) })
	var held client
	if copied {
		until(t, there, "one")
		f, err := replay.Open(there, unix.O_RDONLY, 0)
		must(t, err)
		held = client{f}
		defer f.Close()
	}
	c, err := open(here)
	must(t, err)
	only(t, "open", there, "one")
	write(t, c, "two", 0, shardBytes/2)
	only(t, "half written", there, "one")
	if st, err := replay.Stat(there); err == nil && st.Size != shardBytes {
		t.Errorf("size %d on the other node", st.Size)
	}
	write(t, c, "two", shardBytes/2, shardBytes)
	only(t, "written and open", there, "one")
	must(t, c.file.Close())
	until(t, there, "two", "one")
	if copied {
		if got, err := held.look("one"); err != nil {
			t.Errorf("what the other node had open: %q, %v", got, err)
		}
	}
}

// fsync commits a version, and goes on in the same descriptor.
func (n *nodes) fsync(t *testing.T) {
	here, there := n.shard(t, 3)
	until(t, there, "one")
	c, err := open(here)
	must(t, err)
	write(t, c, "two", 0, shardBytes)
	must(t, unix.Fsync(int(c.file)))
	only(t, "synced", there, "one", "two")
	write(t, c, "three", 0, shardBytes/2)
	only(t, "written after fsync", there, "one", "two")
	must(t, c.file.Close()) // half of three
	c, err = open(here)
	must(t, err)
	write(t, c, "three", 0, shardBytes)
	must(t, c.file.Close())
	harness.Poll(t, "the other node has three", func() bool {
		got, _ := look(there, "three") // until then it may have the mixture, which was committed
		return got == "three"
	})
}

// both has clients of both nodes write one shard: the version of one of them is left, on both.
func (n *nodes) both(t *testing.T) {
	for shard := 4; shard < 4+rounds; shard++ {
		here, there := n.shard(t, shard)
		until(t, there, "one")
		a, err := open(here)
		must(t, err)
		b, err := open(there)
		must(t, err)
		write(t, a, "a", 0, shardBytes)
		write(t, b, "b", 0, shardBytes)
		must(t, a.file.Close())
		must(t, b.file.Close())
		var x, y string
		defer func() {
			if t.Failed() {
				t.Logf("shard %d: %q on the first node, %q on the second", shard, x, y)
			}
		}()
		harness.Poll(t, "both nodes have the same version", func() bool {
			x, err = look(here, "a", "b")
			must(t, err)
			y, err = look(there, "a", "b")
			must(t, err)
			return x == y && x != "-"
		})
	}
}

// private shows that plain names and files of a pinned group are of their node alone.
func (n *nodes) private(t *testing.T) {
	for _, name := range []string{"pinned/shard.data", "mooncake/shard.lock", "mooncake/shard.tmp"} {
		c, err := open(n.cluster.Nodes[0].Path(name))
		must(t, err)
		write(t, c, "one", 0, shardBytes)
		only(t, name+" open", n.cluster.Nodes[1].Path(name))
		must(t, c.file.Close())
		until(t, n.cluster.Nodes[0].Path(name), "one")
		only(t, name+" closed", n.cluster.Nodes[1].Path(name))
	}
	// What is made later is there: the other node has learned of all that was before.
	must(t, os.WriteFile(filepath.Join(n.cluster.Nodes[0].Path("mooncake"), "later"), []byte("later"), 0o644))
	harness.Poll(t, "what was made later is there", func() bool { return replay.Exists(n.cluster.Nodes[1].Path("mooncake", "later")) })
	for _, name := range []string{"pinned/shard.data", "mooncake/shard.lock", "mooncake/shard.tmp"} {
		only(t, name+" later", n.cluster.Nodes[1].Path(name))
	}
}
