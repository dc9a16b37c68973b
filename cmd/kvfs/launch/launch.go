// Package launch decides which environment variables and flags kvfs adds to a command, so that
// an inference engine keeps its KV blocks below a mount. It explains what it leaves out.
//
// It is pure: Make looks at a command line, an environment and a mount, and starts nothing.
//
// # The rule
//
// It never changes what the command or the environment already sets. An option counts as given in any form that the engine
// takes: --x v, --x=v, --x_y for --x-y, --x.key v, an abbreviation, repeated, or in a configuration file that the command
// names. If launch cannot know what a command does, it adds only the KVFS_ variables, and a line gives the reason.
//
// # Sources
//
// The names of options, variables and keys are from these versions:
//
//	vLLM       docs/features/kv_offloading_usage.md of v0.26.0 to v0.32.0,
//	           vllm/utils/argparse_utils.py of 2026-08
//	SGLang     python/sglang/launch_server.py and
//	           srt/mem_cache/hicache_storage.py (HiCacheFile) of 2026-08
//	LMCache    lmcache/v1/config.py, config_base.py and
//	           storage_backend/connector of 2026-05; docs.lmcache.ai, fs and mp
//	llama.cpp  common/arg.cpp, tools/server of 2026-04
package launch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Engine is an inference engine that kvfs knows, or a way to choose one.
type Engine string

// Engines, and what else --engine may say.
const (
	Auto     Engine = "auto" // look at the command
	VLLM     Engine = "vllm"
	SGLang   Engine = "sglang"
	LMCache  Engine = "lmcache" // in the process of vLLM or SGLang
	LlamaCpp Engine = "llama.cpp"
	None     Engine = "none" // no engine: KVFS_ variables only
)

// engines are all values of Engine.
var engines = []Engine{Auto, VLLM, SGLang, LMCache, LlamaCpp, None}

// Mount is the mount that the engine shall use.
type Mount struct {
	Dir      string // absolute
	Socket   string // of the owner of the memory; empty: the mount has its own
	NodeName string // may be empty
	Segment  string // the node that owns the memory, for engines that can prefer one; may be empty
}

// Input is the input of Make.
type Input struct {
	Command []string // program and arguments; at least one word
	Environ []string // "NAME=value", as os.Environ
	Engine  Engine
	Mount   Mount

	// EngineMemoryBytes is the host memory that an engine keeps as the gateway between its
	// accelerators and the mount, if it must be told.
	EngineMemoryBytes int64

	// ReadFile reads a configuration file that the command names.
	ReadFile func(name string) ([]byte, error)
}

// Variable is an environment variable that is set for the command.
type Variable struct {
	Name, Value string
	Why         string // its purpose, in a few words
}

// Skip is a thing that was not added.
type Skip struct {
	What string // a flag, a variable, or the name of an engine
	Why  string
}

// Plan is the command to start.
type Plan struct {
	Engine    Engine     // that was recognised, or None
	Command   []string   // with the flags
	Flags     []string   // that were added, in order, with their values
	Variables []Variable // that are added to the environment
	Skipped   []Skip
	Notes     []string // advice
	Dirs      []string // below the mount; they must exist before the command starts
	Model     *Model   // whose blocks vLLM's file tier will keep; nil if that is not known
	NoModel   string   // why it is unknown; empty if Model is set, or vLLM keeps no blocks in the mount
}

// Environ returns environ with the variables of the plan.
func (p *Plan) Environ(environ []string) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(p.Variables, func(v Variable) bool { return v.Name == name })
	})
	for _, v := range p.Variables {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

// String describes the plan, one thing a line.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "engine: %s\n", p.Engine)
	for _, v := range p.Variables {
		fmt.Fprintf(&b, "variable: %s=%s  # %s\n", v.Name, Quote(v.Value), v.Why)
	}
	for _, s := range p.Skipped {
		fmt.Fprintf(&b, "skipped: %s: %s\n", s.What, s.Why)
	}
	for _, note := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	fmt.Fprintf(&b, "command: %s\n", Quote(p.Command...))
	return b.String()
}

// Make plans how to start a command. It fails if the engine is unknown, or not that of the command.
func Make(in Input) (*Plan, error) {
	if !slices.Contains(engines, in.Engine) {
		return nil, fmt.Errorf("unknown engine %q; one of %s", in.Engine, strings.Trim(strings.ReplaceAll(fmt.Sprint(engines), " ", ", "), "[]"))
	}
	b := &builder{in: in, plan: &Plan{Engine: None, Command: slices.Clone(in.Command)}, env: environment(in.Environ)}
	b.export()
	if in.Engine == None {
		return b.plan, nil
	}
	if err := b.engine(); err != nil {
		return nil, err
	}
	return b.plan, nil
}

