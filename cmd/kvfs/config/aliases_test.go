package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// TestAliases shows every alias of a single setting in the forms of its own program,
// that the setting's own variable wins over it and the first alias over the next, that
// it wins over files and flags win over it, and that each one is a warning
// (B4, B7, B8, B9, B10, D16).
func TestAliases(t *testing.T) {
	for _, tc := range []struct {
		env      string // separated by spaces
		path     string
		want     any
		origin   string
		warnings []string
	}{
		{"KVFS_TIER_LOG=1", "log.tier_summary", true, "env KVFS_TIER_LOG", nil},
		{"VLLM_MOONCAKE_STORE_TIER_LOG=1", "log.tier_summary", true, "env VLLM_MOONCAKE_STORE_TIER_LOG",
			[]string{"env VLLM_MOONCAKE_STORE_TIER_LOG: taken for log.tier_summary: true; KVFS_LOG_TIER_SUMMARY is its name here"}},
		{"VLLM_MOONCAKE_STORE_TIER_LOG=True", "log.tier_summary", true, "env VLLM_MOONCAKE_STORE_TIER_LOG", []string{"taken for"}},
		{"VLLM_MOONCAKE_STORE_TIER_LOG=1 KVFS_TIER_LOG=0", "log.tier_summary", false, "env KVFS_TIER_LOG",
			[]string{"env VLLM_MOONCAKE_STORE_TIER_LOG: ignored: log.tier_summary comes from env KVFS_TIER_LOG"}},
		{"KVFS_TIER_LOG=1 KVFS_LOG_TIER_SUMMARY=0", "log.tier_summary", false, "env KVFS_LOG_TIER_SUMMARY",
			[]string{"env KVFS_TIER_LOG: ignored: log.tier_summary comes from env KVFS_LOG_TIER_SUMMARY"}},
		{"KVFS_TIER_LOG=", "log.tier_summary", false, "default", nil},

		{"VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO=0.5", "staging.usable_ratio", 0.5, "env VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO", []string{"taken for staging.usable_ratio: 0.5"}},
		{"VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO=0.5 KVFS_STAGING_USABLE_RATIO=1", "staging.usable_ratio", 1.0, "env KVFS_STAGING_USABLE_RATIO", []string{"ignored"}},

		{"MOONCAKE_GLOBAL_SEGMENT_SIZE=4294967296", "memory.size", 4 * scalar.GiB, "env MOONCAKE_GLOBAL_SEGMENT_SIZE",
			[]string{"env MOONCAKE_GLOBAL_SEGMENT_SIZE: taken for memory.size: 4GiB; KVFS_MEMORY_SIZE is its name here"}},
		{"MOONCAKE_GLOBAL_SEGMENT_SIZE=3gb", "memory.size", 3 * scalar.GiB, "env MOONCAKE_GLOBAL_SEGMENT_SIZE", []string{"3GiB"}},
		{"MOONCAKE_GLOBAL_SEGMENT_SIZE=3gb KVFS_MEMORY_SIZE=1GB", "memory.size", scalar.Size(1e9), "env KVFS_MEMORY_SIZE",
			[]string{"env MOONCAKE_GLOBAL_SEGMENT_SIZE: ignored: memory.size comes from env KVFS_MEMORY_SIZE"}},

		{"MOONCAKE_LOCAL_BUFFER_SIZE=1073741824", "staging.size", scalar.GiB, "env MOONCAKE_LOCAL_BUFFER_SIZE", []string{"taken for staging.size: 1GiB"}},
		{"MOONCAKE_LOCAL_BUFFER_SIZE=2gb MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=33554432", "staging.size", 32 * scalar.MiB, "env MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",
			[]string{"taken for staging.size: 32MiB", "env MOONCAKE_LOCAL_BUFFER_SIZE: ignored: staging.size comes from env MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES"}},

		{"MOONCAKE_REQUESTER_LOCAL_HOSTNAME=worker-a:50053", "node_name", "worker-a", "env MOONCAKE_REQUESTER_LOCAL_HOSTNAME", []string{"taken for node_name: worker-a; KVFS_NODE_NAME is"}},
		{"MOONCAKE_REQUESTER_LOCAL_HOSTNAME=fd00::7", "node_name", "", "default", []string{`ignored: "fd00::7" is not a name: want 1 to 64 letters, digits, dots, dashes and underscores; set KVFS_NODE_NAME`}},

		{"MOONCAKE_PREFERRED_SEGMENT=10.0.0.7:50053 KVFS_BIND=::1", "preferred_segment", "10.0.0.7:50053", "env MOONCAKE_PREFERRED_SEGMENT", []string{"taken for preferred_segment"}},
		{"MOONCAKE_PREFERRED_SEGMENT=a:1 KVFS_PREFERRED_SEGMENT=b:1 KVFS_BIND=::1", "preferred_segment", "b:1", "env KVFS_PREFERRED_SEGMENT", []string{"ignored: preferred_segment comes from env KVFS_PREFERRED_SEGMENT"}},
		{"MOONCAKE_PREFERRED_SEGMENT=a:1", "preferred_segment", "", "default", []string{"ignored: without bind there are no peers"}},
	} {
		t.Run(tc.env, func(t *testing.T) {
			c := mustLoad(t, Sources{Environ: strings.Fields(tc.env)})
			got := reflect.ValueOf(c).Elem().FieldByIndex(lookup(tc.path).at).Interface()
			if origin := c.Origin(tc.path).String(); got != tc.want || origin != tc.origin {
				t.Errorf("got %v from %q, want %v from %q", got, origin, tc.want, tc.origin)
			}
			wantWarnings(t, c, tc.warnings...)
		})
	}
	// Among the sources an alias is a variable.
	file := writeFile(t, "c.yaml", "memory: {size: 1GiB}\n")
	segment := []string{"MOONCAKE_GLOBAL_SEGMENT_SIZE=2gb"}
	if c := mustLoad(t, Sources{File: file, Environ: segment}); c.Memory.Size != 2*scalar.GiB {
		t.Errorf("file: got %v", c.Memory.Size)
	}
	c := mustLoad(t, Sources{File: file, Environ: segment, Flags: parseFlags(t, "--memory-size=3GiB")})
	if c.Memory.Size != 3*scalar.GiB {
		t.Errorf("flag: got %v", c.Memory.Size)
	}
	wantWarnings(t, c, "env MOONCAKE_GLOBAL_SEGMENT_SIZE: ignored: memory.size comes from flag --memory-size")
	c = mustLoad(t, Sources{InlineJSON: `{"bind": "::1", "preferred_segment": "x"}`, Environ: []string{"MOONCAKE_PREFERRED_SEGMENT=a:1"}})
	wantWarnings(t, c, "env MOONCAKE_PREFERRED_SEGMENT: ignored: preferred_segment comes from config-json 1:")
}

