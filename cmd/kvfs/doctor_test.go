package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/doctor"
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
			must(t, err)
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
}

// TestDoctor shows that kvfs doctor reports on the machine and on a mount, with the settings of its flags, and that its
// code is that of its checks.
func TestDoctor(t *testing.T) {
	cleanEnv(t)
	file := writeTemp(t, "c.yaml", "memory: {size: 1GiB}\nnode_name: a\n")
	for _, args := range [][]string{{"--config", file}, {"--config", file, statusDir(t, statusExample)}} {
		code, out, errs := runCLI(append([]string{"doctor", "--json"}, args...)...)
		var r doctor.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
		}
		got, failed := map[string]doctor.Finding{}, false
		for _, f := range r.Checks {
			got[f.Check] = f
			failed = failed || f.Verdict == doctor.Fail
		}
		if failed != (code == exit.Runtime) || !failed && code != exit.OK || len(got) != len(doctor.All()) {
			t.Errorf("exit code %d, failed %v, %d checks", code, failed, len(got))
		}
		if f := got["configuration"]; f.Verdict != doctor.OK {
			t.Errorf("configuration: %+v", f)
		}
		mounted := len(args) > 2
		if f := got["daemon"]; mounted && (f.Verdict != doctor.Warn || !strings.Contains(f.Reason, "ssd is offline (too many errors)")) || !mounted && f.Verdict != doctor.Skip {
			t.Errorf("daemon: %+v", f)
		}
	}
	code, out, errs := runCLI("doctor", "--memory-size", "1")
	if code != exit.Runtime || !strings.Contains(out, "configuration          fail") || !strings.Contains(out, "memory.size") || !strings.Contains(errs, "fail") {
		t.Errorf("refused configuration: exit code %d\n%s%s", code, out, errs)
	}
	if code, _, errs := runCLI("doctor", t.TempDir()); code != exit.NotMount || !strings.Contains(errs, "is not a kvfs mount") {
		t.Errorf("no mount: exit code %d, %s", code, errs)
	}
}

// TestDaemonSources shows that the settings of a process without settings are an error.
func TestDaemonSources(t *testing.T) {
	if src, err := daemonSources(os.Getpid()); err == nil {
		t.Errorf("a test program has settings: %+v", src)
	}
}
