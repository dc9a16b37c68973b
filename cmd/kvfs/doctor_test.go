package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/rdma/fabric"
)

// TestDoctorRDMAOfMount shows what is said of a mount: the path to each peer, with the reason
// where it is not RDMA.
func TestDoctorRDMAOfMount(t *testing.T) {
	cleanEnv(t)
	uses := &rails.State{Transport: "auto", Provider: "libfabric 2.1 verbs", Stats: &fabric.Stats{}}
	self := cluster.Member{Name: "a", Self: true, State: "alive"}
	for _, tc := range []struct {
		name    string
		rdma    *rails.State
		members []cluster.Member
		code    int
		want    []string
	}{
		{"all", uses, []cluster.Member{self, {Name: "b", State: "alive", Path: "rdma"}, {Name: "c", State: "left"}}, exit.OK, []string{"b     alive  rdma", "RDMA works."}},
		{"alone", uses, []cluster.Member{self}, exit.OK, []string{"RDMA works."}},
		{"one by TCP", uses, []cluster.Member{self, {Name: "b", State: "alive", Path: "tcp", PathReason: "probe failed: timeout"}}, exit.Runtime,
			[]string{"b     alive  tcp   probe failed: timeout", "RDMA is not used with all peers: peer b: probe failed: timeout"}},
		{"one over some cards", uses, []cluster.Member{self, {Name: "b", State: "alive", Path: "rdma", PathReason: "rail 1 does not reach it"}}, exit.Runtime,
			[]string{"b     alive  rdma  rail 1 does not reach it", "peer b: rail 1 does not reach it"}},
		{"not reached", uses, []cluster.Member{self, {Name: "b", State: "alive"}}, exit.Runtime, []string{"peer b: not reached yet"}},
		{"none", &rails.State{Transport: "auto", Error: "no such RDMA device"}, []cluster.Member{self, {Name: "b", State: "alive", Path: "tcp"}}, exit.Runtime, []string{"no such RDMA device"}},
		{"off", &rails.State{Transport: "tcp"}, nil, exit.Runtime, []string{"turned off by peer.transport tcp"}},
		{"nothing registered", &rails.State{Transport: "auto", Error: "memory cannot be registered for it: memlock"}, []cluster.Member{self}, exit.Runtime, []string{"memory cannot be registered for it: memlock"}},
		{"not open", &rails.State{Transport: "auto"}, []cluster.Member{self}, exit.Runtime, []string{"has not opened it"}},
		{"old daemon", nil, nil, exit.Runtime, []string{"knows no RDMA"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, err := json.Marshal(map[string]any{"version": "v1", "cluster": map[string]any{"members": tc.members, "rdma": tc.rdma}})
			if err != nil {
				t.Fatal(err)
			}
			code, out, errs := runCLI("doctor", "rdma", statusDir(t, string(text)))
			if code != tc.code || strings.Contains(out, "RDMA works") != (code == exit.OK) {
				t.Errorf("exit code %d, want %d\n%s", code, tc.code, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(out+errs, want) {
					t.Errorf("no %q in\n%s%s", want, out, errs)
				}
			}
		})
	}
	if code, _, errs := runCLI("doctor", "rdma", statusDir(t, `{"version": "v1"}`)); code != exit.Runtime || !strings.Contains(errs, "has no peers") {
		t.Errorf("without peers: exit code %d, %s", code, errs)
	}
	if code, _, errs := runCLI("doctor", "rdma", t.TempDir()); code != exit.NotMount {
		t.Errorf("no mount: exit code %d, %s", code, errs)
	}
	if code, _, errs := runCLI("doctor", "rdma", "--json", t.TempDir()+"/nothing"); code != exit.NotMount || !strings.Contains(errs, "is not a kvfs mount") {
		t.Errorf("no directory: exit code %d, %s", code, errs)
	}
	if code, _, errs := runCLI("doctor"); code != exit.Usage || !strings.Contains(errs, "a command is missing: one of rdma") {
		t.Errorf("alone: exit code %d, %s", code, errs)
	}
}
