package launch

import (
	"encoding/json"
	"path/filepath"
	"strings"
)

// transferConfig is vLLM's --kv-transfer-config for blocks on a file system.
type transferConfig struct {
	Connector string         `json:"kv_connector"`
	Role      string         `json:"kv_role"`
	OnFailure string         `json:"kv_load_failure_policy,omitempty"`
	Extra     *transferExtra `json:"kv_connector_extra_config,omitempty"`
}

type transferExtra struct {
	Spec        string         `json:"spec_name"`
	CPUBytes    int64          `json:"cpu_bytes_to_use"` // of all workers together; required
	Secondaries []transferTier `json:"secondary_tiers"`
}

type transferTier struct {
	Type string `json:"type"`
	Root string `json:"root_dir"`
}

// recompute makes vLLM compute a block that it cannot load. Its default fails the request.
// Versions without an fs tier do not know it.
const recompute = "recompute"

const transferFlag = "--kv-transfer-config"

// vllm makes vLLM keep its blocks in the fs tier of its offloading connector.
func (b *builder) vllm() {
	if given := b.given("kv-transfer-config"); len(given) > 0 {
		b.skip(transferFlag, "the command has it")
		b.connectors(given)
		return
	}
	for _, name := range []string{"kv-offloading-size", "kv-offloading-backend"} {
		if len(b.given(name)) > 0 {
			b.skip(transferFlag, "vLLM makes one of its own from --%s", name)
			if backend, _ := b.last("kv-offloading-backend"); backend == "lmcache" {
				b.lmcacheStorage()
			}
			return
		}
	}
	if !b.vllmCanOffload() {
		return
	}
	b.flag(transferFlag, toJSON(transferConfig{
		Connector: "OffloadingConnector", Role: "kv_both", OnFailure: recompute,
		Extra: &transferExtra{
			Spec: "TieringOffloadingSpec", CPUBytes: b.in.EngineMemoryBytes,
			Secondaries: []transferTier{{Type: "fs", Root: b.groupDir(VLLM)}},
		},
	}))
	b.seed()
	b.model()
}

// vllmCanOffload reports whether --kv-transfer-config may be added to a command without one. It
// notes the reason if not.
func (b *builder) vllmCanOffload() bool {
	if len(b.given("no-enable-prefix-caching")) > 0 {
		b.skip(transferFlag, "--no-enable-prefix-caching: there is nothing to offload")
		return false
	}
	return !b.configured(transferFlag, "kv-transfer-config", "kv-offloading-size", "kv-offloading-backend") &&
		!b.closed(transferFlag)
}

// connectors sets the variables of connectors that the command has chosen.
func (b *builder) connectors(given []option) {
	var text strings.Builder
	for _, o := range given {
		text.WriteString(o.value + "\n")
	}
	all := text.String()
	switch {
	case strings.Contains(all, "LMCacheMPConnector"):
		b.note("the LMCache server that vLLM connects to has a command line of its own; give it --l2-adapter %s",
			Quote(toJSON(map[string]string{"type": "fs_native", "base_path": filepath.Join(b.in.Mount.Dir, string(LMCache))})))
	case strings.Contains(all, "LMCacheConnector"):
		b.plan.Engine = LMCache
		for _, key := range lmcacheStorageKeys {
			if strings.Contains(all, `"lmcache.`+key+`"`) {
				b.skip(lmcacheURL, "%s sets lmcache.%s", transferFlag, key)
				return
			}
		}
		b.lmcacheStorage()
	}
}

// lmcache makes vLLM or SGLang use LMCache, as requested.
func (b *builder) lmcache() {
	if b.program.engine == SGLang {
		if len(b.given("enable-lmcache")) > 0 {
			b.skip("--enable-lmcache", "the command has it")
		} else if !b.configured("--enable-lmcache", "enable-lmcache") && !b.closed("--enable-lmcache") {
			b.flag("--enable-lmcache")
		}
		b.lmcacheStorage()
		return
	}
	if len(b.given("kv-transfer-config"))+len(b.given("kv-offloading-size"))+len(b.given("kv-offloading-backend")) > 0 {
		b.vllm()
		return
	}
	if b.vllmCanOffload() {
		b.flag(transferFlag, toJSON(transferConfig{Connector: "LMCacheConnectorV1", Role: "kv_both"}))
		b.lmcacheStorage()
	}
}

