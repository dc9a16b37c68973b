package rails

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/rdma/nic"
)

// card is an RDMA device of a machine that is made up.
type card struct{ name, driver, state string }

// fakeMachine is a machine with made-up cards and GPUs, whose fabrics are within the process.
type fakeMachine struct {
	*Machine
	opened []fabric.Options
	forgot [][2]uint64
	fails  error // of open
	net    *inproc.Network
}

// gpus is a library that knows some GPUs.
type gpus []nic.GPU

// List implements nic.Library.
func (g gpus) List() ([]nic.GPU, error) {
	if len(g) == 0 {
		return nil, errors.New("no NVIDIA library")
	}
	return g, nil
}

// fakeFabric is a transport within the process.
type fakeFabric struct {
	*inproc.Transport
	m *fakeMachine
	o fabric.Options
}

// Forget implements transport.
func (f *fakeFabric) Forget(dev, ino uint64) { f.m.forgot = append(f.m.forgot, [2]uint64{dev, ino}) }

// Stats implements transport.
func (f *fakeFabric) Stats() fabric.Stats { return fabric.Stats{Reads: 3, ReadBytes: 3 << 20} }

// Caps is as a fabric of verbs would have it.
func (f *fakeFabric) Caps() rdma.Caps {
	return rdma.Caps{Proto: "fabric", OneSided: true, Provider: "libfabric 2.1 " + f.o.Provider, Rails: f.o.Devices}
}

// newMachine makes up a machine. All of its cards may be used.
func newMachine(t *testing.T, g gpus, cards ...card) *fakeMachine {
	t.Helper()
	m := &fakeMachine{net: inproc.NewNetwork()}
	all := "0,1"
	m.Machine = &Machine{
		nic:     nic.Options{Sysfs: t.TempDir(), GPUs: g, Visible: &all},
		devices: filepath.Join(t.TempDir(), "infiniband"),
		memlock: func() (int64, bool) { return 0, true },
		open:    m.openFake,
		library: func() (fabric.Library, error) { return fabric.Library{Path: "/lib/x.so", Version: "2.1"}, m.fails },
	}
	for i, c := range cards {
		function := fmt.Sprintf("devices/pci0000:00/0000:00:%02x.0/0000:%02[1]x:00.0", i+1)
		dir := "class/infiniband/" + c.name
		m.write(t, function+"/numa_node", "0")
		m.write(t, "bus/pci/drivers/"+c.driver+"/module", "")
		m.link(t, function+"/driver", "bus/pci/drivers/"+c.driver)
		m.link(t, dir+"/device", function)
		m.write(t, dir+"/node_type", "1: CA")
		m.write(t, dir+"/ports/1/state", "4: "+c.state)
		m.write(t, dir+"/ports/1/link_layer", "InfiniBand")
		m.write(t, fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", i), c.name)
		writeFile(t, filepath.Join(m.devices, fmt.Sprintf("uverbs%d", i)), "")
	}
	for _, gpu := range g { // behind the bridge whose number is that of its bus
		function := "devices/pci0000:00/0000:00:" + gpu.PCI[9:11] + ".0/" + gpu.PCI[4:]
		m.write(t, function+"/numa_node", "0")
		m.link(t, "bus/pci/devices/"+gpu.PCI[4:], function)
	}
	if len(cards) > 0 {
		writeFile(t, filepath.Join(m.devices, "rdma_cm"), "")
	}
	return m
}

// writeFile writes a file and the directories above it.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
}

func (m *fakeMachine) write(t *testing.T, name, text string) {
	t.Helper()
	writeFile(t, filepath.Join(m.nic.Sysfs, name), text)
}

// link makes name in sysfs a symbolic link to target there.
func (m *fakeMachine) link(t *testing.T, name, target string) {
	t.Helper()
	path := filepath.Join(m.nic.Sysfs, name)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(filepath.Join(m.nic.Sysfs, target), path)))
}

