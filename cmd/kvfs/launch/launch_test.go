package launch

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

const (
	testMount = "/mnt/kv"
	vllmJSON  = `{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec",` +
		`"cpu_bytes_to_use":1073741824,"secondary_tiers":[{"type":"fs","root_dir":"/mnt/kv/vllm"}]}}`
	lmcacheJSON = `{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}`
	lmcacheVar  = "LMCACHE_REMOTE_URL=fs://localhost:0/mnt/kv/lmcache"
	seedVar     = "PYTHONHASHSEED=0"
	sglangVar   = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/mnt/kv/sglang"
)

var (
	vllmFlags   = []string{"--kv-transfer-config", vllmJSON}
	sglangFlags = []string{"--enable-hierarchical-cache", "--hicache-storage-backend", "file"}
	llamaFlags  = []string{"--slot-save-path", "/mnt/kv/llama.cpp"}
)

// files are the configuration files that commands of the tests name.
func files(name string) ([]byte, error) {
	switch name {
	case "empty.yaml":
		return []byte("model: m\nport: 8000\n"), nil
	case "transfer.yaml":
		return []byte("model: m\nkv_transfer_config:\n  kv_connector: X\n"), nil
	case "hicache.yaml":
		return []byte(`{"model-path": "m", "hicache-storage-backend": "nixl"}`), nil
	case "hierarchical.yaml":
		return []byte("enable-hierarchical-cache: true\n"), nil
	}
	return nil, errors.New("no such file")
}

// row is a command and what it gets.
type row struct {
	command string // split at spaces
	env     []string
	engine  Engine   // asked for
	want    Engine   // found
	flags   []string // added
	vars    []string // added, without KVFS_
	skipped string   // a part of what is said of what was skipped
	note    string
}

func (c row) input() Input {
	return Input{
		Command: strings.Fields(c.command), Environ: c.env, Engine: cmp.Or(c.engine, Auto), Mount: Mount{Dir: testMount}, EngineMemoryBytes: 1 << 30, ReadFile: files,
	}
}

// check runs one row. Flags are to stand at the end of the command.
func check(t *testing.T, c row) *Plan {
	t.Helper()
	in := c.input()
	p, err := Make(in)
	if err != nil {
		t.Fatalf("%s: %v", c.command, err)
	}
	if p.Engine != c.want {
		t.Errorf("%s: engine: got %q, want %q", c.command, p.Engine, c.want)
	}
	if !slices.Equal(p.Flags, c.flags) {
		t.Errorf("%s: flags:\ngot  %q\nwant %q", c.command, p.Flags, c.flags)
	}
	if want := append(slices.Clone(in.Command), c.flags...); !slices.Equal(p.Command, want) {
		t.Errorf("%s: command:\ngot  %q\nwant %q", c.command, p.Command, want)
	}
	var vars []string
	for _, v := range p.Variables {
		if v.Name != "KVFS_MOUNT" {
			vars = append(vars, v.Name+"="+v.Value)
		}
	}
	if !slices.Equal(vars, c.vars) {
		t.Errorf("%s: variables:\ngot  %q\nwant %q", c.command, vars, c.vars)
	}
	var said []string
	for _, s := range p.Skipped {
		if s.What == "" || s.Why == "" {
			t.Errorf("%s: skipped without a reason: %+v", c.command, s)
		}
		said = append(said, s.What+": "+s.Why)
	}
	if all := strings.Join(said, "\n"); !strings.Contains(all, c.skipped) || c.skipped == "" && all != "" {
		t.Errorf("%s: skipped: got %q, want %q", c.command, all, c.skipped)
	}
	if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, c.note) {
		t.Errorf("%s: notes: got %q, want %q", c.command, notes, c.note)
	}
	return p
}