// wantWarnings demands exactly the given warnings, each with its text fragment.
func wantWarnings(t *testing.T, c *Config, fragments ...string) {
	t.Helper()
	if len(c.Warnings) != len(fragments) {
		t.Fatalf("got %d warnings, want %d: %q", len(c.Warnings), len(fragments), c.Warnings)
	}
	for i, w := range c.Warnings {
		if !strings.Contains(w, fragments[i]) {
			t.Errorf("warning %d:\n got %q\nwant %q", i, w, fragments[i])
		}
	}
}

// TestAliasErrors shows which values of aliases are refused, at the alias, and that
// none is where the setting's own variable wins (B2, B6, B8).
func TestAliasErrors(t *testing.T) {
	for _, tc := range []struct {
		entry, own string
		kind       error
		want       string
	}{
		{"KVFS_TIER_LOG=2", "KVFS_LOG_TIER_SUMMARY=1", scalar.ErrType, `log.tier_summary: "2" is not a boolean`},
		{"VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO=1.01", "KVFS_STAGING_USABLE_RATIO=1", scalar.ErrRange, "staging.usable_ratio: 1.01 is"},
		{"MOONCAKE_GLOBAL_SEGMENT_SIZE=many", "KVFS_MEMORY_SIZE=1GiB", scalar.ErrType, `memory.size: "many" is not a size`},
		{"MOONCAKE_GLOBAL_SEGMENT_SIZE=0", "KVFS_MEMORY_SIZE=1GiB", scalar.ErrRange, "memory.size: 0 is out of range: mode embedded (default) needs memory"},
		{"MOONCAKE_ENABLE_OFFLOAD=2", "KVFS_DISK=path=/a,size=1GiB", scalar.ErrType, `disk.dirs: "2" is not a boolean`},
	} {
		_, err := Load(Sources{Environ: []string{tc.entry}, MemTotal: testMem})
		name, _, _ := strings.Cut(tc.entry, "=")
		wantErrors(t, err, "env "+name+": "+tc.want)
		if !errors.Is(err, tc.kind) {
			t.Errorf("%s: kind: got %v, want %v", tc.entry, err, tc.kind)
		}
		wantWarnings(t, mustLoad(t, Sources{Environ: []string{tc.entry, tc.own}}), "env "+name+": ignored: ")
	}
}

