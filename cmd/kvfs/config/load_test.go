package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// TestNames shows that names map mechanically and that no two settings share
// one, and pins the names that people know by heart.
func TestNames(t *testing.T) {
	seen := make(map[string]string)
	for _, s := range textSettings() {
		for _, name := range []string{s.env(), s.flag()} {
			if other := seen[name]; other != "" {
				t.Errorf("%s: both %s and %s", name, other, s.path)
			}
			seen[name] = s.path
		}
		if isForeign(s.env()) {
			t.Errorf("%s is a foreign variable, too", s.env())
		}
		if s.help == "" {
			t.Errorf("%s has no help", s.path)
		}
	}
	for name, path := range map[string]string{
		"KVFS_MEMORY_SIZE": "memory.size", "memory-size": "memory.size", "memory-policy": "memory.policy",
		"disk": "disk.dirs", "KVFS_DISK": "disk.dirs", "KVFS_DISK_POLICY": "disk.policy", "disk-cascade": "disk.cascade",
		"staging-usable-ratio": "staging.usable_ratio", "directio-engine": "directio.engine", "promotion-on": "promotion.on", "KVFS_PROMOTION_OPEN_DEADLINE": "promotion.open_deadline", "KVFS_EVENTS_ZMQ_BIND": "events.zmq.bind", "events-zmq-templates": "events.zmq.templates", "join": "join", "bind": "bind", "advertise": "advertise", "node-name": "node_name",
		"replicas": "replicas", "peer-gossip-keys": "peer.gossip_keys", "KVFS_TLS_CA": "tls.ca", "readdir-remote": "readdir.remote", "KVFS_RDMA_DEVICES": "rdma.devices", "peer-transport": "peer.transport", "rdma-policy": "rdma.policy",
		"KVFS_PREFERRED_SEGMENT": "preferred_segment", "http": "http", "mode": "mode", "insecure": "insecure", "log-level": "log.level",
	} {
		if seen[name] != path {
			t.Errorf("%s is %q, want %q", name, seen[name], path)
		}
	}
	for _, a := range aliases {
		lookup(a.path)
	}
}

