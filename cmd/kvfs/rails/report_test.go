package rails

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/rdma/fabric"
)

// runDoctor does on a made-up machine what kvfs doctor rdma does.
func runDoctor(m *fakeMachine, args ...string) (code int, stdout, stderr string) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	raw := flags.Bool("json", false, "")
	var out bytes.Buffer
	err := flags.Parse(args)
	if err == nil {
		var r *Report
		if r, err = m.Report(context.Background(), config.Load, config.Sources{Environ: os.Environ(), Flags: flags}); err == nil {
			print := r.Print
			if *raw {
				print = func(w io.Writer) error { return show.JSON(w, r) }
			}
			err = errors.Join(print(&out), r.Verdict())
		}
	}
	if err != nil {
		return exit.Code(err), out.String(), err.Error()
	}
	return exit.OK, out.String(), ""
}

// report decodes what --json printed.
func report(t *testing.T, text string) Report {
	t.Helper()
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return r
}

// TestDoctorRDMA shows that each card of the plan is read over, and what the report says.
func TestDoctorRDMA(t *testing.T) {
	withoutSettings(t)
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
	withoutSettings(t)
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

// TestDoctorWrongBytes shows that a card over which other bytes come does not pass.
func TestDoctorWrongBytes(t *testing.T) {
	m := newMachine(t, nil)
	file, sum, err := trialFile(4096)
	must(t, err)
	defer file.Close()
	holder, err := m.open(fabric.Options{})
	must(t, err)
	reader, err := m.open(fabric.Options{})
	must(t, err)
	region, err := holder.Register(file, 4096)
	must(t, err)
	if _, err := readTrial(t.Context(), reader, holder.Addr(), region.Remote(), sum); err != nil {
		t.Errorf("right bytes: %v", err)
	}
	if _, err := readTrial(t.Context(), reader, holder.Addr(), region.Remote(), sum+1); err == nil || !strings.Contains(err.Error(), "differ from the sent ones") {
		t.Errorf("wrong bytes: %v", err)
	}
	if err := errors.Join(region.Close(), holder.Close(), reader.Close()); err != nil {
		t.Error(err)
	}
}