func (m *fakeMachine) openFake(o fabric.Options) (transport, error) {
	m.opened = append(m.opened, o)
	if m.fails != nil {
		return nil, m.fails
	}
	t, err := m.net.Transport(fmt.Sprintf("fake-%d", len(m.opened)), nil)
	return &fakeFabric{t, m, o}, err
}

// twoGPUs are behind the bridges of the second and the first of two cards.
var twoGPUs = gpus{
	{Index: 0, UUID: "GPU-a", PCI: "00000000:02:01.0", Name: "H200"},
	{Index: 1, UUID: "GPU-b", PCI: "00000000:01:01.0", Name: "H200"},
}

// rdmaConfig is a configuration with peers.
func rdmaConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	return settings(t, `{"bind": "127.0.0.1:0", "insecure": true, "node_name": "a", "memory": {"size": "64MiB"}`+text+`}`)
}

// settings is the configuration that the JSON text describes.
func settings(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Environ: []string{"KVFS_CONFIG_JSON=" + text}})
	must(t, err)
	return cfg
}

// withoutSettings removes our variables for the time of a test.
func withoutSettings(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "KVFS_") {
			t.Setenv(name, "") // empty means not set
		}
	}
}

// logged returns what was logged from Info on, each line with its fields.
func logged(logs *observer.ObservedLogs) (lines []string, worst zapcore.Level) {
	worst = zapcore.DebugLevel
	for _, e := range logs.All() {
		text, err := json.Marshal(e.ContextMap())
		if err != nil {
			text = []byte(err.Error())
		}
		worst = max(worst, e.Level)
		if e.Level >= zapcore.InfoLevel {
			lines = append(lines, e.Level.String()+" "+e.Message+" "+string(text))
		}
	}
	return lines, worst
}

