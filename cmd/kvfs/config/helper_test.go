package config

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/spf13/pflag"
)

// testMem is the RAM of the machine in tests.
const testMem = 16 * scalar.GiB

// testHost is its name.
const testHost = "gpu-1"

// parseFlags returns the parsed flags of a command line.
func parseFlags(t testing.TB, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("flags %q: %v", args, err)
	}
	return fs
}

// writeFile writes a configuration file and returns its path.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// storeOptions are those of the type store of testTypes.
type storeOptions struct {
	Root  string      `kvfs:"root" required:"true" help:"A directory."`
	Size  scalar.Size `kvfs:"size" min:"1MiB" default:"1GiB" help:"A size."`
	Hosts []string    `kvfs:"hosts" check:"address" help:"Addresses."`
}

// testTypes are the types of tiers in tests: those of every program, and three that were added.
type testTypes struct{}

func (testTypes) Types() []string {
	return []string{"disk", "memory", "other", "peer", "sample", "store"}
}

func (testTypes) Options(name string) any {
	switch name {
	case "store":
		return &storeOptions{}
	case "other", "sample":
		return &struct{}{}
	}
	return nil
}

// mustLoad loads sources that must be right.
func mustLoad(t testing.TB, src Sources) *Config {
	t.Helper()
	src.MemTotal, src.Hostname, src.TierTypes = testMem, testHost, testTypes{}
	c, err := Load(src)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return c
}

// sameValues reports whether two configurations agree, wherever their values
// come from.
func sameValues(a, b *Config) bool {
	x, y := *a, *b
	x.origins, y.origins = nil, nil
	x.Warnings, y.Warnings = nil, nil
	return reflect.DeepEqual(x, y)
}

// printed returns what Print writes.
func printedText(t testing.TB, c *Config) string {
	t.Helper()
	var b bytes.Buffer
	must(t, Print(&b, c))
	return b.String()
}

// sample returns a value for s that is not its default, as text.
func sample(t testing.TB, s *textSetting) string {
	t.Helper()
	return strings.Join(samples(t, s.setting)[0].texts, s.sep)
}

// nest wraps a value into the sections of path.
func nest(path string, value any) any {
	keys := strings.Split(path, ".")
	for i := len(keys) - 1; i >= 0; i-- {
		value = map[string]any{keys[i]: value}
	}
	return value
}

// jsonOf returns the JSON of a nested value.
func jsonOf(t testing.TB, path string, value any) string {
	t.Helper()
	text, err := json.Marshal(nest(path, value))
	must(t, err)
	return string(text)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