// TestAliasSize pins the units of Mooncake and vLLM.
func TestAliasSize(t *testing.T) {
	for text, want := range map[string]scalar.Size{
		"0": 0, "67108864": 64 * scalar.MiB, "1b": 1, "4kb": 4 * scalar.KiB, "4gb": 4 * scalar.GiB, "4 GB": 4 * scalar.GiB, "80GB": 80 * scalar.GiB, "1.5Gb": 3 * scalar.GiB / 2,
		"2TB": 2 * scalar.TiB, "2t": 2 * scalar.TiB, "16m": 16 * scalar.MiB, "1GiB": scalar.GiB, "0.3kb": 307, "512 mib": 512 * scalar.MiB, "3k": 3 * scalar.KiB,
	} {
		ours, err := aliasSize(text)
		if got, errSize := scalar.ParseSize(ours); err != nil || errSize != nil || got != want {
			t.Errorf("%q: got %q, %v, %v; want %v", text, ours, err, errSize, want)
		}
	}
	for _, text := range []string{"", "gb", "1.2.3", "1e9", "-4gb", "4 g b", "0x10", "8eb", strings.Repeat("9", 41)} {
		if got, err := aliasSize(text); err == nil {
			t.Errorf("%q: got %q, want an error", text, got)
		}
	}
}

