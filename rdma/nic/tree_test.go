package nic

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine describes a machine for a test. PCI paths begin with the host bridge, as below
// /sys/devices, and leave out the domain of the functions if it is 0000.
type machine struct {
	nodes int // NUMA nodes; 0: the kernel reports none
	nics  []nicRow
	gpus  []gpuRow
	root  string // where built lays it out
}

// built returns m with a tree that all further discoveries use.
func (m machine) built(t *testing.T) machine {
	m.root = m.build(t)
	return m
}

type nicRow struct {
	name, path string
	numa       int
	link       string // "IB", "RoCE", "EFA", "iWARP"
	state      string // empty: ACTIVE
	netdev     string
	driver     string // empty: mlx5_core
	gids       string // entries of the table: "1 fe80::1 v2 eth0; 3 ::ffff:10.0.0.1 v2 eth0"
	ports      int    // 0: 1
}

type gpuRow struct {
	minor int
	path  string
	numa  int
	model string // empty: NVIDIA H100 80GB HBM3
}

// uuid returns the UUID of the GPU with minor number n.
func uuid(n int) string { return fmt.Sprintf("GPU-%d%07d-aaaa-bbbb-cccc-000000000000", n, n) }

// fixed is a Library with a fixed answer.
type fixed struct {
	gpus []GPU
	err  error
}

func (f fixed) List() ([]GPU, error) { return f.gpus, f.err }

// library returns the answer of the NVIDIA library for m.
func (m machine) library() fixed {
	var f fixed
	for _, row := range m.gpus {
		model := row.model
		if model == "" {
			model = "NVIDIA H100 80GB HBM3"
		}
		address := strings.ToUpper(filepath.Base(expand(row.path)))
		f.gpus = append(f.gpus, GPU{Index: row.minor, UUID: uuid(row.minor), PCI: "0000" + address, Name: model})
	}
	return f
}

// expand adds the domain to the functions of a path.
func expand(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.Count(p, ":") == 1 && !strings.HasPrefix(p, "pci") {
			parts[i] = "0000:" + p
		}
	}
	return strings.Join(parts, "/")
}

// tree is a sysfs of a test.
type tree struct {
	t    *testing.T
	root string
}

// build lays out m as sysfs has it.
func (m machine) build(t *testing.T) string {
	t.Helper()
	if m.root != "" {
		return m.root
	}
	tr := &tree{t, t.TempDir()}
	for n := range m.nodes {
		row := strings.Repeat(" 21", m.nodes)
		row = row[:3*n] + " 10" + row[3*n+3:]
		tr.write(fmt.Sprintf("devices/system/node/node%d/distance", n), row)
	}
	if m.nodes == 1 {
		tr.write("devices/system/node/online", "0")
	} else if m.nodes > 1 {
		tr.write("devices/system/node/online", fmt.Sprintf("0-%d", m.nodes-1))
	}
	for _, g := range m.gpus {
		tr.function(g.path, g.numa, "nvidia")
	}
	for _, n := range m.nics {
		tr.nic(n)
	}
	return tr.root
}

func (tr *tree) write(name, text string) {
	tr.t.Helper()
	name = filepath.Join(tr.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

// link makes a relative symbolic link, as all of sysfs are.
func (tr *tree) link(name, target string) {
	tr.t.Helper()
	name = filepath.Join(tr.root, name)
	target, err := filepath.Rel(filepath.Dir(name), filepath.Join(tr.root, target))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(name), 0o755)
	}
	if err == nil {
		err = os.Symlink(target, name)
	}
	if err != nil && !os.IsExist(err) {
		tr.t.Fatal(err)
	}
}

// function makes a PCI function and returns its directory.
func (tr *tree) function(path string, numa int, driver string) string {
	dir := "devices/" + expand(path)
	tr.write(dir+"/numa_node", fmt.Sprint(numa))
	tr.write("bus/pci/drivers/"+driver+"/bind", "")
	tr.link(dir+"/driver", "bus/pci/drivers/"+driver)
	tr.link("bus/pci/devices/"+filepath.Base(dir), dir)
	return dir
}

// links has the link layer, rate and node type of each kind of link.
var links = map[string][3]string{
	"IB":    {"InfiniBand", "400 Gb/sec (4X NDR)", "1: CA"},
	"RoCE":  {"Ethernet", "400 Gb/sec (4X NDR)", "1: CA"},
	"EFA":   {"Unknown", "100 Gb/sec (4X EDR)", "7: unspecified"},
	"iWARP": {"Ethernet", "100 Gb/sec (4X EDR)", "4: RNIC"},
}

func (tr *tree) nic(n nicRow) {
	tr.t.Helper()
	driver := n.driver
	if driver == "" {
		driver = "mlx5_core"
	}
	dir := "devices/virtual/infiniband/" + n.name
	if n.path != "" {
		function := tr.function(n.path, n.numa, driver)
		dir = function + "/infiniband/" + n.name
		tr.link(dir+"/device", function)
		if n.netdev != "" {
			tr.write(function+"/net/"+n.netdev+"/dev_port", "0")
		}
	} else if driver == "rdma_rxe" {
		tr.write(dir+"/parent", n.netdev)
	}
	tr.link("class/infiniband/"+n.name, dir)
	kind := links[n.link]
	tr.write(dir+"/node_type", kind[2])
	for port := range max(n.ports, 1) {
		tr.port(fmt.Sprintf("%s/ports/%d", dir, port+1), n, kind)
	}
}

func (tr *tree) port(dir string, n nicRow, kind [3]string) {
	state := n.state
	if state == "" {
		state = "4: ACTIVE"
	}
	tr.write(dir+"/state", state)
	tr.write(dir+"/link_layer", kind[0])
	tr.write(dir+"/rate", kind[1])
	for i := range 12 {
		if n.gids == "" && i > 0 {
			break
		}
		// Empty entries have no type and no interface: reading those files fails.
		tr.write(fmt.Sprintf("%s/gids/%d", dir, i), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
	for entry := range strings.SplitSeq(n.gids, ";") {
		f := strings.Fields(entry)
		if len(f) == 0 {
			continue
		}
		kinds := map[string]string{"v1": "IB/RoCE v1", "v2": "RoCE v2"}
		tr.write(dir+"/gids/"+f[0], f[1])
		tr.write(dir+"/gid_attrs/types/"+f[0], kinds[f[2]])
		tr.write(dir+"/gid_attrs/ndevs/"+f[0], f[3])
	}
}

// discover returns the inventory of m with CUDA_VISIBLE_DEVICES=visible, or unset if it is
// "unset".
func (m machine) discover(t *testing.T, visible string) *Inventory {
	t.Helper()
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	must(t, os.Unsetenv("CUDA_VISIBLE_DEVICES"))
	o := Options{Sysfs: m.build(t), GPUs: m.library()}
	if visible != "unset" {
		o.Visible = &visible
	}
	inv, err := Discover(o)
	must(t, err)
	return inv
}

// device returns a device of inv.
func (inv *Inventory) device(t *testing.T, name string) Device {
	t.Helper()
	i := slices.IndexFunc(inv.Devices, func(d Device) bool { return d.Name == name })
	if i < 0 {
		t.Fatalf("no device %s in %v", name, inv.deviceNames())
	}
	return inv.Devices[i]
}
