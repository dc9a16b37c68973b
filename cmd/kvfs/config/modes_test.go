package config

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/directio"
)

// TestModes is the matrix of what each mode demands of memory and disk. All violations
// come at once (B1, B2, B3, E16, B32, B33).
func TestModes(t *testing.T) {
	const dirs = `"disk": {"dirs": [{"path": "/a", "size": "1GiB"}]}`
	for _, tc := range []struct {
		name, json string
		want       []string
	}{
		{"embedded", `{"mode": "embedded"}`, nil},
		{"embedded with memory", `{"memory": {"size": "1MiB"}}`, nil},
		{"embedded with disk", `{` + dirs + `}`, nil},
		{"embedded with a socket", `{"store": {"socket": "/s"}}`, nil},
		{"embedded without memory", `{"mode": "embedded", "memory": {"size": 0}}`, []string{"memory.size: 0 is out of range: mode embedded (config-json 1:10) needs memory"}},
		{"standalone-store", `{"mode": "standalone-store"}`, nil},
		{"standalone-store without memory", `{"mode": "standalone-store", "memory": {"size": "0B"}, "disk": {"dirs": []}}`, nil},
		{"standalone-store with a socket", `{"mode": "standalone-store", "store": {"socket": "/s"}}`, nil},
		{"standalone-store with memory", `{"mode": "standalone-store", "memory": {"size": "1B"}}`,
			[]string{"memory.size: 1B excludes mode standalone-store (config-json 1:10), which contributes no memory"}},
		{"standalone-store with disk", `{"mode": "standalone-store", ` + dirs + `}`, []string{"disk.dirs: a disk tier excludes mode standalone-store (config-json 1:10)"}},
		{"standalone-store with all, and more", `{"mode": "standalone-store", "memory": {"size": "1GiB"}, ` + dirs + `, "staging": {"size": "1MiB"}, "groups": {"a": {"strict": true}}}`,
			[]string{"memory.size: 1GiB excludes", "disk.dirs: a disk tier excludes", "staging.size: size 1MiB", "groups.a.strict: strict needs block_size"}},
		{"a disk without a path, and no memory", `{"memory": {"size": 0}, "disk": {"dirs": [{"size": "1GiB"}]}}`, []string{"disk.dirs[0]: path is missing", "memory.size: 0 is out of range"}},
		{"a disk with an empty path", `{"disk": {"dirs": [{"path": " ", "size": "1GiB"}]}}`, []string{"disk.dirs[0]: path is missing"}},
		{"unknown", `{"mode": "shared", "memory": {"size": 0}}`, []string{`mode: unknown value "shared"; one of embedded, standalone-store`}},
		{"relative socket", `{"store": {"socket": "s"}}`, []string{`store.socket: "s" does not name a socket: want a clean path from the root`}},
		{"unclean socket", `{"store": {"socket": "/a/../s"}}`, []string{"does not name a socket"}},
		{"long socket", `{"store": {"socket": "/` + strings.Repeat("s", 107) + `"}}`, []string{"does not name a socket"}},
		{"owner timeout without a unit", `{"store": {"owner_timeout": 30}}`, []string{`store.owner_timeout: "30" needs a unit`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := Load(Sources{InlineJSON: tc.json, MemTotal: testMem, Hostname: testHost})
			if tc.want != nil {
				wantErrors(t, err, tc.want...)
				return
			}
			must(t, err)
			if contributes := c.Memory.Size > 0; contributes != (c.Mode == ModeEmbedded) {
				t.Errorf("mode %s has memory of %v", c.Mode, c.Memory.Size)
			}
			if c.Store.Socket == "" || c.Store.OwnerTimeout != 30e9 {
				t.Errorf("store %+v", c.Store)
			}
		})
	}
	// What it contributes can come from any source.
	_, err := Load(Sources{Environ: []string{"MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb", "KVFS_DISK=path=/a,size=1GiB"}, Flags: parseFlags(t, "--mode=standalone-store")})
	wantErrors(t, err, "env MOONCAKE_GLOBAL_SEGMENT_SIZE: memory.size: 4GiB excludes mode standalone-store (flag --mode)", "env KVFS_DISK: disk.dirs: a disk tier excludes")
	if c, err := Load(Sources{Environ: []string{"MOONCAKE_GLOBAL_SEGMENT_SIZE=0", "KVFS_MODE=standalone-store"}}); err != nil || c.Memory.Size != 0 {
		t.Errorf("a rank that contributes nothing: %+v, %v", c, err)
	}
}

// TestWithoutEffect shows that mode standalone-store warns once of all that only an owner
// heeds, and of nothing that is as by default, or that the mount heeds (B3, D11).
func TestWithoutEffect(t *testing.T) {
	file := writeFile(t, "c.yaml", `
memory: {policy: lru, keep: true, passthrough: "off"}
mount: {allow_other: "on", entry_timeout: 1s, lookup_lease: 1s, temp_patterns: ["*.tmp", "*.tmp.*", ".tmp*", tmp/]}
groups: {g0: {pinned: true}}
bind: "::1"
replicas: 1
join: []
log: {level: warn}
drain_timeout: 1s
`)
	wantWarnings(t, mustLoad(t, Sources{File: file}))
	c := mustLoad(t, Sources{File: file, Environ: []string{"KVFS_MODE=standalone-store", "KVFS_NODE_NAME=x"}, Flags: parseFlags(t, "--http=:1")})
	wantWarnings(t, c, "mode standalone-store (env KVFS_MODE): only kvfs serve heeds memory.keep, groups, mount.lookup_lease, bind, replicas, http")
	for _, mode := range []string{ModeEmbedded, ModeStandaloneStore} {
		wantWarnings(t, mustLoad(t, Sources{Flags: parseFlags(t, "--mode="+mode, "--store-socket=/s", "--store-owner-timeout=1s")}))
	}
	file = writeFile(t, "e.yaml", string(example()))
	wantWarnings(t, mustLoad(t, Sources{File: file, Flags: parseFlags(t, "--mode=standalone-store")}))
	for path := range heeded {
		lookup(path) // which panics if there is none
	}
}