// TestDefaults pins the defaults: memory only, everything else off (A37, B5,
// D15).
func TestDefaults(t *testing.T) {
	got := mustLoad(t, Sources{})
	want := &Config{
		Mode: ModeEmbedded,
		Memory: Memory{
			Size: 4 * scalar.GiB, Policy: "lru", BurstGap: 1e8, HighWatermark: 0.98, LowWatermark: 0.95,
			Huge: "within_size", Passthrough: Auto,
		},
		Mount: Mount{
			AllowOther: Auto, WriteTimeout: 5e9, LookupLease: 30e9, EntryTimeout: 60e9, AttrTimeout: 60e9,
			TempPatterns: []string{"*.tmp", "*.tmp.*", ".tmp*", "tmp/"}, TempExpiry: 3600e9, PlainPatterns: []string{"*.lock", "*.lck", "*.pid"},
			MaxWrite: scalar.MiB, FSName: "kvfs",
		},
		Store:        Store{Socket: fmt.Sprintf("/run/kvfs/%d/store.sock", os.Geteuid()), OwnerTimeout: 30e9},
		DrainTimeout: 30e9, CatchUpRate: 128 * scalar.MiB,
		Disk: Disk{
			Policy: "lru", Cascade: "async", CascadeQueue: scalar.GiB, Admission: "all", SlabSize: 256 * scalar.MiB,
			ScrubRate: 16 * scalar.MiB, RequireMount: Auto, StuckTimeout: 30e9,
		},
		Promotion: Promotion{On: "open", Timeout: 30e9},
		Staging:   Staging{Size: 64 * scalar.MiB, UsableRatio: 0.9},
		DirectIO:  DirectIO{Engine: Auto},
		Peer: Peer{
			Timeout: 5e9, Silence: 3e8, Transport: Auto, GossipProfile: "lan",
			Accept: On, Cascade: "async", LocationMemory: scalar.GiB, Locations: Auto,
		},
		RDMA:    RDMA{Provider: Auto, Policy: "affinity", Cache: 256 * scalar.MiB},
		Readdir: Readdir{Remote: On},
		Events:  Events{ZMQ: ZMQ{Topic: "kv-events", Hash: "int", Encoding: "map", DiskMedium: "STORAGE"}},
		Log:     Log{Level: "info", Format: "console"},
	}
	if !sameValues(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if len(got.origins) != 0 {
		t.Errorf("origins %v, want none", got.origins)
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "{}", "null", "memory:\nmount: {}\n", "memory:\n  size:\n  policy: ''\n"} {
		if c := mustLoad(t, Sources{File: writeFile(t, "c.yaml", empty)}); !sameValues(c, want) {
			t.Errorf("%q: got %+v", empty, c)
		}
	}
}

// TestMemoryDefault shows a quarter of RAM, rounded down to MiB, at least 64MiB.
func TestMemoryDefault(t *testing.T) {
	for _, tc := range []struct{ total, want scalar.Size }{
		{16 * scalar.GiB, 4 * scalar.GiB}, {100 * scalar.MiB, 64 * scalar.MiB}, {1023 * scalar.MiB, 255 * scalar.MiB}, {4*scalar.GiB + 7, scalar.GiB},
	} {
		c, err := Load(Sources{MemTotal: tc.total})
		if err != nil || c.Memory.Size != tc.want {
			t.Errorf("RAM %v: got %v, %v; want %v", tc.total, c.Memory.Size, err, tc.want)
		}
	}
	if total := TotalMemory(); total < scalar.MiB || total > 1<<60 {
		t.Errorf("memory of the machine: %v", total)
	}
	if c, err := Load(Sources{}); err != nil || c.Memory.Size < minMemory || c.Memory.Size%scalar.MiB != 0 {
		t.Errorf("of this machine: %v, %v", c, err)
	}
}

// TestPrecedence: a flag that names a source wins over the variable that does (D3). TestEveryField has the order of the
// sources.
func TestPrecedence(t *testing.T) {
	c := mustLoad(t, Sources{
		Environ: []string{"KVFS_CONFIG=/absent", `KVFS_CONFIG_JSON={"http": ":1"}`},
		Flags:   parseFlags(t, "--config", writeFile(t, "c.yaml", "memory: {size: 1GiB}\n"), "--config-json", `{"http": ":2"}`),
	})
	if c.Memory.Size != scalar.GiB || c.HTTP != ":2" {
		t.Errorf("got size %v, http %q", c.Memory.Size, c.HTTP)
	}
}

// TestMerge shows that groups merge key by key across sources and lists are
// replaced as a whole.
func TestMerge(t *testing.T) {
	l := decode(Sources{
		File: writeFile(t, "c.yaml", `
groups:
  g0: {pinned: true, quota: 1GiB}
  Llama-3.1: {block_size: 2MiB}
mount: {temp_patterns: [a, b, c]}
disk:
  policy: arc
  dirs:
  - {path: /a, size: 1GiB}
  - {path: /b, size: 1GiB}
`),
		InlineJSON: `{"groups": {"g0": {"quota": "2GiB"}, "g1": {}}, "mount": {"temp_patterns": []}}`,
		Flags:      parseFlags(t, "--disk", "path=/c,size=2GiB"),
	})
	if len(l.errs) > 0 {
		t.Fatal(l.errs)
	}
	c := l.cfg
	wantGroups := map[string]Group{
		"g0": {Pinned: true, Quota: 2 * scalar.GiB}, "g1": {}, "Llama-3.1": {BlockSize: 2 * scalar.MiB},
	}
	if !reflect.DeepEqual(c.Groups, wantGroups) {
		t.Errorf("groups %+v, want %+v", c.Groups, wantGroups)
	}
	if len(c.Mount.TempPatterns) != 0 {
		t.Errorf("temp_patterns %q, want none", c.Mount.TempPatterns)
	}
	if want := []DiskDir{{"/c", 2 * scalar.GiB}}; !reflect.DeepEqual(c.Disk.Dirs, want) || c.Disk.Policy != "arc" {
		t.Errorf("disk %+v, want the directories %v and policy arc", c.Disk, want)
	}
	for path, want := range map[string]Source{
		"groups.g0.pinned": File, "groups.g0.quota": InlineJSON, `groups."Llama-3.1".block_size`: File,
		"disk.policy": File, "disk.dirs": Flag, "disk.dirs[0].path": Flag, "disk.dirs[1].path": Default, "mount.temp_patterns": InlineJSON,
	} {
		if got := c.Origin(path); got.Source != want {
			t.Errorf("origin of %s is %v, want kind %d", path, got, want)
		}
	}
}

// TestNullKeeps shows that null for a list leaves what an earlier source gave.
func TestNullKeeps(t *testing.T) {
	c := mustLoad(t, Sources{
		File:       writeFile(t, "c.yaml", "specs: {a: {hash_block_size: 16, groups: [{kind: full, block_size: 16}, {kind: mla, block_size: 16}]}}"),
		InlineJSON: `{"specs": {"a": {"groups": null}}}`,
	})
	if n := len(c.Specs["a"].Groups); n != 2 {
		t.Errorf("%d groups, want 2", n)
	}
}

// TestStringOverrides shows normalize_string_override on every textual setting
// and source: text is trimmed, and empty text means not set (B21).
func TestStringOverrides(t *testing.T) {
	for _, s := range textSettings() {
		text := sample(t, s)
		for _, blank := range []string{"", "  ", "\t\n"} {
			srcs := []Sources{
				{Environ: []string{s.env() + "=" + blank}},
				{Flags: parseFlags(t, "--"+s.flag()+"="+blank)},
			}
			if s.typ.Kind() == reflect.String || s.typ == reflect.TypeFor[scalar.Size]() {
				srcs = append(srcs, Sources{InlineJSON: jsonOf(t, s.path, blank)}, Sources{InlineJSON: jsonOf(t, s.path, nil)})
			}
			for i, src := range srcs {
				if c := mustLoad(t, src); !sameValues(c, mustLoad(t, Sources{})) || c.Origin(s.path).Source != Default {
					t.Errorf("%s: source %d with %q set something", s.path, i, blank)
				}
			}
		}
		want := decode(Sources{Environ: []string{s.env() + "=" + text}}).cfg
		for i, src := range []Sources{
			{Environ: []string{s.env() + "= " + text + " \n"}},
			{Flags: parseFlags(t, "--"+s.flag()+"=\t"+text+" ")},
		} {
			if l := decode(src); len(l.errs) > 0 || !sameValues(l.cfg, want) {
				t.Errorf("%s: source %d with space around: %v", s.path, i, l.errs)
			}
		}
	}
	c := mustLoad(t, Sources{InlineJSON: `{"memory": {"dir": " /dev/shm/x "}}`, Environ: []string{"KVFS_CONFIG=  "}})
	if c.Memory.Dir != "/dev/shm/x" {
		t.Errorf("dir %q", c.Memory.Dir)
	}
}

// GB is the unit of those who sell disks.
const GB scalar.Size = 1e9

// TestCascadeQueue shows what an automatic queue comes to.
func TestCascadeQueue(t *testing.T) {
	for memory, want := range map[string]scalar.Size{"64MiB": 16 * scalar.MiB, "4GiB": scalar.GiB, "100GiB": scalar.GiB, "1MiB": 256 * scalar.KiB} {
		if c := mustLoad(t, Sources{InlineJSON: `{"disk": {"cascade_queue": 0}, "memory": {"size": "` + memory + `"}}`}); c.Disk.CascadeQueue != want {
			t.Errorf("memory.size %s: got %v, want %v", memory, c.Disk.CascadeQueue, want)
		}
	}
	if c := mustLoad(t, Sources{InlineJSON: `{"disk": {"cascade_queue": "5GiB"}}`}); c.Disk.CascadeQueue != 5*scalar.GiB {
		t.Errorf("5GiB: got %v", c.Disk.CascadeQueue)
	}
}

// TestForeignVariables shows what may stand in the environment besides settings:
// our own helpers, and what Kubernetes says about services called kvfs.
func TestForeignVariables(t *testing.T) {
	mustLoad(t, Sources{Environ: []string{
		"KVFS_MOUNT=/mnt", "KVFS_BIN=/bin/kvfs", "KVFS_TEST_X=1", "KVFS_VECTORS=/v", "KVFS_LIBFABRIC=/l", "KVFSX=1", "PATH=/bin", "broken",
		"KVFS_SERVICE_HOST=10.0.0.1", "KVFS_SERVICE_PORT=80", "KVFS_SERVICE_PORT_HTTP=80", "KVFS_PORT=tcp://10.0.0.1:80",
		"KVFS_PORT_80_TCP=tcp://10.0.0.1:80", "KVFS_PORT_80_TCP_ADDR=10.0.0.1", "KVFS_PORT_80_TCP_PROTO=tcp",
		"KVFS_METRICS_SERVICE_HOST=10.0.0.1", "KVFS_METRICS_PORT_9100_TCP_PORT=9100",
	}})
}

// TestExample shows that the example file loads to the defaults, that every
// setting is in it, and that it loads with all comments of settings removed (D14).
func TestExample(t *testing.T) {
	text := string(example())
	if c := mustLoad(t, Sources{File: writeFile(t, "c.yaml", text)}); !sameValues(c, mustLoad(t, Sources{})) {
		t.Errorf("got %+v", c)
	}
	var all strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimLeft(line, " ")
		if setting, ok := strings.CutPrefix(body, "# "); ok && isSettingLine(setting) {
			line = line[:len(line)-len(body)] + setting
		}
		all.WriteString(line)
	}
	l := decode(Sources{File: writeFile(t, "all.yaml", all.String()), TierTypes: testTypes{}})
	if len(l.errs) > 0 {
		t.Fatalf("%v\n%s", l.errs, all.String())
	}
	for _, s := range textSettings() {
		if l.cfg.Origin(s.path).Source != File {
			t.Errorf("%s is not in the example", s.path)
		}
	}
	gemma := l.cfg.Specs["gemma"]
	if len(l.cfg.Groups) != 1 || l.cfg.Disk.Dirs[0].Size != 100*scalar.GiB || *gemma.Retention != 4096 || gemma.Groups[0].Window != 1024 {
		t.Errorf("got %+v", l.cfg)
	}
	if l.validateSpecs(); len(l.errs) > 0 {
		t.Errorf("the spec of the example is refused: %v", l.errs)
	}
}

