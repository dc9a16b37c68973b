package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/rdma/fabric"
)

// runDoctor runs kvfs doctor rdma on a made-up machine.
func runDoctor(m *fakeMachine, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	cmd := newDoctorCommand(m.machine)
	cmd.SetArgs(append([]string{"rdma"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.Execute(); err != nil {
		return exit.Code(err), out.String(), err.Error()
	}
	return exit.OK, out.String(), errs.String()
}

// report decodes what --json printed.
func report(t *testing.T, text string) rdmaReport {
	t.Helper()
	var r rdmaReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return r
}

// TestDoctorRDMA shows that each card of the plan is read over, and what the report says.
func TestDoctorRDMA(t *testing.T) {
	cleanEnv(t)
	m := newMachine(t, twoGPUs, card{"mlx5_0", "mlx5_core", "ACTIVE"}, card{"mlx5_1", "mlx5_core", "ACTIVE"}, card{"mlx5_2", "mlx5_core", "DOWN"})
	code, out, errs := runDoctor(m, "--json", "--rdma-policy", "all")
	r := report(t, out)
	if code != exit.OK || !r.Usable || r.Error != "" || len(r.Devices) != 3 || len(r.GPUs) != 2 || r.Memlock != -1 || r.Provider != "libfabric 2.1 verbs" || r.Library != "libfabric 2.1 (/lib/x.so)" {
		t.Errorf("exit code %d, %s, got %+v", code, errs, r)
	}
	if len(r.Rails) != 2 || r.Rails[0].Device != "mlx5_0" || r.Rails[1].Device != "mlx5_1" || r.Rails[1].Bytes != trialBytes || r.Rails[1].Error != "" {
		t.Errorf("rails %+v", r.Rails)
	}
	for _, o := range m.opened { // each card alone
		if len(o.Devices) != 1 || o.Stripe != 0 {
			t.Errorf("opened %+v", o)
		}
	}
	code, out, _ = runDoctor(m)
	if code != exit.OK {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for _, want := range []string{
		"transport      auto", "provider       libfabric 2.1 verbs", "locked memory  no limit", "devices        3\n", "GPUs           2\n", "mlx5_2  1     mlx5_core  DOWN",
		"0    H200  0000:02:01.0  0     true", "mlx5_1 for GPU 0 (", "mlx5_1  16.0 MiB in ", "RDMA works.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestDoctorRDMAFails shows that the command ends with 1 and says why, all problems at once, and
// with 3 for a configuration that is refused.
func TestDoctorRDMAFails(t *testing.T) {
	cleanEnv(t)
	one := card{"mlx5_0", "mlx5_core", "ACTIVE"}
	for _, tc := range []struct {
		name   string
		cards  []card
		args   []string
		change func(m *fakeMachine)
		code   int
		want   []string
	}{
		{"no card", nil, nil, nil, exit.Runtime, []string{"RDMA cannot be used: this machine has no RDMA device"}},
		{"turned off", []card{one}, []string{"--bind=127.0.0.1", "--peer-transport=tcp"}, nil, exit.Runtime, []string{"turned off by peer.transport tcp"}},
		{"exposed", []card{one}, []string{"--bind=127.0.0.1"}, nil, exit.Runtime, []string{"problem: other machines could read the memory of this node", "insecure: true does without"}},
		{"empty entry", []card{one}, []string{"--rdma-devices=mlx5_0,,mlx5_1"}, nil, exit.Config, []string{"contains an empty RDMA device entry"}},
		{"absent", []card{one}, []string{"--rdma-devices=mlx5_9"}, nil, exit.Runtime, []string{"no such RDMA device"}},
		{"no library", []card{one}, nil, func(m *fakeMachine) { m.fails = fabric.ErrUnavailable }, exit.Runtime, []string{"mlx5_0: RDMA is not available", "library        none: RDMA is not available"}},
		{"several", []card{one}, nil, func(m *fakeMachine) {
			m.devices += "-not"
			m.memlock = func() (int64, bool) { return 65536, false }
		}, exit.Runtime, []string{"problem: ", "infiniband-not is not there", "problem: the limit of locked memory is 64.0 KiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, nil, tc.cards...)
			if tc.change != nil {
				tc.change(m)
			}
			code, out, errs := runDoctor(m, tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(out+errs, want) {
					t.Errorf("no %q in\n%s%s", want, out, errs)
				}
			}
		})
	}
}

// TestDoctorRDMAOfMount shows what is said of a mount: the path to each peer, with the reason
// where it is not RDMA.
func TestDoctorRDMAOfMount(t *testing.T) {
	cleanEnv(t)
	uses := &statusRDMA{Transport: "auto", Provider: "libfabric 2.1 verbs", Stats: &fabric.Stats{}}
	self := cluster.Member{Name: "a", Self: true, State: "alive"}
	for _, tc := range []struct {
		name    string
		rdma    *statusRDMA
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
		{"none", &statusRDMA{Transport: "auto", Error: "no such RDMA device"}, []cluster.Member{self, {Name: "b", State: "alive", Path: "tcp"}}, exit.Runtime, []string{"no such RDMA device"}},
		{"off", &statusRDMA{Transport: "tcp"}, nil, exit.Runtime, []string{"turned off by peer.transport tcp"}},
		{"nothing registered", &statusRDMA{Transport: "auto", Error: "memory cannot be registered for it: memlock"}, []cluster.Member{self}, exit.Runtime, []string{"memory cannot be registered for it: memlock"}},
		{"not open", &statusRDMA{Transport: "auto"}, []cluster.Member{self}, exit.Runtime, []string{"has not opened it"}},
		{"old daemon", nil, nil, exit.Runtime, []string{"knows no RDMA"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, err := json.Marshal(map[string]any{"version": "v1", "cluster": map[string]any{"members": tc.members, "rdma": tc.rdma}})
			if err != nil {
				t.Fatal(err)
			}
			code, out, errs := runDoctor(newMachine(t, nil), statusDir(t, string(text)))
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
	if code, _, errs := runDoctor(newMachine(t, nil), statusDir(t, `{"version": "v1"}`)); code != exit.Runtime || !strings.Contains(errs, "has no peers") {
		t.Errorf("without peers: exit code %d, %s", code, errs)
	}
	if code, _, errs := runDoctor(newMachine(t, nil), t.TempDir()); code != exit.NotMount {
		t.Errorf("no mount: exit code %d, %s", code, errs)
	}
	if code, _, errs := runCLI("doctor", "rdma", "--json", t.TempDir()+"/nothing"); code != exit.NotMount || !strings.Contains(errs, "is not a kvfs mount") {
		t.Errorf("no directory: exit code %d, %s", code, errs)
	}
	if code, _, errs := runCLI("doctor"); code != exit.Usage || !strings.Contains(errs, "which command? One of rdma") {
		t.Errorf("alone: exit code %d, %s", code, errs)
	}
}

// TestDoctorWrongBytes shows that a card over which other bytes come does not pass.
func TestDoctorWrongBytes(t *testing.T) {
	m := newMachine(t, nil)
	file, sum, err := trialFile(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	holder, err := m.open(fabric.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := m.open(fabric.Options{})
	if err != nil {
		t.Fatal(err)
	}
	region, err := holder.Register(file, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readTrial(t.Context(), reader, holder.Addr(), region.Remote(), sum); err != nil {
		t.Errorf("right bytes: %v", err)
	}
	if _, err := readTrial(t.Context(), reader, holder.Addr(), region.Remote(), sum+1); err == nil || !strings.Contains(err.Error(), "not those that were sent") {
		t.Errorf("wrong bytes: %v", err)
	}
	if err := errors.Join(region.Close(), holder.Close(), reader.Close()); err != nil {
		t.Error(err)
	}
}
