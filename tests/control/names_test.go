package control

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestOddNames shows that lookup, why and prefetch can name every block: by its bytes, by the form in
// which they print it, and by a directory above it, the mount included; and that requests can, too.
func TestOddNames(t *testing.T) {
	d := diskMount(t, harness.Options{})
	keys := []string{"g/plain", "g/new\nline", "g/deep/\x1b[2J\xff", `g/deep/back\n`, "odd\xfe\x07/a\r", "top\u202e"}
	coldBlocks(t, d, 4*kib, keys...)
	must(t, "mkdir", os.Mkdir(d.Path("empty"), 0o755))
	var raw, printed []string
	for _, key := range keys {
		raw = append(raw, d.Path(key))
	}
	for _, form := range []string{`g/plain`, `g/new\nline`, `g/deep/\x1b[2J\xff`, `g/deep/back\\n`, `odd\xfe\a/a\r`, `top\u202e`} {
		printed = append(printed, d.Path(form))
	}
	escaped := append([]string{"-e"}, printed...)
	// names are those of the lines of a text, which end each.
	names := func(out string) (names []string) {
		for line := range strings.Lines(out) {
			names = append(names, d.Dir+strings.TrimSuffix(line[strings.Index(line, d.Dir)+len(d.Dir):], "\n"))
		}
		slices.Sort(names)
		return names
	}
	want := slices.Sorted(slices.Values(printed))
	dirs := []string{d.Path("g/"), d.Path("empty"), d.Path("odd\xfe\x07"), d.Path("top\u202e")}
	for what, args := range map[string][]string{"bytes": raw, "printed form": escaped, "directories": dirs, "the mount": {d.Dir}} {
		out := kvfs(t, append([]string{"lookup"}, args...)...)
		if got := names(out); !slices.Equal(got, want) || strings.Count(out, "hit      disk ") != len(keys) {
			t.Errorf("lookup by %s: %q, want %q on disk", what, out, want)
		}
		verdict := ": it is in disk, and comes into memory when it is opened"
		out = kvfs(t, append([]string{"why"}, args...)...)
		if got := names(strings.ReplaceAll(out, verdict, "")); !slices.Equal(got, want) {
			t.Errorf("why by %s: %q, want %q", what, out, want)
		}
		if out = kvfs(t, append([]string{"prefetch"}, args...)...); !strings.HasPrefix(out, "loaded 6 blocks (24.0 KiB) in ") {
			t.Errorf("prefetch by %s: %q", what, out)
		}
		for _, key := range keys {
			wantBytes(t, d.Path(key), pattern(key, 4*kib))
		}
		kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
	}

	var states struct{ States string }
	out := kvfs(t, "lookup", "--json", d.Path("empty"), raw[1], d.Path("g"))
	if must(t, "states", json.Unmarshal([]byte(out), &states)); states.States != "/d/" {
		t.Errorf("lookup --json: %s", out)
	}
	var verdict struct{ Path string }
	out = kvfs(t, "why", "--json", raw[2])
	if must(t, "verdict", json.Unmarshal([]byte(out), &verdict)); verdict.Path != `g/deep/\x1b[2J\xff` {
		t.Errorf("why --json: %s", out)
	}
	c := talk(t, d, "query")
	rel := func(path string) string { return strings.TrimPrefix(path, d.Dir+string(filepath.Separator)) }
	for i, key := range printed {
		if got := c.exists(obj{"keys": []string{rel(key)}, "escaped": true}); got.States != "d" {
			t.Errorf("%s: %q", printed[i], got.States)
		}
	}
	var refused refusal
	c.ask(obj{"op": "exists", "keys": []string{"a", `b\`}, "escaped": true}, &refused)
	if refused.Field != "/keys/1" {
		t.Errorf("a wrong escape: %+v", refused)
	}
}
