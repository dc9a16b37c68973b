package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// testMem is the RAM of the machine in tests.
const testMem = 16 * GiB

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
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustLoad loads sources that must be right.
func mustLoad(t testing.TB, src Sources) *Config {
	t.Helper()
	src.MemTotal, src.Hostname = testMem, testHost
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
	return reflect.DeepEqual(x, y)
}

// printed returns what Print writes.
func printedText(t testing.TB, c *Config) string {
	t.Helper()
	var b bytes.Buffer
	if err := Print(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// sample returns a value for s that is not its default, as text and as the value
// that encodes to JSON and YAML.
func sample(t testing.TB, s *textSetting) (text string, value any) {
	t.Helper()
	if s.shape == list && s.key == "groups" {
		return "", []map[string]any{{"kind": "full", "block_size": 16}}
	}
	if s.shape == list {
		return "path=/mnt/a,size=3GiB", []map[string]string{{"path": "/mnt/a", "size": "3GiB"}}
	}
	if s.enum != nil {
		for _, v := range s.enum {
			switch {
			case v == s.def:
			case s.repeated():
				return v + ",memory", []string{v, "memory"}
			default:
				return v, v
			}
		}
	}
	switch s.typ {
	case reflect.TypeFor[bool]():
		if s.def == "true" {
			return "false", false
		}
		return "true", true
	case reflect.TypeFor[Size]():
		if s.min == "1MiB" {
			return "3MiB", "3MiB"
		}
		return "768KiB", "768KiB"
	case reflect.TypeFor[Duration]():
		return "7s", "7s"
	case reflect.TypeFor[int](), reflect.TypeFor[*int]():
		return "3", 3
	case reflect.TypeFor[float64]():
		return "0.96", 0.96
	case reflect.TypeFor[[]string]():
		if s.check == "address" {
			return "[fd00::1],node-2:80", []string{"[fd00::1]", "node-2:80"}
		}
		if s.check == "template" {
			return "{group}/{hash},{hash:0:3}/{hash}.bin", []string{"{group}/{hash}", "{hash:0:3}/{hash}.bin"}
		}
		return "a*,b", []string{"a*", "b"}
	case reflect.TypeFor[string]():
		if s.check == "hostport" || s.check == "listen" || s.check == "address" {
			return "[::1]:9100", "[::1]:9100"
		}
		if s.check == "endpoint" {
			return "tcp://[::1]:5557", "tcp://[::1]:5557"
		}
		return "sample", "sample"
	}
	t.Fatalf("%s: no sample for type %v; add one here", s.path, s.typ)
	return "", nil
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
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// yamlOf returns the same in block style; JSON values are YAML values.
func yamlOf(t testing.TB, path string, value any) string {
	t.Helper()
	keys := strings.Split(path, ".")
	var b strings.Builder
	for i, key := range keys {
		fmt.Fprintf(&b, "%s%s:", strings.Repeat("  ", i), key)
		if i < len(keys)-1 {
			b.WriteByte('\n')
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, " %s\n", text)
	return b.String()
}