type builder struct {
	in   Input
	plan *Plan
	env  map[string]string // of the engine: the environment with what the command changes in it

	program program
	options []option // of the engine, that the command has
}

// environment splits "NAME=value" strings. The last of several wins.
func environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}

// export adds our own variables. They state facts, so they replace those of the environment.
func (b *builder) export() {
	for _, v := range []Variable{
		{"KVFS_MOUNT", b.in.Mount.Dir, "the mount point"},
		{"KVFS_SOCKET", b.in.Mount.Socket, "the socket of the owner"},
		{"KVFS_NODE_NAME", b.in.Mount.NodeName, "the name of this node"},
	} {
		if v.Value != "" {
			b.plan.Variables = append(b.plan.Variables, v)
		}
	}
	if b.in.Mount.Segment != "" {
		b.variable("KVFS_PREFERRED_SEGMENT", b.in.Mount.Segment, "the node that owns the memory")
	}
}

func (b *builder) engine() error {
	p, opaque := findProgram(b.in.Command)
	asked := b.in.Engine
	if opaque != "" {
		what := string(asked)
		if asked == Auto {
			what = "engine"
		}
		b.skip(what, "%s", opaque)
		return nil
	}
	chosen, err := choose(asked, p.engine)
	if err != nil {
		return err
	}
	if chosen == None {
		b.skip("engine", "%s", p.why)
		return nil
	}
	b.program, b.options, b.plan.Engine = p, parseOptions(p.args), chosen
	maps.Copy(b.env, p.set)
	if p.engine != None && p.why != "" { // the engine, but not one of its servers
		b.skip(string(chosen), "%s", p.why)
		return nil
	}
	switch chosen {
	case VLLM:
		b.vllm()
	case SGLang:
		b.sglang()
	case LMCache:
		b.lmcache()
	case LlamaCpp:
		b.llama()
	}
	if len(b.plan.Flags) > 0 {
		b.plan.Command = append(b.plan.Command, b.plan.Flags...)
	}
	return nil
}

// choose returns the engine that a command is to use: the one asked for, or with Auto the one found in it. found is None
// if kvfs does not know the program. choose fails if the command is another engine than the one asked for.
func choose(asked, found Engine) (Engine, error) {
	switch {
	case asked == Auto:
		return found, nil
	case found == None, found == asked, asked == LMCache && (found == VLLM || found == SGLang):
		return asked, nil
	}
	return None, fmt.Errorf("the command is %s, not %s", found, asked)
}

// groupDir returns the directory of a group, which it has made.
func (b *builder) groupDir(e Engine) string {
	if !slices.Contains(b.plan.Dirs, string(e)) {
		b.plan.Dirs = append(b.plan.Dirs, string(e))
	}
	return filepath.Join(b.in.Mount.Dir, string(e))
}

func (b *builder) skip(what, format string, args ...any) {
	b.plan.Skipped = append(b.plan.Skipped, Skip{what, fmt.Sprintf(format, args...)})
}

func (b *builder) note(format string, args ...any) {
	b.plan.Notes = append(b.plan.Notes, fmt.Sprintf(format, args...))
}

// flag adds a flag with its value, if it has one. The caller has checked that the command takes it; see closed.
func (b *builder) flag(words ...string) { b.plan.Flags = append(b.plan.Flags, words...) }

// closed reports that the command takes no more options, because it has a -- of its own. It notes that.
func (b *builder) closed(what string) bool {
	if !slices.Contains(b.program.args, "--") {
		return false
	}
	b.skip(what, "options end at the -- of the command")
	return true
}

// variable sets an environment variable, unless the environment or the command has it, even empty.
func (b *builder) variable(name, value, why string) {
	if b.has(name) {
		b.skip(name, "the environment has it")
		return
	}
	b.plan.Variables = append(b.plan.Variables, Variable{name, value, why})
}

// has reports whether the environment or the command sets or removes a variable.
func (b *builder) has(name string) bool {
	_, set := b.env[name]
	return set || slices.Contains(b.program.unset, name)
}

// seed makes the hashes that name blocks the same in every process. Without it LMCache, and vLLM up to v0.25, start their
// chains of hashes from a random number, so that no block of an earlier process or of another node is found.
func (b *builder) seed() {
	b.variable("PYTHONHASHSEED", "0", "equal names for equal blocks in all processes")
}

// configured reports that a configuration file of the command sets one of the options, or cannot be read. It notes that.
func (b *builder) configured(what string, names ...string) bool {
	why := b.fileSets(names...)
	if why != "" {
		b.skip(what, "%s", why)
	}
	return why != ""
}

