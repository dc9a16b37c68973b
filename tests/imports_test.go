// Package tests checks the tree itself: which package may import which, the
// house style, and the documentation. The directories below it
// hold the black-box tests and benchmarks.
package tests

import (
	"errors"
	"go/parser"
	"go/token"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kvfs/kvfs"

// row is a package's place in the import table.
type row struct {
	level int
	may   []string // packages of ours it may import; "*" stands for every lower level
}

// table lists every package of ours outside tests/. A package that is not here
// may not exist: adding it means deciding its level.
var table = map[string]row{
	"clients/go":      {0, nil},
	"directio":        {0, nil},
	"rdma":            {0, nil},
	"tiers/block":     {0, nil},
	"tiers/draft":     {0, nil},
	"tiers/index":     {0, nil},
	"tiers/invariant": {0, nil},
	"tiers/latency":   {0, nil},
	"tiers/pattern":   {0, nil},
	"tiers/policy":    {0, nil},

	"directio/faultio": {1, []string{"directio"}},
	"rdma/tcp":         {1, []string{"rdma"}},
	"rdma/fabric":      {1, []string{"rdma"}},
	"rdma/nic":         {1, nil},
	"rdma/inproc":      {1, []string{"rdma"}},
	"rdma/rdmatest":    {1, []string{"rdma"}},
	"tiers/driver":     {1, []string{"tiers/block"}},
	"tiers/blobs":      {2, []string{"tiers/block", "tiers/driver"}},
	"tiers/outcome":    {1, []string{"tiers/block"}},
	"tiers/hybrid":     {1, []string{"tiers/block"}},
	"tiers/reuse":      {1, []string{"tiers/latency"}},
	"tiers/room":       {1, []string{"tiers/block", "tiers/index", "tiers/invariant", "tiers/policy"}},
	"tiers/template":   {1, []string{"tiers/block"}},
	"cluster":          {9, []string{"tiers/block", "tiers/invariant", "rdma", "cluster/location", "cluster/feed", "cluster/gossip", "cluster/pki", "cluster/wire", "cluster/breaker", "cluster/control", "cluster/grave", "cluster/lease", "cluster/message", "cluster/meta", "cluster/owner", "cluster/remote"}},
	"cluster/owner":    {2, []string{"rdma", "cluster/control", "cluster/feed", "cluster/location", "cluster/message", "cluster/wire"}},
	"cluster/message":  {1, []string{"tiers/block", "rdma", "cluster/location", "cluster/wire"}},
	"cluster/remote":   {3, []string{"tiers/block", "rdma", "cluster/meta", "cluster/wire"}},
	"cluster/meta":     {2, []string{"cluster/gossip", "cluster/wire"}},
	"cluster/lease":    {1, []string{"rdma"}},
	"cluster/grave":    {2, []string{"tiers/block", "rdma", "cluster/control", "cluster/location", "cluster/wire"}},
	"cluster/control":  {1, []string{"tiers/block", "rdma", "cluster/pki", "cluster/wire"}},
	"cluster/breaker":  {0, nil},
	"cluster/location": {0, []string{}},
	"cluster/feed":     {1, []string{"cluster/location", "tiers/block"}},
	"cluster/gossip":   {1, nil},
	"cluster/simnet":   {0, nil},
	"cluster/pki":      {0, nil},
	"cluster/wire":     {0, nil},

	"tiers/disk/format":   {2, []string{"tiers/block", "tiers/driver"}},
	"tiers/disk/port":     {3, []string{"tiers/block", "tiers/disk/format", "directio"}},
	"tiers/disk/durable":  {9, []string{"tiers/block", "tiers/disk/port", "directio"}},
	"tiers/disk/slotmap":  {10, []string{"tiers/block", "tiers/driver", "tiers/policy", "tiers/disk/format", "tiers/disk/durable", "directio"}},
	"tiers/disk/recovery": {3, []string{"tiers/block", "tiers/disk/format", "directio"}},

	"tiers/object/pack":    {2, []string{"tiers/block", "tiers/driver"}},
	"tiers/object/catalog": {2, []string{"tiers/block", "tiers/driver"}},

	"tiers/event":   {2, []string{"tiers/block", "tiers/driver", "tiers/outcome"}},
	"tiers/lane":    {2, []string{"tiers/block", "tiers/driver", "tiers/index", "tiers/invariant", "tiers/latency"}},
	"tiers/catalog": {2, []string{"tiers/block", "tiers/draft", "tiers/outcome", "tiers/index", "tiers/pattern", "tiers/policy", "tiers/room"}},
	"tiers/state":   {3, []string{"tiers/block", "tiers/catalog", "tiers/draft", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/index", "tiers/invariant", "tiers/lane", "tiers/pattern", "tiers/reuse", "tiers/room"}},

	"tiers/names":    {4, []string{"tiers/block", "tiers/catalog", "tiers/draft", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/index", "tiers/policy", "tiers/room", "tiers/state"}},
	"tiers/memory":   {5, []string{"tiers/block", "tiers/catalog", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/index", "tiers/lane", "tiers/names", "tiers/policy", "tiers/room", "tiers/state"}},
	"tiers/transfer": {6, []string{"tiers/block", "tiers/catalog", "tiers/draft", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/index", "tiers/lane", "tiers/memory", "tiers/names", "tiers/room", "tiers/state"}},
	"tiers/openfile": {7, []string{"tiers/block", "tiers/catalog", "tiers/draft", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/index", "tiers/lane", "tiers/memory", "tiers/names", "tiers/policy", "tiers/room", "tiers/state", "tiers/transfer"}},

	"tiers": {8, []string{"tiers/block", "tiers/catalog", "tiers/draft", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/index", "tiers/lane", "tiers/memory", "tiers/names", "tiers/openfile", "tiers/reuse", "tiers/state", "tiers/transfer"}},

	"tiers/peer/pace": {0, nil},

	"tiers/mem":      {3, []string{"tiers/block", "tiers/driver", "tiers/invariant"}},
	"tiers/disk":     {11, []string{"tiers/block", "tiers/driver", "tiers/invariant", "tiers/policy", "directio", "tiers/disk/format", "tiers/disk/recovery", "tiers/disk/port", "tiers/disk/durable", "tiers/disk/slotmap"}},
	"tiers/peer":     {10, []string{"tiers", "tiers/block", "tiers/driver", "tiers/event", "tiers/index", "tiers/invariant", "tiers/policy", "tiers/peer/pace", "cluster", "cluster/feed", "cluster/location", "cluster/meta", "rdma"}},
	"tiers/tiertest": {3, []string{"tiers/block", "tiers/driver", "tiers/invariant"}},

	"tiers/tiertest/suite": {3, []string{"tiers/block", "tiers/driver"}},

	"tiers/object":        {3, []string{"tiers/block", "tiers/driver", "tiers/object/catalog", "tiers/object/pack"}},
	"tiers/object/bucket": {1, []string{"tiers/block", "tiers/latency", "cluster/breaker"}},

	"tiers/publish": {9, []string{"tiers/block", "tiers/event", "tiers/template"}},
	"fs/strict":     {1, []string{"tiers/block"}},
	"fs/query":      {9, []string{"tiers", "tiers/block", "tiers/driver", "tiers/event", "tiers/outcome", "tiers/hybrid", "tiers/names", "tiers/state", "tiers/template", "tiers/transfer", "fs/strict"}},

	"fs/device":    {1, []string{"tiers/latency"}},
	"fs/accesslog": {10, []string{"fs/control", "tiers/event"}},
	"fs/control":   {9, []string{"tiers", "tiers/block", "tiers/event", "tiers/memory", "tiers/state", "fs/strict"}},

	"fs": {11, []string{"tiers", "tiers/block", "tiers/driver", "tiers/index", "tiers/openfile", "tiers/state", "fs/accesslog", "fs/control", "fs/device"}},

	"cmd/kvfs/config/scalar": {1, nil},
	"cmd/kvfs/config":        {2, []string{"tiers/block", "tiers/hybrid", "tiers/template", "cmd/kvfs/config/scalar"}},
	"cmd/kvfs/object":        {4, []string{"tiers/driver", "tiers/object", "tiers/object/bucket", "cmd/kvfs/config/scalar", "cmd/kvfs/exit"}},
	"cmd/kvfs/exit":          {3, []string{"cmd/kvfs/config"}},
	"cmd/kvfs/show":          {10, []string{"fs/query"}},
	"cmd/kvfs/result":        {11, []string{"cmd/kvfs/show"}},
	"cmd/kvfs/secrets":       {12, []string{"cluster/gossip", "cluster/pki", "cmd/kvfs/exit", "cmd/kvfs/result"}},
	"cmd/kvfs/plan":          {9, []string{"tiers/hybrid", "cmd/kvfs/config/scalar"}},
	"cmd/kvfs/launch":        {9, nil},
	"cmd/kvfs/handoff":       {9, []string{"fs/device"}},
	"cmd/kvfs/rails":         {11, []string{"rdma", "rdma/fabric", "rdma/nic", "cmd/kvfs/config", "cmd/kvfs/config/scalar", "cmd/kvfs/exit", "cmd/kvfs/show"}},
	"cmd/kvfs/mounts":        {10, []string{"fs/device", "cmd/kvfs/exit", "cmd/kvfs/handoff"}},
	"cmd/kvfs/status":        {12, []string{"tiers", "tiers/disk", "tiers/lane", "tiers/mem", "tiers/publish", "tiers/state", "cluster", "rdma/tcp", "fs", "cmd/kvfs/config", "cmd/kvfs/rails", "cmd/kvfs/show", "fs/control"}},
	"cmd/kvfs/otlp":          {13, []string{"tiers/lane", "fs/query"}},
	"cmd/kvfs/metrics":       {13, []string{"tiers", "tiers/disk", "tiers/event", "tiers/lane", "tiers/latency", "tiers/memory", "tiers/publish", "tiers/reuse", "tiers/state", "cluster", "rdma/tcp", "fs/device", "cmd/kvfs/rails", "cmd/kvfs/status"}},
	"cmd/kvfs/page":          {13, []string{"tiers", "tiers/event", "tiers/reuse", "cmd/kvfs/config", "cmd/kvfs/show", "cmd/kvfs/status"}},
	"cmd/kvfs/client":        {13, []string{"tiers/block", "fs/query", "cmd/kvfs/exit", "cmd/kvfs/handoff", "cmd/kvfs/mounts", "cmd/kvfs/show"}},
	"cmd/kvfs/watch":         {14, []string{"cmd/kvfs/client", "cmd/kvfs/config", "cmd/kvfs/mounts", "cmd/kvfs/show", "cmd/kvfs/status"}},
	"cmd/kvfs/blocks":        {14, []string{"fs/control", "fs/query", "tiers/outcome", "tiers/hybrid", "cmd/kvfs/client", "cmd/kvfs/mounts", "cmd/kvfs/show"}},
	"cmd/kvfs/complete":      {15, []string{"fs/control", "cmd/kvfs/blocks", "cmd/kvfs/client", "cmd/kvfs/config", "cmd/kvfs/mounts", "cmd/kvfs/status"}},
	"cmd/kvfs/daemon":        {14, []string{"*"}},
	"cmd/kvfs/csi":           {15, []string{"tiers/block", "cmd/kvfs/config", "cmd/kvfs/daemon", "cmd/kvfs/exit", "cmd/kvfs/handoff", "cmd/kvfs/mounts"}},
	"cmd/kvfs/bundle":        {14, []string{"cmd/kvfs/client", "cmd/kvfs/mounts", "cmd/kvfs/show"}},
	"cmd/kvfs/doctor":        {15, []string{"cluster", "cluster/gossip", "cluster/pki", "directio", "fs/device", "tiers/disk/format", "tiers/disk/recovery", "tiers/mem", "cmd/kvfs/config", "cmd/kvfs/config/scalar", "cmd/kvfs/daemon", "cmd/kvfs/exit", "cmd/kvfs/mounts", "cmd/kvfs/rails", "cmd/kvfs/show", "cmd/kvfs/status"}},
	"cmd/kvfs":               {16, []string{"*"}},
	"docs":                   {0, nil},
	"docs/examples/tier":     {3, []string{"tiers/blobs", "tiers/driver"}},
	"docs/site":              {0, nil},
}

const testsLevel = 17 // everything below tests/, which only tests/ may import

// homes lists the third-party modules and the only packages that may import
// each of them. An empty list means any package.
var homes = map[string][]string{
	"C": {"rdma/fabric", "tests/gpu"},
	"github.com/container-storage-interface/spec": {"cmd/kvfs/csi"},
	"github.com/NVIDIA/go-nvml":                   {"rdma/nic"},
	"github.com/hanwen/go-fuse/v2":                {"fs", "fs/device", "tests/bench", "tests/harness/gate"},
	"github.com/cespare/xxhash/v2":                {"cluster/location"},
	"github.com/go-json-experiment/json":          {"fs/query", "fs/strict", "cmd/kvfs/plan"},
	"github.com/go-zeromq/zmq4":                   {"tiers/publish"},
	"github.com/vmihailenco/msgpack/v5":           {"tiers/publish"},
	"github.com/hashicorp/memberlist":             {"cluster/gossip", "cluster/simnet"},
	"github.com/minio/crc64nvme":                  {"tiers/block"},
	"github.com/minio/minio-go/v7":                {"tiers/object/bucket", "tests/bench", "tests/s3test"},
	"github.com/moby/sys/mountinfo":               {"fs/device", "cmd/kvfs/client", "cmd/kvfs/daemon", "cmd/kvfs/doctor", "cmd/kvfs/mounts", "tiers/mem", "tests/harness"},
	"github.com/pawelgaczynski/giouring":          {"directio"},
	"github.com/prometheus/client_golang":         {"cmd/kvfs/metrics"},
	"github.com/prometheus/common":                {"cmd/kvfs/metrics"},
	"github.com/spf13/cobra":                      {"cmd/kvfs", "cmd/kvfs/result", "cmd/kvfs/secrets", "cmd/kvfs/complete", "cmd/kvfs/config"},
	"github.com/spf13/pflag":                      {"cmd/kvfs", "cmd/kvfs/complete", "cmd/kvfs/config"},
	"github.com/yuin/goldmark":                    {"docs/site"},
	"go.yaml.in/yaml/v3":                          {"cmd/kvfs", "cmd/kvfs/config"},
	"go.opentelemetry.io/otel":                    {"cmd/kvfs/otlp"},
	"google.golang.org/grpc":                      {"cluster", "cluster/control", "cluster/wire", "cmd/kvfs/csi"},
	"google.golang.org/protobuf":                  {"cluster", "cluster/control", "cluster/grave", "cluster/message", "cluster/meta", "cluster/wire", "cmd/kvfs/csi"},
	"go.uber.org/zap":                             {},
	"golang.org/x/sync":                           {"tiers/object", "tiers/object/bucket", "tests/bench"},
	"golang.org/x/sys":                            {},
	"golang.org/x/time":                           {"rdma/tcp", "tiers/object/bucket"},
}

// TestImports shows that every package imports only what the table allows, by
// parsing the files in-process: a test that asks `go list` is served stale from
// the test cache.
func TestImports(t *testing.T) {
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", file), nil, parser.ImportsOnly)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, spec := range f.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if why := checkImport(filepath.Dir(file), path); why != "" {
				t.Errorf("%s: %s", file, why)
			}
		}
	}
}

// TestImportTable shows that the table itself points down only: a package may
// import lower levels, and a command its own sub-packages.
func TestImportTable(t *testing.T) {
	for pkg, r := range table {
		for _, may := range r.may {
			if may == "*" {
				continue
			}
			to, ok := table[may]
			if !ok {
				t.Errorf("%s: %s is not in the table", pkg, may)
			} else if to.level >= r.level && !within(may, pkg) {
				t.Errorf("%s (level %d) lists %s (level %d)", pkg, r.level, may, to.level)
			}
		}
	}
}

// TestTables shows that the list of packages in CONTRIBUTING.md names each package of the
// table, and go.mod each dependency that has a home.
func TestTables(t *testing.T) {
	page, mod := read(t, "../CONTRIBUTING.md"), read(t, "../go.mod")
	for pkg := range table {
		if !strings.Contains(page, "`"+pkg+"`") {
			t.Errorf("CONTRIBUTING.md does not name %s", pkg)
		}
	}
	for path := range homes {
		if path != "C" && !strings.Contains(mod, "\t"+path+" v") {
			t.Errorf("%s has a home, and go.mod lacks it", path)
		}
	}
}

// TestCheckImport plants imports in the checker and shows that it tells good
// from bad ones.
func TestCheckImport(t *testing.T) {
	const us = module + "/"
	for _, c := range []struct{ pkg, path, want string }{
		{"tiers", "sync", ""},
		{"tiers", us + "tiers/block", ""},
		{"tiers", "go.uber.org/zap/zapcore", ""},
		{"directio", "golang.org/x/sys/unix", ""},
		{"fs", "github.com/hanwen/go-fuse/v2/fs", ""},
		{"tests/bench", us + "cmd/kvfs/config", ""},
		{"fs", us + "fs/device", ""},
		{"cmd/kvfs", us + "cmd/kvfs/config", ""},
		{"rdma/fabric", "C", ""},

		{"tiers", us + "tiers/mem", "tiers may not import tiers/mem"},
		{"tiers/transfer", us + "tiers/openfile", "tiers/transfer may not import tiers/openfile"},
		{"fs", us + "cmd/kvfs/config", "fs may not import cmd/kvfs/config"},
		{"cmd/kvfs", us + "tests/bench", "cmd/kvfs may not import tests/bench"},
		{"tiers", us + "tiersx", "tiersx is not in the import table"},
		{"util", "sync", "util is not in the import table"},
		{"tiers", "github.com/hanwen/go-fuse/v2/fuse", "tiers may not import github.com/hanwen/go-fuse/v2/fuse: its home is fs, fs/device, tests/bench, tests/harness/gate"},
		{"tests/mount", "github.com/hanwen/go-fuse/v2/fs", "tests/mount may not import github.com/hanwen/go-fuse/v2/fs: its home is fs, fs/device, tests/bench, tests/harness/gate"},
		{"fs", "C", "fs may not import C: its home is rdma/fabric, tests/gpu"},
		{"tiers", "go.uber.org/zapper", "go.uber.org/zapper has no home"},
	} {
		if got := checkImport(c.pkg, c.path); got != c.want {
			t.Errorf("checkImport(%q, %q) = %q, want %q", c.pkg, c.path, got, c.want)
		}
	}
}

// checkImport tells why pkg, a directory of this module, may not import path;
// "" if it may.
func checkImport(pkg, path string) string {
	from, ok := rowOf(pkg)
	if !ok {
		return pkg + " is not in the import table"
	}
	ours, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return checkThirdParty(pkg, path)
	}
	to, ok := rowOf(ours)
	if !ok {
		return ours + " is not in the import table"
	}
	bothTests := from.level == testsLevel && to.level == testsLevel
	lower := to.level < from.level && slices.Contains(from.may, "*")
	if bothTests || lower || slices.Contains(from.may, ours) {
		return ""
	}
	return pkg + " may not import " + ours
}

// checkThirdParty is checkImport for paths outside this module.
func checkThirdParty(pkg, path string) string {
	first, _, _ := strings.Cut(path, "/")
	if path != "C" && !strings.Contains(first, ".") {
		return "" // standard library
	}
	for mod, home := range homes {
		if !within(path, mod) {
			continue
		}
		if len(home) == 0 || slices.Contains(home, pkg) {
			return ""
		}
		return pkg + " may not import " + path + ": its home is " + strings.Join(home, ", ")
	}
	return path + " has no home"
}

// rowOf returns the row of a directory of this module.
func rowOf(pkg string) (row, bool) {
	if within(pkg, "tests") {
		return row{testsLevel, []string{"*"}}, true
	}
	r, ok := table[pkg]
	return r, ok
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// goFiles returns the Go files of this module, relative to its root, build tags
// notwithstanding. It stays out of testdata, nested modules and the directories
// that the Makefile makes, one of which may be a mount.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir("..", func(path string, d iofs.DirEntry, err error) error {
		if errors.Is(err, iofs.ErrNotExist) && path != ".." {
			return nil // made and removed by another test meanwhile
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel("..", path)
		if !d.IsDir() {
			if strings.HasSuffix(rel, ".go") {
				files = append(files, filepath.ToSlash(rel))
			}
			return nil
		}
		if rel != "." && skipDir(path, rel) {
			return filepath.SkipDir
		}
		return nil
	})
	must(t, err)
	if len(files) < 10 {
		t.Fatalf("found %d Go files: not the root of the module?", len(files))
	}
	return files
}

func skipDir(path, rel string) bool {
	name := filepath.Base(rel)
	if rel == "mnt" || rel == "bin" || name == "testdata" || name == "node_modules" || name[0] == '.' || name[0] == '_' {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}