// TestStagingOfBlocks shows that with an SSD tier the usable staging memory must hold
// the largest block of each group with its padding, and without one need not
// (B3, B13, B14, B16).
func TestStagingOfBlocks(t *testing.T) {
	const disk = `"disk": {"dirs": [{"path": "/a", "size": "1GiB"}]}, "staging": {"size": "4MiB", "usable_ratio": 0.5}, `
	const most = 2*scalar.MiB - 8*scalar.KiB // of 2MiB usable
	groups := func(size string) string {
		return `"groups": {"b.c": {"block_size": "` + size + `"}, "a": {"block_size": "` + size + `"}, "learnt": {}}}`
	}
	mustLoad(t, Sources{InlineJSON: "{" + disk + groups(most.String())})
	_, err := Load(Sources{InlineJSON: "{" + disk + groups((most + 1).String()), MemTotal: testMem})
	wantErrors(t, err, `: groups.a.block_size: a block of 2088961B (config-json 1:`, `: groups."b.c".block_size: a block of 2088961B (`)
	for _, part := range []string{"needs 2052KiB of staging, and size 4MiB (config-json 1:", ") times usable_ratio 0.5 (config-json 1:", ") is 2MiB"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
	if !errors.Is(err, scalar.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	// It stands where the later source is.
	_, err = Load(Sources{InlineJSON: "{" + disk + groups(most.String()), Environ: []string{"KVFS_STAGING_USABLE_RATIO=0.4"}, MemTotal: testMem})
	wantErrors(t, err, "env KVFS_STAGING_USABLE_RATIO: staging.usable_ratio: a block of", "env KVFS_STAGING_USABLE_RATIO: staging.usable_ratio: a block of")
	mustLoad(t, Sources{InlineJSON: `{"staging": {"size": "1MiB"}, ` + groups("1TiB")})
	_, err = Load(Sources{InlineJSON: "{" + disk + groups("9223372036854775807B"), MemTotal: testMem})
	wantErrors(t, err, "groups.a.block_size", "block_size")
}

// TestPadded shows that the estimate counts in the units of the package that uses the staging
// memory, and adds a page before and one after (B12, B13).
func TestPadded(t *testing.T) {
	for _, size := range []scalar.Size{0, 1, 4095, 4096, 4097, scalar.MiB, 3*scalar.GiB + 1, math.MaxInt64 - 12*scalar.KiB} {
		if want := directio.AlignUp(int64(size)) + 8192; int64(padded(size)) != want {
			t.Errorf("%d: got %d, want %d", size, padded(size), want)
		}
	}
	if got := padded(math.MaxInt64 - 12*scalar.KiB + 1); got != math.MaxInt64 {
		t.Errorf("beyond: got %d", got)
	}
}

// TestStoreSocket shows where the socket is by default: one place for each user, the
// same for root in a login and in a service.
func TestStoreSocket(t *testing.T) {
	for _, tc := range []struct {
		uid              int
		runtimeDir, want string
	}{
		{0, "", "/run/kvfs/0/store.sock"},
		{0, "/run/user/0", "/run/kvfs/0/store.sock"},
		{1000, "/run/user/1000", "/run/user/1000/kvfs/store.sock"},
		{1000, "/run/user/1000//", "/run/user/1000/kvfs/store.sock"},
		{1000, "", "/run/kvfs/1000/store.sock"},
		{1000, "relative", "/run/kvfs/1000/store.sock"},
	} {
		c := &Config{}
		if err := rationalizeStore(c, tc.uid, tc.runtimeDir); err != nil || c.Store.Socket != tc.want {
			t.Errorf("%d, %q: got %q, %v; want %q", tc.uid, tc.runtimeDir, c.Store.Socket, err, tc.want)
		}
		c.Store.Socket = "/own"
		if err := rationalizeStore(c, tc.uid, tc.runtimeDir); err != nil || c.Store.Socket != "/own" {
			t.Errorf("given: got %q, %v", c.Store.Socket, err)
		}
	}
	err := rationalizeStore(&Config{}, 1000, "/"+strings.Repeat("d", 100))
	if err == nil || !strings.Contains(err.Error(), "store.socket: no default, set it: ") || !errors.Is(err, scalar.ErrInvalid) {
		t.Errorf("long directory: got %v", err)
	}
	want := &Config{}
	must(t, rationalizeStore(want, os.Geteuid(), "/run/user/x"))
	c := mustLoad(t, Sources{Environ: []string{"XDG_RUNTIME_DIR=/run/user/x"}})
	if c.Store.Socket != want.Store.Socket || c.Origin("store.socket").Source != Default {
		t.Errorf("got %q, want %q", c.Store.Socket, want.Store.Socket)
	}
}