// fileSets returns how a configuration file of the command sets one of the options, or that it
// cannot be read. It is empty if none does.
func (b *builder) fileSets(names ...string) string {
	for _, o := range b.options {
		if o.name != "config" || o.value == "" {
			continue
		}
		text, err := b.in.ReadFile(o.value)
		if err != nil {
			return fmt.Sprintf("%s may set it, and cannot be read: %v", o.value, err)
		}
		for _, name := range names {
			key := strings.ReplaceAll(regexp.QuoteMeta(name), "-", "[-_]") // in YAML or JSON, at any depth
			if regexp.MustCompile(`(?m)(^|[\s{,"'])` + key + `["']?\s*:`).Match(text) {
				return fmt.Sprintf("%s sets %s", o.value, name)
			}
		}
	}
	return ""
}

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

// vllmCanOffload reports whether --kv-transfer-config may be added to a command without one. It notes the reason if not.
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

// lmcacheURL names the directory of LMCache's file-system connector, as fs://host:port/path; host and port are required and
// mean nothing. Newer versions prefer remote_storage_plugins, and still take it.
const lmcacheURL = "LMCACHE_REMOTE_URL"

// lmcacheStorageKeys are the settings with which LMCache stores blocks. As variables they are in capitals, after LMCACHE_.
var lmcacheStorageKeys = []string{
	"config_file", "remote_url", "remote_storage_plugins", "storage_plugins", "local_disk", "gds_path", "maru_path", "nixl_backends",
}

// lmcacheStorage makes LMCache store blocks as files in the mount. It uses the file-system connector, not local_disk. The
// latter keeps its index in memory: it finds nothing of an earlier process or another node, and fails if a block was evicted.
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

// Model is what a command of vLLM says of its model. A value that is not a number is -1.
type Model struct {
	Path        string // a directory, or the name of a model elsewhere
	Name        string // that clients ask for; never empty
	BlockTokens int    // 0: as vLLM has them
	TP, PP      int    // ranks, 1 unless the command says it
	KVDtype     string // empty: vLLM chooses
	StateDtype  string // likewise
}

// groupOptions are the options that change the groups of layers from those of the model's config.json, or may change them.
var groupOptions = []string{
	"disable-hybrid-kv-cache-manager", "disable-sliding-window", "hf-overrides", "speculative-config", "mamba-cache-mode", "mamba-block-size",
}

// modelOptions are the options that Model is made of.
var modelOptions = []string{
	"model", "served-model-name", "block-size", "tensor-parallel-size", "pipeline-parallel-size", "kv-cache-dtype", "dtype",
	"mamba-ssm-cache-dtype", "mamba-cache-dtype",
}

// model finds the model of the files, or the reason why it is unknown. The files are those of
// the added configuration: one block each.
func (b *builder) model() {
	for _, name := range groupOptions {
		if len(b.given(name)) > 0 {
			b.plan.NoModel = "the command has --" + name
			return
		}
	}
	if b.plan.NoModel = b.fileSets(slices.Concat(groupOptions, modelOptions)...); b.plan.NoModel != "" {
		return
	}
	m := &Model{
		Path: b.said("model"), Name: b.said("served-model-name"), BlockTokens: number(b.said("block-size"), 0),
		TP: number(b.said("tensor-parallel-size", "-tp"), 1), PP: number(b.said("pipeline-parallel-size", "-pp"), 1),
		KVDtype:    cmp.Or(chosen(b.said("kv-cache-dtype")), chosen(b.said("dtype"))),
		StateDtype: cmp.Or(chosen(b.said("mamba-ssm-cache-dtype")), chosen(b.said("mamba-cache-dtype"))),
	}
	if args := b.program.args; m.Path == "" && len(args) > 1 && !strings.HasPrefix(args[0], "-") && !strings.HasPrefix(args[1], "-") {
		m.Path = args[1] // vllm serve MODEL
	}
	if m.Path == "" {
		b.plan.NoModel = "the command does not name the model, after vllm serve or as --model"
		return
	}
	m.Name = cmp.Or(m.Name, m.Path)
	b.plan.Model = m
}

// chosen returns the requested type, or "" if vLLM chooses.
func chosen(dtype string) string {
	if dtype == "auto" {
		return ""
	}
	return dtype
}

// number returns the number in an option, or otherwise if the option is empty.
func number(text string, otherwise int) int {
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// said returns the value of an option that counts, by its name or its short forms, or "". It
// does not check which of two forms comes last.
func (b *builder) said(name string, short ...string) string {
	value, _ := b.last(name)
	for i, arg := range b.program.args {
		word, rest, inline := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(short, word):
		case inline:
			value = rest
		case i+1 < len(b.program.args):
			value = b.program.args[i+1]
		}
	}
	return value
}