// isSettingLine tells commented settings from prose: "key: ..." or "- key: ...",
// with a key of the schema.
func isSettingLine(text string) bool {
	key, _, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), "- "), ":")
	if !ok || strings.Contains(key, " ") {
		return false
	}
	known := key == "g0" || key == "gemma"
	var walk func(s *setting)
	walk = func(s *setting) {
		for _, child := range s.settings {
			known = known || child.key == key
			walk(child)
		}
	}
	walk(schema())
	return known
}

// TestPrint shows that what is printed names every origin, is aligned, and loads
// to the same values.
func TestPrint(t *testing.T) {
	file := writeFile(t, "c.yaml", "memory:\n  size: 1536MiB\ngroups:\n  '0x10': {pinned: true}\n  \"a b\\n\": {}\n")
	c := mustLoad(t, Sources{
		File: file, Environ: []string{"KVFS_HTTP=:9100"}, Flags: parseFlags(t, "--mount-temp-patterns=true,x y"),
	})
	text := printedText(t, c)
	for _, want := range []string{
		"  size: 1536MiB ", "# " + file + ":2\n", "# env KVFS_HTTP\n", "# flag --mount-temp-patterns\n",
		`http: ":9100" `, `  "0x10":`, `  "a b\n":`, "# default\n", `["true", "x y"]`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	column := -1
	for line := range strings.Lines(text) {
		if at := strings.Index(line, "  # "); at >= 0 {
			if column < 0 {
				column = at
			}
			if at != column && at < column {
				t.Errorf("comment at column %d, want %d: %q", at, column, line)
			}
		}
	}
	if again := mustLoad(t, Sources{File: writeFile(t, "again.yaml", text)}); !sameValues(c, again) {
		t.Errorf("reloaded %+v\nwant %+v", again, c)
	}
	var l loader
	l.cfg = &Config{Disk: Disk{Dirs: []DiskDir{{"/a", scalar.GiB}, {"/b", 2 * scalar.GiB}}}}
	if text := printedText(t, l.cfg); !strings.Contains(text, "\n    - path: /a ") || !strings.Contains(text, "\n      size: 2GiB ") {
		t.Errorf("disks:\n%s", text)
	}
}

// TestDocs fails when the checked-in pages are not what the struct says (D14).
func TestDocs(t *testing.T) {
	for name, want := range map[string][]byte{"configuration.md": reference(), "kvfs.example.yaml": example()} {
		path := filepath.Join("..", "..", "..", "docs", name)
		if *update {
			must(t, os.WriteFile(path, want, 0o644))
			continue
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("docs/%s is stale (%v): go test ./cmd/kvfs/config -run TestDocs -update", name, err)
		}
	}
}