// TestVLLM shows what vLLM gets, and that a configuration of the command is left
// alone in all its forms (E4).
func TestVLLM(t *testing.T) {
	const has = "--kv-transfer-config: the command has it"
	for _, c := range []row{
		{command: "vllm serve m", want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
		{command: "/opt/venv/bin/vllm serve m -tp 2", want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
		{command: "python3 -m vllm.entrypoints.openai.api_server --model m", want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
		{command: "python3.12 -u -X dev -m vllm.entrypoints.cli.main serve m", want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
		{command: "python /opt/venv/bin/vllm serve m", want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
		{command: "vllm serve m", env: []string{"PYTHONHASHSEED=7"}, want: VLLM, flags: vllmFlags, skipped: "PYTHONHASHSEED: the environment has it"},
		{command: "vllm serve m --config empty.yaml", want: VLLM, flags: vllmFlags, vars: []string{seedVar}},

		{command: "vllm serve m --kv-transfer-config {}", want: VLLM, skipped: has},
		{command: "vllm serve m --kv-transfer-config={}", want: VLLM, skipped: has},
		{command: "vllm serve m --kv_transfer_config {}", want: VLLM, skipped: has},
		{command: "vllm serve m --kv-tr {}", want: VLLM, skipped: has},
		{command: "vllm serve m --kv-transfer-config.kv_connector X", want: VLLM, skipped: has},
		{command: "vllm serve m --kv-transfer-config", want: VLLM, skipped: has},
		{command: "vllm serve m --kv-offloading-size 8", want: VLLM, skipped: "vLLM makes one of its own"},
		{command: "vllm serve m --no-enable-prefix-caching", want: VLLM, skipped: "nothing to offload"},
		{command: "vllm serve m --config transfer.yaml", want: VLLM, skipped: "transfer.yaml sets kv-transfer-config"},
		{command: "vllm serve m --config lost.yaml", want: VLLM, skipped: "lost.yaml may set it, and cannot be read"},
		{command: "vllm serve m -- x", want: VLLM, skipped: "options end at the --"},

		{command: "vllm bench throughput", want: VLLM, skipped: "only vllm serve keeps blocks"},
		{command: "vllm", want: VLLM, skipped: "only vllm serve keeps blocks"},
	} {
		check(t, c)
	}
}

// TestLMCache shows that LMCache is told to use its file-system connector, when the
// command has chosen LMCache or --engine says so.
func TestLMCache(t *testing.T) {
	both := []string{lmcacheVar, seedVar}
	const has = "--kv-transfer-config: the command has it"
	for _, c := range []row{
		{command: "vllm serve m --kv-transfer-config " + lmcacheJSON, want: LMCache, vars: both, skipped: has},
		{command: "vllm serve m --kv-transfer-config.kv_connector LMCacheConnectorV1", want: LMCache, vars: both, skipped: has},
		{command: `vllm serve m --kv-transfer-config={"kv_connector":"MultiConnector","x":[{"kv_connector":"NixlConnector"},{"kv_connector":"LMCacheConnectorV1Dynamic"}]}`,
			want: LMCache, vars: both, skipped: has},
		{command: "vllm serve m --kv-offloading-size 8 --kv-offloading-backend lmcache", want: VLLM, vars: both, skipped: "vLLM makes one of its own"},
		{command: "vllm serve m", engine: LMCache, want: LMCache, flags: []string{"--kv-transfer-config", lmcacheJSON}, vars: both},
		{command: "vllm serve m --kv-transfer-config " + lmcacheJSON, engine: LMCache, want: LMCache, vars: both, skipped: has},
		{command: "python -m sglang.launch_server --enable-lmcache", want: LMCache, vars: both, skipped: "the command has --enable-lmcache"},
		{command: "sglang serve --model-path m", engine: LMCache, want: LMCache, flags: []string{"--enable-lmcache"}, vars: both},

		{command: "vllm serve m --kv-transfer-config " + lmcacheJSON, env: []string{"LMCACHE_CONFIG_FILE=/x"}, want: LMCache, skipped: "the environment has LMCACHE_CONFIG_FILE"},
		{command: "vllm serve m --kv-transfer-config " + lmcacheJSON, env: []string{"LMCACHE_REMOTE_URL=lm://x:1"}, want: LMCache, skipped: "the environment has LMCACHE_REMOTE_URL"},
		{command: "vllm serve m --kv-transfer-config " + lmcacheJSON, env: []string{"LMCACHE_LOCAL_DISK="}, want: LMCache, skipped: "the environment has LMCACHE_LOCAL_DISK"},
		{command: `vllm serve m --kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_connector_extra_config":{"lmcache.local_disk":"/x"}}`,
			want: LMCache, skipped: "--kv-transfer-config sets lmcache.local_disk"},
		{command: "vllm serve m --kv-transfer-config.kv_connector LMCacheMPConnector", want: VLLM, skipped: has,
			note: `--l2-adapter '{"base_path":"/mnt/kv/lmcache","type":"fs_native"}'`},
	} {
		check(t, c)
	}
	in := row{command: "vllm serve m", engine: LMCache}.input()
	in.Mount.Dir = "/mnt/a,b"
	if p, err := Make(in); err != nil || len(p.Skipped) != 1 || !strings.Contains(p.Skipped[0].Why, "URL") {
		t.Errorf("mount point with a comma: %+v, %v", p, err)
	}
}

// TestSGLang shows what SGLang gets, and what of it is left out.
func TestSGLang(t *testing.T) {
	const page = "--page-size 64"
	for _, c := range []row{
		{command: "python -m sglang.launch_server --model-path m", want: SGLang, flags: sglangFlags, vars: []string{sglangVar}, note: page},
		{command: "sglang serve --model-path m --page-size=64", want: SGLang, flags: sglangFlags, vars: []string{sglangVar}},
		{command: "python /opt/sglang/launch_server.py --config empty.yaml", want: SGLang, flags: sglangFlags, vars: []string{sglangVar}},
		{command: "sglang serve --enable-hierarchical-cache", want: SGLang, flags: sglangFlags[1:], vars: []string{sglangVar}, skipped: "--enable-hierarchical-cache: the command has it"},
		{command: "sglang serve --config hierarchical.yaml", want: SGLang, flags: sglangFlags[1:], vars: []string{sglangVar}, skipped: "sets enable-hierarchical-cache"},
		{command: "sglang serve --hicache-storage-backend file", want: SGLang, flags: sglangFlags[:1], vars: []string{sglangVar}, skipped: "--hicache-storage-backend: the command has it"},
		{command: "sglang serve --hicache-storage-backend=file --hicache-storage-backend=mooncake", want: SGLang, skipped: "has it, as mooncake"},
		{command: "sglang serve --config hicache.yaml", want: SGLang, skipped: "hicache.yaml sets hicache-storage-backend"},
		{command: "sglang serve --disable-radix-cache", want: SGLang, skipped: "excludes it"},
		{command: "sglang serve --disaggregation-mode decode", want: SGLang, skipped: "no radix cache"},
		{command: "sglang serve m", env: []string{"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/tmp/x"}, want: SGLang, skipped: "is not in the mount"},
		{command: "sglang serve m", env: []string{"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/mnt/kv/mine"}, want: SGLang, flags: sglangFlags, skipped: "the environment has it"},
	} {
		check(t, c)
	}
}

// TestLlama shows what llama.cpp gets. It takes no abbreviations.
func TestLlama(t *testing.T) {
	for _, c := range []row{
		{command: "llama-server -m x.gguf", want: LlamaCpp, flags: llamaFlags},
		{command: "/opt/llama-server --model x.gguf --slots", want: LlamaCpp, flags: llamaFlags},
		{command: "llama-server --slot-save-path /x", want: LlamaCpp, skipped: "the command has it"},
		{command: "llama-server --slot_save_path /x", want: LlamaCpp, skipped: "the command has it"},
		{command: "llama-server --models-preset p.ini", want: LlamaCpp, skipped: "presets"},
		{command: "llama-server", env: []string{"LLAMA_ARG_MODELS_PRESET=p.ini"}, want: LlamaCpp, skipped: "presets"},
		{command: "llama-cli -m x.gguf", want: LlamaCpp, skipped: "--prompt-cache"},
	} {
		check(t, c)
	}
}

// TestWrappers shows which wrappers are looked through, and that nothing is added
// where that is not safe.
func TestWrappers(t *testing.T) {
	llama := func(command string) row { return row{command: command, want: LlamaCpp, flags: llamaFlags} }
	opaque := func(command, why string) row { return row{command: command, want: None, skipped: why} }
	for _, c := range []row{
		llama("env A=b llama-server"),
		llama("/usr/bin/env -u X --chdir=/ A=b C=d llama-server"),
		llama("nice llama-server"), llama("nice -n 5 llama-server"), llama("nice -n5 llama-server"), llama("nice -10 llama-server"),
		llama("numactl --cpunodebind=0 -m 0 llama-server"), llama("numactl -N 1 --localalloc -- llama-server"),
		llama("taskset -c 0-3 llama-server"), llama("chrt -b 0 llama-server"), llama("ionice -c2 -n 7 llama-server"),
		llama("timeout -k 5 1h llama-server"), llama("stdbuf -oL llama-server"), llama("nohup nice setsid llama-server"),
		{command: "torchrun --nproc-per-node 2 --standalone -m sglang.launch_server --model-path m", want: SGLang, flags: sglangFlags, vars: []string{sglangVar}},

		{command: "env PYTHONHASHSEED=5 vllm serve m", want: VLLM, flags: vllmFlags, skipped: "PYTHONHASHSEED: the environment has it"},
		{command: "env -u PYTHONHASHSEED vllm serve m", want: VLLM, flags: vllmFlags, skipped: "PYTHONHASHSEED: the environment has it"},

		opaque("env -i llama-server", "env -i is not looked through"), opaque("env A=b", "env is none that kvfs knows"),
		llama("nice --frobnicate llama-server"), llama("timeout -s KILL 5 llama-server"), opaque("timeout 5", "timeout is none that kvfs knows"),
		opaque("sudo llama-server", "sudo changes the user"), opaque("docker run x llama-server", "container"), opaque("nice sudo vllm serve m", "sudo"),
		opaque("torchrun --frobnicate x.py", "x.py is none"), opaque("torchrun train.py", "train.py is none"),
		opaque("bash start.sh", "bash is none that kvfs knows"), opaque("./start.sh", "start.sh is none"), opaque("python3 serve.py", "serve.py is none"),
		opaque("python3 -c 1", "python is none"), opaque("python3", "python is none"), opaque("python3 -m http.server", "http.server is none"),
		opaque("sh -c llama-server", "what sh -c runs is not looked at"), opaque("env A=b /bin/bash -lc llama-server", "what bash -c runs"),
		opaque("bash", "bash is none that kvfs knows"),
	} {
		check(t, c)
	}
}

// TestAsked shows what --engine does where the command does not say.
func TestAsked(t *testing.T) {
	for _, c := range []row{
		{command: "./start.sh a", engine: VLLM, want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
		{command: "./start.sh --kv-transfer-config={}", engine: VLLM, want: VLLM, skipped: "the command has it"},
		{command: "nice ./start.sh", engine: SGLang, want: SGLang, flags: sglangFlags, vars: []string{sglangVar}},
		{command: "sudo ./start.sh", engine: VLLM, want: None, skipped: "vllm: sudo"},
		{command: "vllm serve m", engine: None, want: None},
		{command: "vllm serve m", engine: Auto, want: VLLM, flags: vllmFlags, vars: []string{seedVar}},
	} {
		check(t, c)
	}
}

// TestExport shows our own variables, which replace those of the environment, and
// the directories that an engine finds.
func TestExport(t *testing.T) {
	p, err := Make(Input{
		Command: []string{"llama-server"}, Environ: []string{"KVFS_MOUNT=/old", "PATH=/bin", "KVFS_MOUNT=/older"},
		Engine: Auto, Mount: Mount{Dir: testMount, Socket: "/run/kvfs/0/sock", NodeName: "gpu-7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"PATH=/bin", "KVFS_MOUNT=/mnt/kv", "KVFS_SOCKET=/run/kvfs/0/sock", "KVFS_NODE_NAME=gpu-7"}
	if got := p.Environ([]string{"KVFS_MOUNT=/old", "PATH=/bin", "KVFS_MOUNT=/older"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var whys []string
	for _, v := range p.Variables {
		whys = append(whys, v.Why)
	}
	if want := []string{"the mount point", "the socket of the owner", "the name of this node"}; !slices.Equal(whys, want) {
		t.Errorf("what the variables are for: got %q, want %q", whys, want)
	}
	if !slices.Equal(p.Dirs, []string{"llama.cpp"}) {
		t.Errorf("directories: got %q", p.Dirs)
	}
}

// TestErrors shows the inputs that make no sense.
func TestErrors(t *testing.T) {
	for want, in := range map[string]Input{
		`unknown engine "tgi"`:                {Command: []string{"x"}, Engine: "tgi", Mount: Mount{Dir: testMount}},
		"the command is vllm, not sglang":     {Command: []string{"vllm", "serve"}, Engine: SGLang, Mount: Mount{Dir: testMount}},
		"the command is llama.cpp, not lmcac": {Command: []string{"llama-server"}, Engine: LMCache, Mount: Mount{Dir: testMount}},
	} {
		if _, err := Make(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestJSON shows that what is added is JSON, whatever the name of the mount.
func TestJSON(t *testing.T) {
	p, err := Make(Input{Command: []string{"vllm", "serve", "m"}, Engine: Auto, Mount: Mount{Dir: "/mnt/<k v>\"&"}, EngineMemoryBytes: 4 << 30})
	if err != nil {
		t.Fatal(err)
	}
	var c transferConfig
	if err := json.Unmarshal([]byte(p.Flags[1]), &c); err != nil {
		t.Fatal(err)
	}
	if c.Extra.CPUBytes != 4<<30 || c.Extra.Secondaries[0].Root != "/mnt/<k v>\"&/vllm" {
		t.Errorf("got %+v", c.Extra)
	}
}
