package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// bindEnv is the environment of a node with peers.
const bindEnv = "KVFS_BIND=::1"

// TestDeviceList shows how the list of devices is read: cut at commas and trimmed, empty is
// unset, and an empty entry is refused with the words of its source, wherever it stands
// (B21, B22).
func TestDeviceList(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"", nil}, {"   ", nil}, {"mlx5_0", []string{"mlx5_0"}}, {" mlx5_0 , mlx5_1 ", []string{"mlx5_0", "mlx5_1"}},
		{"mlx5_0,mlx5_0", []string{"mlx5_0", "mlx5_0"}}, // two GPUs may share one
		{"mlx5_0+mlx5_1,mlx5_2", []string{"mlx5_0+mlx5_1", "mlx5_2"}}, {"rdmap79s0,eth0.100", []string{"rdmap79s0", "eth0.100"}},
	} {
		env := mustLoad(t, Sources{Environ: []string{bindEnv, "KVFS_RDMA_DEVICES=" + tc.text}})
		flag := mustLoad(t, Sources{Flags: parseFlags(t, "--bind=::1", "--rdma-devices="+tc.text)})
		if !slices.Equal(env.RDMA.Devices, tc.want) || !slices.Equal(flag.RDMA.Devices, tc.want) {
			t.Errorf("%q: got %q and %q, want %q", tc.text, env.RDMA.Devices, flag.RDMA.Devices, tc.want)
		}
	}
	for _, text := range []string{",", "mlx5_0,", ",mlx5_0", "mlx5_0,,mlx5_1", "mlx5_0, ,mlx5_1", "mlx5_0+", "+", "a,b++c"} {
		entry := "contains an empty RDMA device entry"
		for what, src := range map[string]Sources{
			"env":  {Environ: []string{bindEnv, "KVFS_RDMA_DEVICES=" + text}},
			"flag": {Flags: parseFlags(t, "--bind=::1", "--rdma-devices="+text)},
			"file": {File: writeFile(t, "c.yaml", "bind: '::1'\nrdma: {devices: ['"+strings.ReplaceAll(text, ",", "','")+"']}\n")},
		} {
			src.MemTotal, src.Hostname = testMem, testHost
			_, err := Load(src)
			if !errors.Is(err, scalar.ErrInvalid) || !strings.Contains(err.Error(), entry) || !strings.Contains(err.Error(), "rdma.devices") {
				t.Errorf("%s %q: got %v", what, text, err)
			}
		}
	}
}

// TestRejectRDMA shows every way in which settings of RDMA are refused, all at once.
func TestRejectRDMA(t *testing.T) {
	for _, tc := range []struct {
		text string
		kind error
		want []string
	}{
		{`"peer": {"transport": "udp"}`, scalar.ErrEnum, []string{`peer.transport: unknown value "udp"; one of auto, tcp, rdma`}},
		{`"rdma": {"policy": "gpu_index"}`, scalar.ErrInvalid, []string{`rdma.policy: gpu_index takes an entry of rdma.devices, which is empty`}},
		{`"peer": {"transport": "tcp", "require": ["get", "rdma"]}`, scalar.ErrInvalid, []string{`peer.require: rdma is turned off by peer.transport tcp (config-json 1:`}},
		{`"rdma": {"devices": ["a/b"]}`, scalar.ErrInvalid, []string{`rdma.devices[0]: "a/b" has the device "a/b", which cannot be one`}},
		{`"rdma": {"devices": ["a", ""], "policy": "gpu_index", "cache": -1}, "peer": {"transport": "x"}`, nil, []string{
			"rdma.devices[1]: contains an empty RDMA device entry", "rdma.cache:", "peer.transport:"}},
	} {
		_, err := Load(Sources{InlineJSON: `{"bind": "::1", ` + tc.text + `}`, MemTotal: testMem, Hostname: testHost})
		if tc.kind != nil && !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %v, want kind %v", tc.text, err, tc.kind)
		}
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", tc.text, err, want)
			}
		}
	}
	mustLoad(t, Sources{InlineJSON: `{"bind": "::1", "rdma": {"policy": "gpu_index", "devices": ["a"]}}`})
}

