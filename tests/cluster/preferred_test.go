package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// BenchmarkPreferred measures the gain of a preferred segment for a node that reads the blocks of another one, with
// -benchtime 1x. Of 64 blocks of 256 KiB the reader has all before it reads them, or about half without (E11).
func BenchmarkPreferred(b *testing.B) {
	for name, flags := range map[string][]string{"none": {"--replicas", "1"}, "reader": {"--replicas", "1", "--preferred-segment", harness.NodeName(1)}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c := harness.NewCluster(b, harness.ClusterOptions{PeerTimeout: patient, Flags: func(int) []string { return flags }})
				c.WaitQuiet()
				writer, reader := c.Nodes[0], c.Nodes[1]
				const blocks, size = 64, 256 << 10
				if err := os.Mkdir(writer.Path("g"), 0o755); err != nil {
					b.Fatal(err)
				}
				for i := range blocks {
					if err := os.WriteFile(writer.Path("g", fmt.Sprint(i)), make([]byte, size), 0o644); err != nil {
						b.Fatal(err)
					}
				}
				harness.Poll(b, "all are copied", func() bool {
					return copies(writer)+copies(reader)+copies(c.Nodes[2]) == 2*blocks
				})
				c.WaitQuiet()
				began := time.Now()
				for i := range blocks {
					if _, err := os.ReadFile(reader.Path("g", fmt.Sprint(i))); err != nil {
						b.Fatal(err)
					}
				}
				took := time.Since(began)
				b.ReportMetric(float64(took.Microseconds())/blocks, "us/block")
				b.ReportMetric(localReads(b, reader), "local-read-ratio")
			}
		})
	}
}

// localReads returns the share of its reads for which a node asked no peer.
func localReads(b *testing.B, n *harness.Node) float64 {
	b.Helper()
	var s struct {
		Cluster struct {
			LocalReadRatio float64 `json:"local_read_ratio"`
		} `json:"cluster"`
	}
	text, err := os.ReadFile(n.Path(".kvfs", "status"))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		b.Fatal(err)
	}
	return s.Cluster.LocalReadRatio
}
