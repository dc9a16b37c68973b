package config

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md and docs/kvfs.example.yaml")

// wantErrors demands that err consists of exactly the given violations, in
// order, each with its text fragment.
func wantErrors(t *testing.T, err error, fragments ...string) {
	t.Helper()
	var got []error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		got = joined.Unwrap()
	}
	if len(got) != len(fragments) {
		t.Fatalf("got %d violations, want %d:\n%v", len(got), len(fragments), err)
	}
	for i, e := range got {
		if _, ok := errors.AsType[*Error](e); !ok {
			t.Errorf("violation %d is a %T", i, e)
		}
		if !strings.Contains(e.Error(), fragments[i]) {
			t.Errorf("violation %d:\n got %q\nwant %q", i, e, fragments[i])
		}
	}
}

// TestRejectFile shows the ways in which a file is refused, with kind, line and text (A36, A38, B2, B3, B6, A35). The values that
// a setting takes are in the reference (TestDocs).
func TestRejectFile(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		kind       error
		want       string // behind the file's name
	}{
		{"unknown key", "\nmemorry: {}\n", scalar.ErrUnknown, `:2: unknown key "memorry"; did you mean "memory"?`},
		{"unknown key below", "memory:\n  polcy: lru\n", scalar.ErrUnknown, `:2: unknown key "memory.polcy"; did you mean "memory.policy"?`},
		{"key in the wrong place", "size: 1GiB\n", scalar.ErrUnknown, `:1: unknown key "size"; did you mean "memory.size"?`},
		{"removed key", "store_threshold: 2\n", scalar.ErrUnknown, `:1: unknown key "store_threshold"; known here: mode, memory,`},
		{"merge key", "memory:\n  <<: {keep: true}\n", scalar.ErrUnknown, `:2: memory: merge keys`},
		{"duplicate key", "memory:\n  keep: true\n  keep: true\n", scalar.ErrDuplicate, `:3: duplicate key "memory.keep", first given in line 2`},
		{"second document", "mode: embedded\n---\nmode: embedded\n", scalar.ErrSyntax, `:2: a second document`},
		{"syntax", "memory: {size: 1GiB\n", scalar.ErrSyntax, `:1: did not find expected ',' or '}': a bracket is not closed`},
		{"tab", "memory:\n\tsize: 1GiB\n", scalar.ErrSyntax, `:2: a tab indents the line: YAML wants spaces`},
		{"too deep", "memory:\n  size: 1GiB\n    dir: /x\n", scalar.ErrSyntax, `:3: mapping values are not allowed in this context: a colon too many, or the line is indented deeper`},
		{"open quote", "http: \"a\n", scalar.ErrSyntax, `found unexpected end of stream: a quote or a bracket is not closed`},
		{"alias", "http: *x\n", scalar.ErrSyntax, `unknown anchor 'x' referenced: put a value that begins with * in quotes`},
		{"not text", "\xff\xfe\n", scalar.ErrSyntax, `the text is not UTF-8: save it as that`},
		{"percent", "http: %a\n", scalar.ErrSyntax, `:1: found character that cannot start any token: put a value that begins so in quotes`},
		{"object", "object: {bucket: a}\n", scalar.ErrUnknown, `unknown key "object": a bucket is a tier: write tiers: [{type: object, url: s3://BUCKET/PREFIX}]`},
		{"path of the SSD", "disk: {path: /a}\n", scalar.ErrUnknown, `unknown key "disk.path": each directory of the SSD tier has its own: write disk: {dirs: [{path: DIR, size: SIZE}]}`},
		{"mount point", "mount: {dir: /a}\n", scalar.ErrUnknown, `unknown key "mount.dir": the mount point is an argument: kvfs mount DIR`},
		{"dotted key", "memory.size: 1GiB\n", scalar.ErrUnknown, `unknown key "memory.size": write it as a section: memory: {size: ...}`},
		{"string for a list", "join: a:1,b:2\n", scalar.ErrType, `join: the string "a:1,b:2" is not a sequence: want [a:1,b:2]`},
		{"no mapping", "- 1\n", scalar.ErrType, `:1: a sequence is not a mapping: want the keys mode, memory`},
		{"scalar for a section", "memory: 4GiB\n", scalar.ErrType, `:1: memory: the string "4GiB" is not a mapping: want the keys size, policy`},
		{"scalar for a table", "groups: 4\n", scalar.ErrType, `groups: the number 4 is not a mapping: want names, each with pinned, quota`},
		{"mapping for a scalar", "http: {a: 1}\n", scalar.ErrType, `http: a mapping is not a string`},
		{"key that is none", "? [a]\n: b\n", scalar.ErrType, `a sequence is not a key`},

		{"URL without a scheme", "otlp: 127.0.0.1:4318\n", scalar.ErrInvalid, `otlp: "127.0.0.1:4318" is not http://host:port`},
		{"URL of another scheme", "otlp: ftp://127.0.0.1\n", scalar.ErrInvalid, `otlp: "ftp://127.0.0.1" is not http://host:port`},
		{"URL without a host", "otlp: 'http://'\n", scalar.ErrInvalid, `otlp: "http://" is not http://host:port`},
		{"URL with a password", "otlp: http://u:p@127.0.0.1\n", scalar.ErrInvalid, `is not http://host:port`},

		{"string for a boolean", "memory: {keep: \"false\"}\n", scalar.ErrType, `memory.keep: the string "false" is not a boolean: write true or false, without quotes`},
		{"number for a string", "node_name: 7\n", scalar.ErrType, `node_name: the number 7 is not a string`},
		{"time for a string", "node_name: 2001-01-01\n", scalar.ErrType, `node_name: "2001-01-01", of type timestamp, is not a string`},
		{"string for an integer", "replicas: \"1\"\n", scalar.ErrType, `replicas: the string "1" is not an integer: write it without quotes`},
		{"boolean for a size", "memory: {size: true}\n", scalar.ErrType, `the boolean true is not a size, such as 4GiB`},

		{"size without unit", "memory:\n  size: 4096\n", scalar.ErrUnit, `:2: memory.size: "4096" needs a unit: 4096B, 4096KiB`},
		{"size with unknown unit", "memory: {size: 4G}\n", scalar.ErrUnit, `"4G" has the unknown unit "G"; one of B, KiB`},
		{"negative size", "memory: {size: -1GiB}\n", scalar.ErrRange, `memory.size: "-1GiB" is negative`},
		{"negative duration", "drain_timeout: -5s\n", scalar.ErrRange, `drain_timeout: "-5s" is negative`},
		{"huge size", "memory: {size: 99999999TiB}\n", scalar.ErrRange, `is more than 9223372036854775807 bytes`},
		{"part of a byte", "memory: {size: 0.3KiB}\n", scalar.ErrType, `is not a whole number of bytes`},
		{"negative integer", "replicas: -1\n", scalar.ErrRange, `replicas: -1 is out of range: want 0 to 16`},
		{"watermark above one", "memory: {high_watermark: 1.01}\n", scalar.ErrRange, `memory.high_watermark: 1.01 is out of range: want above 0, at most 1`},
		{"watermarks", "memory:\n  low_watermark: 0.9\n  high_watermark: 0.9\n", scalar.ErrInvalid, `:2: memory.low_watermark: low_watermark 0.9 (`},
		{"write too large", "mount: {max_write: 2MiB}\n", scalar.ErrRange, `mount.max_write: 2MiB is out of range: want 4KiB to 1MiB`},

		{"strict without a size", "groups: {g: {strict: true}}\n", scalar.ErrInvalid, `groups.g.strict: strict needs block_size`},             // C15
		{"memory policy", "memory: {numa: 'bind:'}\n", scalar.ErrInvalid, `memory.numa: "bind:" is not a memory policy: want bind:NODES`},     // A12
		{"version", "memery: {}\nversion: 2\n", scalar.ErrEnum, `:2: version: the number 2 is not a version of this configuration; known: 1`}, // B5
		{"version in words", "version: {major: 1}\n", scalar.ErrEnum, `version: a mapping is not a version`},
		{"version twice", "version: 1\nversion: 1\n", scalar.ErrDuplicate, `duplicate key "version"`},
		{"enum", "memory: {policy: mru}\n", scalar.ErrEnum, `memory.policy: unknown value "mru"; one of lru, arc, mq, s3fifo`},
		{"pattern", "mount:\n  temp_patterns:\n  - ok\n  - '[a'\n", scalar.ErrInvalid, `:4: mount.temp_patterns[1]: "[a" is not a pattern`},
		{"empty pattern", "mount: {temp_patterns: [a, '']}\n", scalar.ErrInvalid, `mount.temp_patterns[1]: the element is empty`},
		{"fs name", "mount: {fs_name: 'a,b'}\n", scalar.ErrInvalid, `mount.fs_name: "a,b" holds ','`},
		{"group name", "groups: {'a/b': {}}\n", scalar.ErrInvalid, `groups: "a/b" cannot name a group`},
		{"group reserved", "groups: {.kvfs: {}}\n", scalar.ErrInvalid, `groups: ".kvfs" is reserved`},

		{"disk as a list", "disk: [{path: /a, size: 1GiB}]\n", scalar.ErrType, `:1: disk: a sequence is not a mapping: want the keys dirs, policy`},
		{"disk without size", "disk:\n  dirs:\n  - path: /a\n", scalar.ErrInvalid, `:3: disk.dirs[0]: size is missing`},
		{"disk without path", "disk: {dirs: [{path: /a, size: 1GiB}, {size: 1GiB}]}\n", scalar.ErrInvalid, `disk.dirs[1]: path is missing`},
		{"disk twice", "disk:\n  dirs:\n  - {path: /a/b/, size: 1GiB}\n  - {path: /a/./b, size: 1GiB}\n", scalar.ErrInvalid, `:4: disk.dirs[1].path: "/a/./b" is disk.dirs[0].path, "/a/b"`},
		{"disk below another", "disk: {dirs: [{path: /a, size: 1GiB}, {path: /a/b, size: 1GiB}]}\n", scalar.ErrInvalid, `disk.dirs[1].path: "/a/b" is below disk.dirs[0].path, "/a"`},
		{"disk above another", "disk: {dirs: [{path: /a/b, size: 1GiB}, {path: /, size: 1GiB}]}\n", scalar.ErrInvalid, `disk.dirs[1].path: "/" is above disk.dirs[0].path, "/a/b"`},
		{"disk in memory", "memory: {dir: /m}\ndisk: {dirs: [{path: /m, size: 1GiB}]}\n", scalar.ErrInvalid, `:2: disk.dirs[0].path: "/m" is memory.dir, "/m"`},
		{"small slab", "disk: {slab_size: 512KiB}\n", scalar.ErrRange, `disk.slab_size: 512KiB is out of range: want 1MiB to 1TiB, a multiple of 4KiB`},
		{"little of it usable", "staging:\n  size: 2MiB\n  usable_ratio: 0.25\ndisk: {dirs: [{path: /a, size: 1GiB}]}\n", scalar.ErrInvalid, `:2: staging.size: size 2MiB (`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := writeFile(t, "c.yaml", tc.text)
			c, err := Load(Sources{File: file, MemTotal: testMem})
			if c != nil {
				t.Errorf("got a configuration: %+v", c)
			}
			if !errors.Is(err, tc.kind) {
				t.Errorf("kind: got %v, want %v", err, tc.kind)
			}
			if !strings.HasPrefix(tc.want, ":") {
				wantErrors(t, err, tc.want)
			} else {
				wantErrors(t, err, file+tc.want)
			}
		})
	}
	// What only looks like one of them is fine.
	mustLoad(t, Sources{InlineJSON: `{"join": [], "disk": {"dirs": []}, "insecure": false, "replicas": 0, "bind": "", "peer": {"timeout": "5s"}}`})
	mustLoad(t, Sources{InlineJSON: `{"memory": {"headroom": 0}, "drain_timeout": "0"}`})
	mustLoad(t, Sources{InlineJSON: "{\n\t\"memory\": {\n\t\t\"size\": \"1GiB\"\n\t}\n}\n"})
	mustLoad(t, Sources{InlineJSON: "groups: {a: &x {pinned: true}, b: *x}"})
	mustLoad(t, Sources{InlineJSON: `{"disk": {"dirs": [{"path": "/a", "size": "1MiB"}, {"path": "/ab", "size": "1GiB"}, {"path": "/b/a", "size": "1GiB"}], "daily_write_budget": "1B"}}`})
	mustLoad(t, Sources{InlineJSON: `{"disk": {"dirs": [{"path": "/m2", "size": "1MiB"}]}, "memory": {"dir": "/m"}, "staging": {"size": "1MiB", "usable_ratio": 1}}`})
	// Without an SSD tier there is no staging budget (B14).
	mustLoad(t, Sources{InlineJSON: `{"staging": {"size": "1MiB", "usable_ratio": 0.001}}`})
}