// TestAliasesOfRDMA shows what Mooncake's protocol and device become, that they never keep a
// node from starting, and that they count for nothing without peers (B4, D16, E10).
func TestAliasesOfRDMA(t *testing.T) {
	for _, tc := range []struct {
		env       string
		transport string
		devices   []string
		warning   string
	}{
		{"MOONCAKE_PROTOCOL=tcp", TransportTCP, nil, "taken for peer.transport: tcp; KVFS_PEER_TRANSPORT is its name here"},
		{"MOONCAKE_PROTOCOL=rdma", Auto, nil, "taken for peer.transport: auto"},
		{"MOONCAKE_PROTOCOL=EFA", Auto, nil, "taken for peer.transport: auto"},
		{"MOONCAKE_PROTOCOL=ascend", Auto, nil, `ignored: "ascend" is not a protocol of kvfs; set KVFS_PEER_TRANSPORT`},
		{"MOONCAKE_DEVICE=mlx5_0, mlx5_1", Auto, []string{"mlx5_0", "mlx5_1"}, "KVFS_RDMA_DEVICES is its name here"},
		{"MOONCAKE_DEVICE=mlx5_0,,mlx5_1", Auto, nil, `ignored: "mlx5_0,,mlx5_1" contains an empty RDMA device entry`},
		{`MOONCAKE_DEVICE={"cpu:0": [["mlx5_0"], []]}`, Auto, nil, "ignored: "},
	} {
		c := mustLoad(t, Sources{Environ: []string{bindEnv, tc.env}})
		if c.Peer.Transport != tc.transport || !slices.Equal(c.RDMA.Devices, tc.devices) {
			t.Errorf("%s: got %s, %q, want %s, %q", tc.env, c.Peer.Transport, c.RDMA.Devices, tc.transport, tc.devices)
		}
		wantWarnings(t, c, tc.warning)
		alone := mustLoad(t, Sources{Environ: []string{tc.env}})
		if !sameValues(alone, mustLoad(t, Sources{})) || len(alone.origins) != 0 || len(alone.Warnings) != 1 || !strings.Contains(alone.Warnings[0], "ignored: ") {
			t.Errorf("%s without bind: %+v", tc.env, alone)
		}
	}
	c := mustLoad(t, Sources{Environ: []string{bindEnv, "MOONCAKE_DEVICE=a", "KVFS_RDMA_DEVICES=b"}})
	wantWarnings(t, c, "ignored: rdma.devices comes from env KVFS_RDMA_DEVICES")
	if !slices.Equal(c.RDMA.Devices, []string{"b"}) {
		t.Errorf("got %q", c.RDMA.Devices)
	}
}

// TestIdleRDMA shows that settings of RDMA are a warning where it is turned off, and are those
// of the owner in mode standalone-store.
func TestIdleRDMA(t *testing.T) {
	c := mustLoad(t, Sources{Environ: []string{bindEnv, "KVFS_RDMA_POLICY=single", "KVFS_RDMA_DEVICES=a"}, Flags: parseFlags(t, "--peer-transport=tcp")})
	wantWarnings(t, c, "peer.transport tcp (flag --peer-transport): no effect have rdma.devices, rdma.policy")
	for _, transport := range []string{Auto, TransportRDMA} {
		wantWarnings(t, mustLoad(t, Sources{Environ: []string{bindEnv, "KVFS_RDMA_POLICY=single", "KVFS_PEER_TRANSPORT=" + transport}}))
	}
	wantWarnings(t, mustLoad(t, Sources{Environ: []string{bindEnv, "KVFS_PEER_TRANSPORT=tcp"}}))
	c = mustLoad(t, Sources{Environ: []string{bindEnv, "KVFS_RDMA_POLICY=single", "KVFS_PEER_TRANSPORT=rdma", "KVFS_MODE=standalone-store"}})
	wantWarnings(t, c, "only kvfs serve heeds bind, peer.transport, rdma.policy")
}
