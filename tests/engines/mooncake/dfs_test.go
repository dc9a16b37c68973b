package mooncake

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const shardBytes = 1 << 20

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