// TestAliasesOfSSD shows that the aliases of the SSD tier make one directory if one of
// them turns it on, that it is off by default, that nothing missing goes unsaid, and
// that KVFS_DISK, and the first alias of several, win (D1, D2, D3, D4, D15, E14).
func TestAliasesOfSSD(t *testing.T) {
	const on, path, size = "MOONCAKE_ENABLE_SSD_OFFLOAD=True", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/mnt/x,y", "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=2199023255552"
	one := []DiskDir{{"/mnt/x,y", 2 * scalar.TiB}}
	other := []DiskDir{{"/a", scalar.GiB}}
	file := writeFile(t, "c.yaml", "disk: {dirs: [{path: /a, size: 1GiB}]}\n")
	for _, tc := range []struct {
		name     string
		src      Sources
		want     []DiskDir
		origin   string // without the name of the file
		warnings []string
	}{
		{"all", Sources{Environ: []string{on, path, size}}, one, "env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", []string{
			"env MOONCAKE_ENABLE_SSD_OFFLOAD: taken for disk.dirs: enabled True; KVFS_SSD_ENABLED is its name here",
			"env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH: taken for disk.dirs: path /mnt/x,y; KVFS_SSD_PATH is its name here",
			"env MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES: taken for disk.dirs: size 2199023255552; KVFS_SSD_SIZE is its name here"}},
		{"our names", Sources{Environ: []string{"KVFS_SSD_ENABLED=on", "KVFS_SSD_PATH=/a", "KVFS_SSD_SIZE=1GiB"}}, other, "env KVFS_SSD_PATH", nil},
		{"our names win", Sources{Environ: []string{on, path, size, "KVFS_SSD_PATH=/a", "KVFS_SSD_SIZE=1GiB"}}, other, "env KVFS_SSD_PATH",
			[]string{"taken for", "env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH: ignored: KVFS_SSD_PATH is set", "ignored: KVFS_SSD_SIZE is set"}},
		{"our name turns it off", Sources{Environ: []string{on, path, size, "KVFS_SSD_ENABLED=0"}}, nil, "default",
			[]string{"env KVFS_SSD_ENABLED: ignored: the SSD tier is off", "ignored: KVFS_SSD_ENABLED is set", "ignored: the SSD tier needs to be turned on", "ignored: the SSD tier needs to be turned on"}},
		{"variable of vLLM", Sources{Environ: []string{"MOONCAKE_ENABLE_OFFLOAD=1", path, size}}, one, "env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", []string{"taken", "taken", "taken"}},
		{"variable of Mooncake", Sources{Environ: []string{"MOONCAKE_OFFLOAD_ENABLED=1", path, size}}, one, "env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", []string{"taken", "taken", "taken"}},
		{"own variable", Sources{Environ: []string{on, path, size, "KVFS_DISK=path=/a,size=1GiB"}}, other, "env KVFS_DISK",
			[]string{"ignored: disk.dirs comes from env KVFS_DISK", "ignored: disk.dirs comes from env KVFS_DISK", "ignored: disk.dirs comes from env KVFS_DISK"}},
		{"over the file", Sources{File: file, Environ: []string{on, path, size}}, one, "env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", []string{"taken", "taken", "taken"}},
		{"below flags", Sources{Environ: []string{on, path, size}, Flags: parseFlags(t, "--disk=path=/a,size=1GiB")}, other, "flag --disk",
			[]string{"ignored: disk.dirs comes from flag --disk", "ignored", "ignored"}},
		{"path alone", Sources{Environ: []string{path}}, nil, "default", []string{
			"env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH: ignored: the SSD tier needs to be turned on (KVFS_SSD_ENABLED or MOONCAKE_ENABLE_SSD_OFFLOAD or MOONCAKE_ENABLE_OFFLOAD or MOONCAKE_OFFLOAD_ENABLED) and a size (KVFS_SSD_SIZE or MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES)"}},
		{"off wins over the file", Sources{File: file, Environ: []string{"MOONCAKE_ENABLE_OFFLOAD=0"}}, nil, "env MOONCAKE_ENABLE_OFFLOAD", []string{"taken for disk.dirs: enabled 0"}},
		{"our off wins over the file", Sources{File: file, Environ: []string{"KVFS_SSD_ENABLED=0", path}}, nil, "env KVFS_SSD_ENABLED",
			[]string{"env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH: ignored: the SSD tier is off: env KVFS_SSD_ENABLED"}},
		{"off, below flags", Sources{File: file, Environ: []string{"KVFS_SSD_ENABLED=0"}, Flags: parseFlags(t, "--disk=path=/a,size=1GiB")}, other, "flag --disk",
			[]string{"env KVFS_SSD_ENABLED: ignored: disk.dirs comes from flag --disk"}},
		{"on, the rest in the file", Sources{File: file, Environ: []string{on}}, other, "", []string{"ignored: disk.dirs comes from "}},
		{"on and a path, the rest in a flag", Sources{Environ: []string{on, path}, Flags: parseFlags(t, "--disk=path=/a,size=1GiB")}, other, "flag --disk", []string{"ignored", "ignored"}},
		{"off", Sources{Environ: []string{"MOONCAKE_ENABLE_OFFLOAD=false"}}, nil, "default", []string{"ignored: the SSD tier is off, as by default"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := mustLoad(t, tc.src)
			if got := c.Origin(diskDirs).String(); !reflect.DeepEqual(c.Disk.Dirs, tc.want) || !strings.HasPrefix(got, tc.origin) {
				t.Errorf("got %v from %q, want %v from %q", c.Disk.Dirs, got, tc.want, tc.origin)
			}
			wantWarnings(t, c, tc.warnings...)
		})
	}
	c := mustLoad(t, Sources{Environ: []string{on, path, size}})
	if o := c.Origin("disk.dirs[0].size").String(); o != "env MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES" {
		t.Errorf("origin of the size: %q", o)
	}
	for _, tc := range []struct{ env, want []string }{
		{[]string{on}, []string{"env MOONCAKE_ENABLE_SSD_OFFLOAD: disk.dirs: the SSD tier is on, and needs a path (KVFS_SSD_PATH or MOONCAKE_OFFLOAD_FILE_STORAGE_PATH) and a size (KVFS_SSD_SIZE or MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES), or KVFS_DISK=path=DIR,size=SIZE"}},
		{[]string{on, path}, []string{"disk.dirs: the SSD tier is on, and needs a size (KVFS_SSD_SIZE or"}},
		{[]string{"KVFS_SSD_ENABLED=1", size}, []string{"env KVFS_SSD_ENABLED: disk.dirs: the SSD tier is on, and needs a path (KVFS_SSD_PATH or"}},
		{[]string{on, path, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=1"}, []string{"env MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES: disk.dirs[0].size: 1B is out of range: want at least 1MiB"}},
		{[]string{on, path, "KVFS_SSD_SIZE=4"}, []string{`env KVFS_SSD_SIZE: disk.dirs[0].size: "4" needs a unit`}},
		{[]string{on, path, size, "KVFS_MODE=standalone-store"}, []string{"env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH: disk.dirs: a disk tier excludes mode standalone-store (env KVFS_MODE)"}},
	} {
		_, err := Load(Sources{Environ: tc.env, MemTotal: testMem})
		wantErrors(t, err, tc.want...)
	}
}

// TestUnmatched shows that variables without a counterpart are one warning each, which
// says what to set instead, and never an error; and that what only engines need is not
// even that (D16, F3).
func TestUnmatched(t *testing.T) {
	defaults := mustLoad(t, Sources{})
	var environ []string
	for _, s := range unmatched {
		environ = append(environ, s.name+"=::?!")
		c := mustLoad(t, Sources{Environ: []string{s.name + "=::?!"}})
		wantWarnings(t, c, "env "+s.name+": ignored: "+s.instead)
		if !sameValues(c, defaults) {
			t.Errorf("%s changed something: %+v", s.name, c)
		}
		for word := range strings.FieldsSeq(strings.ReplaceAll(s.instead, ",", "")) {
			known := slices.ContainsFunc(textSettings(), func(t *textSetting) bool { return t.env() == word })
			if strings.HasPrefix(word, envPrefix) && !known && !isForeign(word) {
				t.Errorf("%s: says %s, which does not exist", s.name, word)
			}
		}
	}
	if c := mustLoad(t, Sources{Environ: environ}); len(c.Warnings) != len(unmatched) {
		t.Errorf("together: %q", c.Warnings)
	}
	for _, e := range engines {
		wantWarnings(t, mustLoad(t, Sources{Environ: []string{e.name + "=/elsewhere"}}))
	}
	wantWarnings(t, mustLoad(t, Sources{Environ: []string{"MOONCAKE_MASTER= ", "MOONCAKE_WHATEVER=1", "MC_X=1"}}))
}

// TestAliasesAreDocumented shows that the reference page has each of them, in a table.
func TestAliasesAreDocumented(t *testing.T) {
	page := string(reference())
	for _, a := range aliases {
		if !strings.Contains(page, "\n| `"+a.name+"` | `"+a.path+"`") {
			t.Errorf("%s is not on the page", a.name)
		}
	}
	for _, s := range unmatched {
		if !strings.Contains(page, "\n| `"+s.name+"` | none | ") {
			t.Errorf("%s is not on the page", s.name)
		}
	}
	for _, e := range engines {
		if !strings.Contains(page, "\n| `"+e.name+"` | none | ") {
			t.Errorf("%s is not on the page", e.name)
		}
	}
}