// TestRejectText does the same for the environment, flags and inline JSON, whose
// places are named differently (A36, B6).
func TestRejectText(t *testing.T) {
	for _, tc := range []struct {
		name   string
		env    string
		args   []string
		inline string
		kind   error
		want   []string
	}{
		{name: "unknown variable", env: "KVFS_MEMORY_SISE=1GiB", kind: scalar.ErrUnknown,
			want: []string{`env KVFS_MEMORY_SISE: unknown variable "KVFS_MEMORY_SISE"; did you mean "KVFS_MEMORY_SIZE"?`}},
		{name: "table as variable", env: "KVFS_GROUPS={}", kind: scalar.ErrUnknown, want: []string{`unknown variable "KVFS_GROUPS"`}},
		{name: "env disk", env: "KVFS_DISK=path=/a,size=1GiB;path=/a,size=2GiB", kind: scalar.ErrInvalid, want: []string{`env KVFS_DISK: disk.dirs[1].path: "/a" is disk.dirs[0].path`}},
		{name: "env disk by its path", env: "KVFS_DISK_DIRS=path=/a,size=1GiB", kind: scalar.ErrUnknown, want: []string{`unknown variable "KVFS_DISK_DIRS"`}},
		{name: "later source names the place", inline: `{"disk": {"dirs": [{"path": "/a", "size": "1GiB"}]}, "staging": {"size": "2MiB"}}`, args: []string{"--staging-usable-ratio=0.4"}, kind: scalar.ErrInvalid,
			want: []string{"flag --staging-usable-ratio: staging.usable_ratio: size 2MiB (config-json 1:74) times usable_ratio 0.4 (flag --staging-usable-ratio) is 838860B: want at least 1MiB"}},
		{name: "flag disk, unknown key", args: []string{"--disk", "path=/a,size=1GiB,sise=1"}, kind: scalar.ErrUnknown, want: []string{`unknown key "disk.dirs[0].sise"; did you mean "disk.dirs[0].size"?`}},
		{name: "flag disk, key twice", args: []string{"--disk", "path=/c,size=1GiB", "--disk", "path=/a,path=/b,size=1GiB"}, kind: scalar.ErrDuplicate, want: []string{`duplicate key "disk.dirs[1].path"`}},
		{name: "flag disk, no key", args: []string{"--disk", "/a"}, kind: scalar.ErrSyntax, want: []string{`"/a" is not key=value: want path=STRING,size=SIZE`}},
		{name: "inline position", inline: "{\n  \"memory\": {\"keep\": \"false\"}}", kind: scalar.ErrType, want: []string{`config-json 2:22: memory.keep: the string "false" is not a boolean`}},
		{name: "env, a section too many", env: "KVFS_PEER_BIND=127.0.0.1", kind: scalar.ErrUnknown, want: []string{`unknown variable "KVFS_PEER_BIND"; did you mean "KVFS_BIND"?`}},
		{name: "inline trailing", inline: `{} {}`, kind: scalar.ErrSyntax, want: []string{`config-json 1:`}},
		{name: "inline null byte", inline: "{\"http\": \"\x00\"}", kind: scalar.ErrSyntax, want: []string{`control characters are not allowed: the text has bytes that are not text`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(Sources{Environ: []string{tc.env}, Flags: parseFlags(t, tc.args...), InlineJSON: tc.inline, MemTotal: testMem})
			if !errors.Is(err, tc.kind) {
				t.Errorf("kind: got %v, want %v", err, tc.kind)
			}
			wantErrors(t, err, tc.want...)
		})
	}
}