// TestOpenFabric shows what becomes of RDMA on machines of any kind: which library it is opened
// with, or how loudly it is left out with auto, and that rdma ends the start with one error that
// says the same (B22 to B27).
func TestOpenFabric(t *testing.T) {
	const active = "ACTIVE"
	mlx := []card{{"mlx5_0", "mlx5_core", active}, {"mlx5_1", "mlx5_core", active}}
	for _, tc := range []struct {
		name   string
		gpus   gpus
		cards  []card
		text   string // of the configuration
		change func(m *fakeMachine)
		opened string // provider and devices
		level  zapcore.Level
		why    string // why not, else part of the log
	}{
		{"no card", nil, nil, "", nil, "", zapcore.DebugLevel, "this machine has no RDMA device"},
		{"no card, but named", nil, nil, `, "rdma": {"devices": ["mlx5_0"]}`, nil, "", zapcore.WarnLevel, "this machine has no RDMA device"},
		{"no card, but provider named", nil, nil, `, "rdma": {"provider": "verbs"}`, nil, "", zapcore.WarnLevel, "this machine has no RDMA device"},
		{"cards, no GPU", nil, mlx, "", nil, "verbs mlx5_0 mlx5_1", zapcore.InfoLevel, `"rails":["mlx5_0","mlx5_1"]`},
		{"GPUs", twoGPUs, mlx, "", nil, "verbs mlx5_1 mlx5_0", zapcore.InfoLevel, `"rails":["mlx5_1 for GPU 0 (`},
		{"by index", twoGPUs, mlx, `, "rdma": {"policy": "gpu_index", "devices": ["mlx5_0", "mlx5_1"]}`, nil, "verbs mlx5_0 mlx5_1", zapcore.InfoLevel, `mlx5_0 for GPU 0`},
		{"by index, shared", twoGPUs, mlx, `, "rdma": {"policy": "gpu_index", "devices": ["mlx5_1", "mlx5_1"]}`, nil, "verbs mlx5_1", zapcore.InfoLevel, `GPU 0, 1`},
		{"by index, no GPU", nil, mlx, `, "rdma": {"policy": "gpu_index", "devices": ["mlx5_0", "mlx5_1"]}`, nil, "", zapcore.WarnLevel, "could not determine local physical GPU index"},
		{"by index, one entry, no GPU", nil, mlx, `, "rdma": {"policy": "gpu_index", "devices": ["mlx5_1"]}`, nil, "verbs mlx5_1", zapcore.InfoLevel, ""},
		{"by index, not covered", gpus{{Index: 5, UUID: "GPU-a", PCI: "00000000:02:01.0"}}, mlx, `, "rdma": {"policy": "gpu_index", "devices": ["mlx5_0", "mlx5_1"]}`, nil, "", zapcore.WarnLevel,
			"device list does not cover local GPU 5"},
		{"single", twoGPUs, mlx, `, "rdma": {"policy": "single"}`, nil, "verbs mlx5_0", zapcore.InfoLevel, ""},
		{"absent card", nil, mlx, `, "rdma": {"devices": ["mlx5_7"]}`, nil, "", zapcore.WarnLevel, `no such RDMA device: "mlx5_7"`},
		{"down", nil, []card{{"mlx5_0", "mlx5_core", "DOWN"}}, "", nil, "", zapcore.WarnLevel, "no RDMA device is active: port 1 of mlx5_0 is DOWN"},
		{"EFA beside others", nil, append([]card{{"rdmap0", "efa", active}}, mlx...), "", nil, "efa rdmap0", zapcore.InfoLevel, ""},
		{"EFA down beside others", nil, append([]card{{"rdmap0", "efa", "DOWN"}}, mlx...), "", nil, "verbs mlx5_0 mlx5_1", zapcore.InfoLevel, ""},
		{"verbs beside EFA", nil, append([]card{{"rdmap0", "efa", active}}, mlx...), `, "rdma": {"provider": "verbs"}`, nil, "verbs mlx5_0 mlx5_1", zapcore.InfoLevel, ""},
		{"no EFA", nil, mlx, `, "rdma": {"provider": "efa"}`, nil, "", zapcore.WarnLevel, "none for provider efa"},
		{"no library", nil, mlx, "", func(m *fakeMachine) { m.fails = fmt.Errorf("%w: install libfabric1", fabric.ErrUnavailable) }, "verbs mlx5_0 mlx5_1", zapcore.WarnLevel, "install libfabric1"},
		{"no device nodes", nil, mlx, "", func(m *fakeMachine) { m.devices += "-not" }, "", zapcore.WarnLevel, "infiniband-not is not there: load the modules ib_uverbs and rdma_ucm"},
		{"no node of a card", nil, mlx, "", func(m *fakeMachine) { os.Remove(filepath.Join(m.devices, "uverbs1")) }, "", zapcore.WarnLevel, "mlx5_1: open "},
		{"no connection manager", nil, mlx, "", func(m *fakeMachine) { os.Remove(filepath.Join(m.devices, "rdma_cm")) }, "", zapcore.WarnLevel, "rdma_cm: no such file"},
		{"little to lock", nil, mlx, "", func(m *fakeMachine) { m.memlock = func() (int64, bool) { return 8 << 20, false } }, "", zapcore.WarnLevel,
			"the limit of locked memory is 8.0 MiB, and RDMA needs 320.0 MiB (rdma.cache and 64.0 MiB): ulimit -l unlimited"},
		{"enough to lock", nil, mlx, `, "rdma": {"cache": 0}`, func(m *fakeMachine) { m.memlock = func() (int64, bool) { return 64 << 20, false } }, "verbs mlx5_0 mlx5_1", zapcore.InfoLevel, ""},
		{"sockets", nil, nil, `, "rdma": {"provider": "tcp"}`, func(m *fakeMachine) { m.memlock = func() (int64, bool) { return 0, false } }, "tcp", zapcore.InfoLevel, ""},
		{"sockets, named", nil, mlx, `, "rdma": {"provider": "tcp", "devices": ["lo", "eth0+eth1"]}`, nil, "tcp lo eth0 eth1", zapcore.InfoLevel, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, tc.gpus, tc.cards...)
			if tc.change != nil {
				tc.change(m)
			}
			core, logs := observer.New(zapcore.DebugLevel)
			f, err := m.OpenFabric(rdmaConfig(t, tc.text), zap.New(core))
			if err != nil {
				t.Fatalf("auto: %v", err)
			}
			var opened string
			if len(m.opened) == 1 {
				opened = strings.Join(append([]string{m.opened[0].Provider}, m.opened[0].Devices...), " ")
			}
			lines, level := logged(logs)
			if opened != tc.opened || level != tc.level || logs.Len() != 1 {
				t.Errorf("opened %q, want %q; logged at %v, want %v once:\n%s", opened, tc.opened, level, tc.level, strings.Join(lines, "\n"))
			}
			works := tc.level == zapcore.InfoLevel
			if works != (f.transport != nil) || works != (f.Fabric() != nil) || works != (f.Status().Error == "") {
				t.Errorf("got %+v", f.Status())
			}
			if unquoted := strings.ReplaceAll(strings.Join(lines, "\n"), `\"`, `"`); len(lines) > 0 && !strings.Contains(unquoted, tc.why) || !works && !strings.Contains(f.Status().Error, tc.why) {
				t.Errorf("got %q and log\n%s\nwant %s", f.Status().Error, unquoted, tc.why)
			}
			text := strings.TrimSuffix(tc.text, "}") // rdma instead of auto
			_, err = m.OpenFabric(rdmaConfig(t, tc.text+`, "peer": {"transport": "rdma"}`), zap.NewNop())
			if works != (err == nil) || err != nil && (!strings.HasPrefix(err.Error(), "peer.transport rdma: ") || !strings.Contains(err.Error(), tc.why) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("rdma: got %v for %s", err, text)
			}
		})
	}
}

