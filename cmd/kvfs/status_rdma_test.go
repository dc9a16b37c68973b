package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/nic"
)

// TestStatusOfRDMA pins the lines of RDMA, and that a daemon that knows none has none.
func TestStatusOfRDMA(t *testing.T) {
	members := []cluster.Member{
		{Name: "a", Self: true, State: "alive"}, {Name: "b", State: "alive", Path: "rdma"},
		{Name: "c", State: "alive", Path: "tcp", PathReason: "no RDMA there"}, {Name: "d", State: "left"},
		{Name: "e", State: "alive", Path: "rdma", PathReason: "rail 1"},
	}
	plan := &nic.Plan{Rails: []nic.Rail{{Device: nic.Device{Name: "mlx5_1"}, GPUs: []int{0, 3}, Path: "PIX"}, {Device: nic.Device{Name: "mlx5_0"}}}}
	for _, tc := range []struct {
		rdma *rails.State
		want string // without the other lines
	}{
		{nil, ""},
		{&rails.State{Transport: "tcp"}, ""},
		{&rails.State{Transport: "auto", Error: "no such RDMA device"}, "  rdma      none: no such RDMA device\n"},
		{&rails.State{Transport: "auto", Provider: "libfabric 2.1 verbs", Plan: plan, Stats: &fabric.Stats{ReadBytes: 3 << 20, Stalls: 1}},
			"  rdma      libfabric 2.1 verbs, 2 of 3 peers, 3.0 MiB read (stalls 1)\n  rails     mlx5_1 for GPU 0, 3 (PIX); mlx5_0\n  not rdma  peer c: no RDMA there\n  in part   peer e: rail 1\n"},
	} {
		text, err := json.Marshal(map[string]any{"cluster": map[string]any{"members": members, "rdma": tc.rdma}})
		if err != nil {
			t.Fatal(err)
		}
		_, out, _ := runCLI("status", statusDir(t, string(text)))
		var got string
		for line := range strings.Lines(out) {
			for _, begin := range []string{"  rdma ", "  rails ", "  not rdma ", "  in part "} {
				if strings.HasPrefix(line, begin) {
					got += line
				}
			}
		}
		if got != tc.want {
			t.Errorf("got\n%swant\n%s", got, tc.want)
		}
	}
}