// lmcacheURL names the directory of LMCache's file-system connector, as fs://host:port/path;
// host and port are required and mean nothing. Newer versions prefer remote_storage_plugins,
// and still take it.
const lmcacheURL = "LMCACHE_REMOTE_URL"

// lmcacheStorageKeys are the settings with which LMCache stores blocks. As variables they are
// in capitals, after LMCACHE_.
var lmcacheStorageKeys = []string{
	"config_file", "remote_url", "remote_storage_plugins", "storage_plugins", "local_disk", "gds_path", "maru_path", "nixl_backends",
}

// lmcacheStorage makes LMCache store blocks as files in the mount. It uses the file-system
// connector, not local_disk. The latter keeps its index in memory: it finds nothing of an
// earlier process or another node, and fails if a block was evicted.
func (b *builder) lmcacheStorage() {
	for _, key := range lmcacheStorageKeys {
		if name := "LMCACHE_" + strings.ToUpper(key); b.has(name) {
			b.skip(lmcacheURL, "the environment has %s", name)
			return
		}
	}
	if strings.ContainsAny(b.in.Mount.Dir, ",?#;%") {
		b.skip(lmcacheURL, "LMCache has no way to write the mount point in a URL")
		return
	}
	b.variable(lmcacheURL, "fs://localhost:0"+b.groupDir(LMCache), "blocks of LMCache as files")
	b.seed()
}

const (
	sglangCache   = "--enable-hierarchical-cache"
	sglangBackend = "--hicache-storage-backend"
	sglangDir     = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
)

// sglang makes SGLang's HiCache keep its third level in files.
func (b *builder) sglang() {
	if len(b.given("enable-lmcache")) > 0 {
		b.skip(sglangCache, "the command has --enable-lmcache")
		b.plan.Engine = LMCache
		b.lmcacheStorage()
		return
	}
	backend, chosen := b.last("hicache-storage-backend")
	if chosen && backend != "file" {
		b.skip(sglangBackend, "the command has it, as %s", backend)
		return
	}
	if dir, set := b.env[sglangDir]; set && !within(dir, b.in.Mount.Dir) {
		b.skip(sglangBackend, "%s is not in the mount", sglangDir)
		return
	}
	if len(b.given("disable-radix-cache")) > 0 {
		b.skip(sglangCache, "--disable-radix-cache excludes it")
		return
	}
	if mode, _ := b.last("disaggregation-mode"); mode == "decode" {
		b.skip(sglangCache, "a decode server of SGLang has no radix cache")
		return
	}
	if b.configured(sglangBackend, "hicache-storage-backend", "enable-lmcache", "disable-radix-cache", "disaggregation-mode") ||
		b.closed(sglangBackend) {
		return
	}
	switch {
	case len(b.given("enable-hierarchical-cache")) > 0:
		b.skip(sglangCache, "the command has it")
	case !b.configured(sglangCache, "enable-hierarchical-cache"):
		b.flag(sglangCache)
	}
	if chosen {
		b.skip(sglangBackend, "the command has it")
	} else {
		b.flag(sglangBackend, "file")
	}
	b.variable(sglangDir, b.groupDir(SGLang), "pages of HiCache as files")
	if _, set := b.last("page-size"); !set {
		b.note("without --page-size, SGLang may make one file a token; --page-size 64 is usual")
	}
}

const slotFlag = "--slot-save-path"

// llama makes llama-server save slots in the mount. There is no variable for it.
func (b *builder) llama() {
	if len(b.given("slot-save-path")) > 0 {
		b.skip(slotFlag, "the command has it")
		return
	}
	if len(b.given("models-preset")) > 0 || b.has("LLAMA_ARG_MODELS_PRESET") {
		b.skip(slotFlag, "it would override the paths in the presets of models")
		return
	}
	if b.closed(slotFlag) {
		return
	}
	b.flag(slotFlag, b.groupDir(LlamaCpp))
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// toJSON encodes a value that always has a JSON form. It does not escape for HTML.
func toJSON(v any) string {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("launch: " + err.Error()) // structs of strings and numbers
	}
	return strings.TrimSuffix(text.String(), "\n")
}