// TestFabricOff shows that nothing is looked for with peer.transport tcp.
func TestFabricOff(t *testing.T) {
	m := newMachine(t, nil, card{"mlx5_0", "mlx5_core", "ACTIVE"})
	core, logs := observer.New(zapcore.DebugLevel)
	f, err := m.OpenFabric(rdmaConfig(t, `, "peer": {"transport": "tcp"}`), zap.New(core))
	if err != nil || f.transport != nil || len(m.opened) != 0 || logs.Len() != 0 || f.Status().Error != "" || f.Close() != nil {
		t.Errorf("got %+v, %v, %v", f, err, logs.All())
	}
	if f.Freed() != nil {
		t.Error("the engine tells of blocks that nobody has registered")
	}
}

// TestFabricOptions shows what the transport is opened with, that evicted blocks are forgotten
// by it, and that TLS is said not to count for it.
func TestFabricOptions(t *testing.T) {
	m := newMachine(t, nil, card{"mlx5_0", "mlx5_core", "ACTIVE"}, card{"mlx5_1", "mlx5_core", "ACTIVE"})
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := rdmaConfig(t, `, "rdma": {"policy": "all", "cache": "512MiB"}, "peer": {"timeout": "3s"}, "tls": {"ca": "a", "cert": "b", "key": "c"}`)
	f, err := m.OpenFabric(cfg, zap.New(core))
	must(t, err)
	o := m.opened[0]
	if o.Stripe != 1<<20 || o.CacheBytes != 512<<20 || o.StallTimeout.Seconds() != 3 || o.Host != "" || o.Logger == nil {
		t.Errorf("got %+v", o)
	}
	lines, _ := logged(logs)
	if len(lines) != 2 || !strings.Contains(lines[0], `"striped":true`) || !strings.Contains(lines[1], "without encryption") {
		t.Errorf("logged %q", lines)
	}
	f.Freed()(7, 8)
	if !slices.Equal(m.forgot, [][2]uint64{{7, 8}}) {
		t.Errorf("forgot %v", m.forgot)
	}
	s := f.Status()
	if s.Transport != "auto" || s.Provider != "libfabric 2.1 verbs" || s.Stats == nil || s.Stats.Reads != 3 || len(s.Plan.Rails) != 2 || !s.Plan.Striped {
		t.Errorf("got %+v", s)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestFabricHost shows which address peers are given: that of bind, where it is the one rail's.
func TestFabricHost(t *testing.T) {
	for _, tc := range []struct{ bind, devices, want string }{
		{"127.0.0.1:0", "", "127.0.0.1"}, {"127.0.0.1", `"lo"`, "127.0.0.1"}, {"[::1]:0", "", "::1"}, {"localhost", "", "127.0.0.1"},
		{"127.0.0.1", `"no-such-interface"`, ""}, {"127.0.0.1", `"lo", "eth0"`, ""}, {"0.0.0.0", "", ""},
	} {
		cfg := settings(t, fmt.Sprintf(`{"bind": %q, "insecure": true, "rdma": {"provider": "tcp", "devices": [%s]}}`, tc.bind, tc.devices))
		m := newMachine(t, nil)
		r, err := m.findRails(cfg)
		if got := r.host(cfg); err != nil || got != tc.want {
			t.Errorf("%+v: got %q, %v", tc, got, err)
		}
	}
}

// TestFabricExposed shows that no memory is opened to machines that nobody has asked who they
// are: without certificates, and unless insecure says so, RDMA is for this machine alone.
func TestFabricExposed(t *testing.T) {
	mlx := []card{{"mlx5_0", "mlx5_core", "ACTIVE"}}
	const tls = `, "tls": {"ca": "a", "cert": "b", "key": "c"}`
	for _, tc := range []struct {
		name, text string
		opened     bool
		host       string // that it is opened with
		local      bool
	}{
		{"cards", `"bind": "127.0.0.1:0"`, false, "", false},
		{"cards, by a name", `"bind": "localhost:0"`, false, "", false},
		{"cards, insecure", `"bind": "127.0.0.1:0", "insecure": true`, true, "", false},
		{"cards, certificates", `"bind": "127.0.0.1:0"` + tls, true, "", false},
		{"sockets", `"bind": "127.0.0.1:0", "rdma": {"provider": "tcp"}`, true, "127.0.0.1", true},
		{"sockets, by a name", `"bind": "localhost:0", "rdma": {"provider": "tcp"}`, true, "127.0.0.1", true},
		{"sockets of IPv6", `"bind": "[::1]:0", "rdma": {"provider": "tcp"}`, true, "::1", true},
		{"sockets, the interface of loopback", `"bind": "127.0.0.1:0", "rdma": {"provider": "tcp", "devices": ["lo"]}`, true, "127.0.0.1", true},
		{"sockets, another interface", `"bind": "127.0.0.1:0", "rdma": {"provider": "tcp", "devices": ["no-such0"]}`, false, "", false},
		{"sockets, several", `"bind": "127.0.0.1:0", "rdma": {"provider": "tcp", "devices": ["lo", "no-such0"]}`, false, "", false},
		{"sockets, several, insecure", `"bind": "127.0.0.1:0", "insecure": true, "rdma": {"provider": "tcp", "devices": ["lo", "no-such0"]}`, true, "", false},
		{"sockets, insecure", `"bind": "0.0.0.0:0", "insecure": true, "rdma": {"provider": "tcp"}`, true, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, nil, mlx...)
			core, logs := observer.New(zapcore.DebugLevel)
			f, err := m.OpenFabric(settings(t, `{"node_name": "a", "memory": {"size": "64MiB"}, `+tc.text+`}`), zap.New(core))
			if err != nil || len(m.opened) > 0 != tc.opened || (f.Fabric() != nil) != tc.opened || f.Local != tc.local {
				t.Fatalf("auto: %v, opened %+v, local %v", err, m.opened, f.Local)
			}
			if tc.opened && m.opened[0].Host != tc.host {
				t.Errorf("opened with the host %q, want %q", m.opened[0].Host, tc.host)
			}
			if !tc.opened && (logs.Len() != 1 || !strings.Contains(f.Status().Error, "insecure: true does without")) {
				t.Errorf("logged %v, status %+v", logs.All(), f.Status())
			}
			_, err = m.OpenFabric(settings(t, `{"node_name": "a", "memory": {"size": "64MiB"}, "peer": {"transport": "rdma"}, `+tc.text+`}`), zap.NewNop())
			if (err == nil) != tc.opened || err != nil && !errors.Is(err, errExposed) {
				t.Errorf("rdma: %v", err)
			}
		})
	}
}