// TestAllAtOnce shows that violations of all sources and steps come in one
// error, in the order of the sources, also when a later source would win, and
// that one wrong value is not reported twice (B3).
func TestAllAtOnce(t *testing.T) {
	file := writeFile(t, "c.yaml", `
memory:
  size: 4096
  low_watermark: 2
  policy: mru
  nope: 1
groups: {a/b: {}}
replicas: 1
`)
	_, err := Load(Sources{
		File:       file,
		InlineJSON: `{"log": {"level": "loud"}}`,
		Environ:    []string{"KVFS_MEMORY_KEEP=2", "KVFS_NOPE=1", "KVFS_MEMORY_POLICY=lru"},
		Flags:      parseFlags(t, "--mount-max-write=1GiB", "--http=x"),
		MemTotal:   testMem,
	})
	wantErrors(t, err,
		file+":3: memory.size:", file+":4: memory.low_watermark:", file+":5: memory.policy:",
		file+`:6: unknown key "memory.nope"`, file+":7: groups:",
		"config-json 1:19: log.level:", "env KVFS_MEMORY_KEEP:", "env KVFS_NOPE:",
		"flag --mount-max-write:", "flag --http:", file+":8: replicas: it needs bind")
}

// TestFileErrors shows what becomes of files that cannot be read.
func TestFileErrors(t *testing.T) {
	_, err := Load(Sources{File: "/absent/kvfs.yaml"})
	wantErrors(t, err, "/absent/kvfs.yaml: no such file or directory")
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	_, err = Load(Sources{File: t.TempDir()})
	wantErrors(t, err, "is a directory")
	big := writeFile(t, "c.yaml", strings.Repeat("#", maxFile+1))
	_, err = Load(Sources{File: big})
	wantErrors(t, err, "the file has more than 4MiB")
}
