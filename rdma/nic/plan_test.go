package nic

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// FuzzPlan shows that every list gives a plan or an error.
func FuzzPlan(f *testing.F) {
	for _, list := range []string{"", "a", "a,b", "a+b,c:2", ",", " a , b ", "a,+"} {
		f.Add(list)
	}
	inv := &Inventory{Devices: []Device{{Name: "a", Port: 1, State: "ACTIVE", NUMA: -1}}}
	f.Fuzz(func(t *testing.T, list string) {
		for _, p := range []Policy{ByGPUIndex, ByAffinity, All, Single} {
			if plan, err := inv.Plan(p, strings.Split(list, ",")); (plan == nil) == (err == nil) {
				t.Fatalf("%s of %q: %v, %v", p, list, plan, err)
			}
		}
	})
}

// TestLists shows the plans of the policies for lists, and the errors of lists (B22 to B27, B33).
func TestLists(t *testing.T) {
	h100, b300, none, one := dgxH100().built(t), hgxB300().built(t), bonded().built(t), workstation().built(t)
	const eight = "mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"
	for _, c := range []struct {
		name    string
		m       machine
		visible string
		policy  Policy
		list    string
		want    string
		err     error
		text    string // in the error, or in the notes
	}{
		{"one entry needs no GPU", none, "unset", ByGPUIndex, "mlx5_bond_0", "gpu_index: mlx5_bond_0", nil, ""},
		{"one entry is for all GPUs", one, "unset", ByGPUIndex, "mlx5_0", "gpu_index: mlx5_0 (GPU 0, PHB)", nil, ""},
		{"each its entry", h100, "2,5", ByGPUIndex, eight, "gpu_index: mlx5_4 (GPU 2, PIX), mlx5_9 (GPU 5, PIX)", nil, ""},
		{"physical, not the order of the list", h100, "7,0", ByGPUIndex, eight, "gpu_index: mlx5_0 (GPU 0, PIX), mlx5_11 (GPU 7, PIX)", nil, ""},
		{"by UUID", h100, uuid(6), ByGPUIndex, eight, "gpu_index: mlx5_10 (GPU 6, PIX)", nil, ""},
		{"joined", b300, "1", ByGPUIndex, "mlx5_0+mlx5_1,mlx5_6+mlx5_7", "gpu_index: mlx5_6 (GPU 1, PXB), mlx5_7 (GPU 1, PXB)", nil, ""},
		{"shared", h100, "0,1", ByGPUIndex, "mlx5_0,mlx5_0", "gpu_index: mlx5_0 (GPU 0+1, NODE)", nil, ""},
		{"no GPU", none, "unset", ByGPUIndex, "mlx5_bond_0,mlx5_bond_0", "", ErrNoGPU, "could not determine local physical GPU index, for the device list mlx5_bond_0,mlx5_bond_0: there is no NVIDIA GPU"},
		{"no GPU visible", h100, "", ByGPUIndex, "mlx5_0,mlx5_3", "", ErrNoGPU, "CUDA_VISIBLE_DEVICES shows none"},
		{"not covered", h100, "1,2", ByGPUIndex, "mlx5_0,mlx5_3", "", ErrNotCovered, "device list does not cover local GPU 2: mlx5_0,mlx5_3"},
		{"no list", h100, "unset", ByGPUIndex, "", "", ErrNoList, ""},
		{"not there", h100, "unset", ByGPUIndex, "mlx5_0,mlx9", "", ErrNoDevice, `"mlx9": there are mlx5_0, mlx5_1,`},
		{"not there, one entry", h100, "unset", Single, "mlx9", "", ErrNoDevice, `no such RDMA device: "mlx9"`},
		{"no such port", h100, "unset", All, "mlx5_0:2", "", ErrNoDevice, `"mlx5_0:2"`},
		{"down, of several", h100, "0,1", ByGPUIndex, "mlx5_2,mlx5_3", "gpu_index: mlx5_3 (GPU 1, PIX)", nil, "GPU 0 has no device of its own: mlx5_2 is down"},
		{"down, joined", h100, "0", ByGPUIndex, "mlx5_2+mlx5_0", "gpu_index: mlx5_0 (GPU 0, PIX)", nil, "left out: mlx5_2 is DOWN"},
		{"all down", h100, "unset", ByGPUIndex, "mlx5_2", "", ErrNoDevice, "mlx5_2 is DOWN"},
		{"all down, affinity", h100, "unset", ByAffinity, "mlx5_2,mlx5_8", "", ErrNoDevice, "mlx5_2 is DOWN; mlx5_8 is DOWN"},
		{"affinity of a list", h100, "0,4", ByAffinity, "mlx5_1,mlx5_7", "affinity: mlx5_1 (GPU 0, NODE), mlx5_7 (GPU 4, NODE)", nil, ""},
		{"all of a list", h100, "unset", All, "mlx5_9,mlx5_0+mlx5_3", "all, striped: mlx5_9, mlx5_0, mlx5_3", nil, ""},
		{"first of a list", h100, "unset", Single, "mlx5_9,mlx5_0", "single: mlx5_9", nil, ""},
		{"first that is up", h100, "unset", Single, "mlx5_2,mlx5_9", "single: mlx5_9", nil, "left out: mlx5_2 is DOWN"},
		{"no GPU, affinity of a list", none, "unset", ByAffinity, "mlx5_bond_0", "affinity: mlx5_bond_0", nil, "no GPU to be near to"},
		{"remapped", h100, "3", ByAffinity, "", "affinity: mlx5_5 (GPU 3, PIX)", nil, ""},
		{"no policy", h100, "unset", "best", "", "", ErrPolicy, `"best"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var list []string
			if c.list != "" {
				list = strings.Split(c.list, ",")
			}
			plan, err := c.m.discover(t, c.visible).Plan(c.policy, list)
			if !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if err != nil {
				if !strings.Contains(err.Error(), c.text) {
					t.Errorf("got %q, want %q in it", err, c.text)
				}
				return
			}
			if plan.String() != c.want {
				t.Errorf("got %s, want %s", plan, c.want)
			}
			if notes := strings.Join(plan.Notes, "; "); !strings.Contains(notes, c.text) {
				t.Errorf("notes: got %q, want %q in them", notes, c.text)
			}
		})
	}
}

// TestPlanEmptyEntry shows that Plan refuses an empty entry (B22).
func TestPlanEmptyEntry(t *testing.T) {
	inv := dgxH100().discover(t, "unset")
	for _, list := range [][]string{{"mlx5_0", ""}, {"mlx5_0+"}, {""}} {
		if _, err := inv.Plan(All, list); !errors.Is(err, ErrEmptyEntry) {
			t.Errorf("%q: got %v, want %v", list, err, ErrEmptyEntry)
		}
	}
}

// TestGPUError shows that the reason why GPUs are not known reaches the operator (B24).
func TestGPUError(t *testing.T) {
	m := dgxH100().built(t)
	discover := func(l Library) *Inventory {
		inv, err := Discover(Options{Sysfs: m.build(t), GPUs: l})
		must(t, err)
		return inv
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
	inv := discover(fixed{err: errors.New("the library\nis broken")})
	if inv.GPUError != "the library is broken" {
		t.Errorf("got %q", inv.GPUError)
	}
	if _, err := inv.Plan(ByGPUIndex, []string{"mlx5_0", "mlx5_1"}); !errors.Is(err, ErrNoGPU) || !strings.Contains(err.Error(), "the library is broken") {
		t.Errorf("got %v", err)
	}
	plan, err := inv.Plan(ByAffinity, nil)
	must(t, err)
	if len(plan.Rails) != 10 || !strings.Contains(plan.Notes[0], "the library is broken") {
		t.Errorf("got %s, %q: want all active devices and the reason", plan, plan.Notes)
	}
	inv = discover(fixed{m.library().gpus[:2], errors.New("GPU 0000:52:00.0: lost")})
	if plan, err = inv.Plan(ByAffinity, nil); err != nil || plan.String() != "affinity: mlx5_0 (GPU 0, PIX), mlx5_3 (GPU 1, PIX)" {
		t.Errorf("got %v, %v", plan, err)
	}
	if !strings.Contains(strings.Join(plan.Notes, "; "), "not all GPUs are known: GPU 0000:52:00.0: lost") {
		t.Errorf("notes: %q", plan.Notes)
	}
}

// TestMaxRails shows that a plan is bounded, and says so.
func TestMaxRails(t *testing.T) {
	inv := &Inventory{}
	for i := range MaxRails + 8 {
		inv.Devices = append(inv.Devices, Device{Name: fmt.Sprintf("mlx5_%d", i), Port: 1, State: "ACTIVE", NUMA: -1})
	}
	plan, err := inv.Plan(All, nil)
	must(t, err)
	if len(plan.Rails) != MaxRails {
		t.Errorf("%d rails", len(plan.Rails))
	}
	checkNotes(t, plan.Notes, []string{"the first 32 of 40 devices are used"})
}

// TestDistance shows that of devices beyond the NUMA node those on the nearer node are taken.
func TestDistance(t *testing.T) {
	inv := &Inventory{
		Devices:   []Device{{Name: "a", Port: 1, State: "ACTIVE", NUMA: 1}, {Name: "b", Port: 1, State: "ACTIVE", NUMA: 2}},
		GPUs:      []GPU{{Index: 0, NUMA: 0, Visible: true}, {Index: 1, NUMA: -1, Visible: true}},
		distances: map[[2]int]int{{0, 1}: 32, {0, 2}: 12},
	}
	plan, err := inv.Plan(ByAffinity, nil)
	must(t, err)
	// Nothing is known of GPU 1: all devices are equally near to it.
	if want := "affinity: b (GPU 0+1), a (GPU 1)"; plan.String() != want {
		t.Errorf("got %s, want %s", plan, want)
	}
}