// TestLeaseBytes shows how much is registered for peers at most.
func TestLeaseBytes(t *testing.T) {
	for _, tc := range []struct {
		text  string
		limit int64 // of locked memory; negative: none
		want  int64
	}{
		{"", -1, 32 << 20}, {"", 320 << 20, 32 << 20}, {`, "rdma": {"cache": "200MiB"}`, 264 << 20, 32 << 20},
		{`, "rdma": {"cache": 0}`, 64 << 20, 32 << 20}, {`, "rdma": {"cache": "40MiB"}`, 104<<20 - 8<<20, 28 << 20},
		{`, "rdma": {"provider": "tcp"}`, 1 << 20, 32 << 20},
	} {
		m := newMachine(t, nil, card{"mlx5_0", "mlx5_core", "ACTIVE"})
		m.memlock = func() (int64, bool) { return tc.limit, tc.limit < 0 }
		cfg := rdmaConfig(t, tc.text)
		r, err := m.findRails(cfg)
		if got := m.leaseBytes(r, cfg); err != nil || got != tc.want {
			t.Errorf("%+v: got %d, %v", tc, got, err)
		}
	}
}

// TestFabricRefused shows that status says why the node could not use what was opened, and
// that nobody is told of blocks for it.
func TestFabricRefused(t *testing.T) {
	m := newMachine(t, nil, card{"mlx5_0", "mlx5_core", "ACTIVE"})
	f, err := m.OpenFabric(rdmaConfig(t, ""), zap.NewNop())
	must(t, err)
	if f.Refuse(nil); f.transport == nil || f.Status().Error != "" {
		t.Fatalf("it is used: %+v", f.Status())
	}
	f.Refuse(errors.New("memory cannot be registered"))
	if s := f.Status(); s.Error != "memory cannot be registered" || s.Stats != nil || f.Fabric() != nil || f.Freed() != nil {
		t.Errorf("got %+v", s)
	}
}

// TestPlanSockets shows that no interface is a rail twice, and that one alone is not striped.
func TestPlanSockets(t *testing.T) {
	for _, tc := range []struct {
		devices, policy string
		rails           string
		striped         bool
	}{
		{`[]`, "all", "", false},
		{`["lo", "lo"]`, "all", "lo", false},
		{`["lo+lo", "eth0", " lo "]`, "all", "lo eth0", true},
		{`["lo", "eth0"]`, "affinity", "lo eth0", false},
		{`["lo", "eth0"]`, "single", "lo", false},
	} {
		cfg := rdmaConfig(t, fmt.Sprintf(`, "rdma": {"provider": "tcp", "devices": %s, "policy": %q}`, tc.devices, tc.policy))
		p := planSockets(cfg)
		var names []string
		for _, r := range p.Rails {
			names = append(names, r.Device.Name)
		}
		if got := strings.Join(names, " "); got != tc.rails || p.Striped != tc.striped {
			t.Errorf("%s, %s: rails %q, striped %v", tc.devices, tc.policy, got, p.Striped)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
