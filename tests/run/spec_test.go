package run

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// askingVLLM says which specs the mount has. With BLOCKS it writes blocks as vLLM's file tier does, and looks
// for the longest hit in them.
const askingVLLM = `#!/bin/sh
"$KVFS" specs --json "$KVFS_MOUNT" || exit 9
[ -n "$BLOCKS" ] || exit 0
tree="$KVFS_MOUNT/vllm/gpt-oss_0123456789ab_r0"
write() { mkdir -p "$tree/abc/de_g$2" && echo block >"$tree/abc/de_g$2/$1.bin"; }
hashes=
for n in 00 01 02 03 04 05 06 07 08 09 10 11; do
	hashes="$hashes abcde$n"
	write "abcde$n" 1
	[ "$n" -lt 3 ] || write "abcde$n" 0
done
"$KVFS" lookup --json --mount "$KVFS_MOUNT" --spec "$2" --num-tokens 200 \
	--template 'vllm/gpt-oss_0123456789ab_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin' $hashes
`

// modelDir makes a directory with the configuration of a model.
func modelDir(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(t), "cmd/kvfs/plan/testdata", name+".json"))
	must(t, err)
	dir := filepath.Join(resolved(t, t.TempDir()), name)
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644))
	return dir
}

// groupNames are the names of the groups of each spec in the answer of kvfs specs.
func groupNames(t *testing.T, answer string) map[string]string {
	t.Helper()
	var all struct {
		Specs map[string]struct {
			Groups []struct{ Name, Kind string }
		}
	}
	must(t, json.Unmarshal([]byte(answer), &all))
	found := map[string]string{}
	for name, s := range all.Specs {
		var groups []string
		for _, g := range s.Groups {
			groups = append(groups, g.Name+" "+g.Kind)
		}
		found[name] = strings.Join(groups, ", ")
	}
	return found
}

// TestSpec shows that vLLM finds the spec of a hybrid model set when it starts, that its groups are called as in the
// names of vLLM's files, that a spec which is there stays, and that other models run as ever (F1).
func TestSpec(t *testing.T) {
	engine := script(t, "vllm", askingVLLM)
	env := []string{"KVFS=" + harness.Binary(t)}
	oss, gemma, broken := modelDir(t, "gpt-oss-20b"), modelDir(t, "gemma-3-27b"), t.TempDir()
	must(t, os.WriteFile(filepath.Join(broken, "config.json"), []byte("{"), 0o644))
	const mine = `{"specs": {"mine": {"hash_block_size": 8, "groups": [{"name": "x", "kind": "full", "block_size": 8}]}}}`
	for _, c := range []struct {
		name   string
		flags  []string
		args   []string
		spec   string // its name; empty: there is none
		groups string
		logged string
	}{
		{name: "hybrid", args: []string{gemma}, spec: gemma, groups: "0 swa, 1 swa, 2 swa, 3 swa, 4 swa, 5 swa, 6 full", logged: "the spec of the model is set"},
		{name: "recurrent", args: []string{modelDir(t, "qwen3-next-80b"), "--served-model-name", "next", "x"}, spec: "next", groups: "0 mamba, 1 mamba, 2 mamba, 3 full"},
		{name: "configured", flags: []string{"--config-json", mine}, args: []string{oss, "--served-model-name=mine"}, spec: "mine", groups: "x full", logged: "the mount has another spec"},
		{name: "one kind", args: []string{modelDir(t, "llama-3.1-8b")}, logged: "no spec"},
		{name: "remote", args: []string{"openai/gpt-oss-20b"}, logged: "no spec"},
		{name: "unreadable", args: []string{broken}, logged: "no spec"},
		{name: "not its groups", args: []string{oss, "--disable-hybrid-kv-cache-manager"}, logged: "--disable-hybrid-kv-cache-manager"},
		{name: "long name", args: []string{oss, "--served-model-name", strings.Repeat("x", 129)}, logged: "no spec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := start(t, options{flags: append(c.flags, "--log-level", "debug"), env: env}, append([]string{engine, "serve"}, c.args...)...)
			got := groupNames(t, l.wantCode(0))
			if len(got) > 1 || c.spec == "" && len(got) != 0 || c.spec != "" && got[c.spec] != c.groups {
				t.Errorf("specs: got %q, want %q: %q", got, c.spec, c.groups)
			}
			if !strings.Contains(l.stderr.String(), c.logged) {
				t.Errorf("the log lacks %q:\n%s", c.logged, l.stderr.String())
			}
		})
	}
	out := start(t, options{flags: []string{"--print"}}, engine, "serve", oss, "--served-model-name", "oss").wantCode(0)
	if want := "spec: oss: 2 groups  # unless the mount has one of this name\n"; !strings.Contains(out, want) {
		t.Errorf("--print: got %q, want it to have %q", out, want)
	}
	t.Run("lookup", func(t *testing.T) {
		l := start(t, options{env: append(env, "BLOCKS=1")}, engine, "serve", oss)
		specs, answer, _ := strings.Cut(l.wantCode(0), "\n")
		if got := groupNames(t, specs)[oss]; got != "0 swa, 1 full" {
			t.Errorf("groups: got %q", got)
		}
		var hit struct {
			Tokens int `json:"hit_tokens"`
			Groups []struct{ Name, Load string }
		}
		must(t, json.Unmarshal([]byte(answer), &hit))
		if hit.Tokens != 192 || len(hit.Groups) != 2 || hit.Groups[0].Load != "000011111111" || hit.Groups[1].Load != "111111111111" {
			t.Errorf("longest hit: got %+v", hit)
		}
	})
}
