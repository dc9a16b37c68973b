package config

import (
	"strings"
	"testing"
)

// TestRetired shows that each setting that became a constant is accepted from every source with any value, that one
// warning names the constant and all places that give it, and that it changes nothing.
func TestRetired(t *testing.T) {
	want := mustLoad(t, Sources{})
	for _, s := range retired {
		for _, value := range []string{s.def, "7", "no value of its type"} {
			file := writeFile(t, "c.yaml", jsonOf(t, s.path, value))
			inline := Sources{InlineJSON: jsonOf(t, s.path, value)}
			env := []string{s.env() + "=" + value}
			flag := "--" + s.flag() + "=" + value
			what := ": " + s.path + " is a constant now (" + s.def + "); the setting is ignored: remove it"
			for from, src := range map[string]Sources{
				file + ":1":          {File: file},
				"config-json 1:":     inline,
				"env " + s.env():     {Environ: env},
				"flag --" + s.flag(): {Flags: parseFlags(t, flag)},
				file + ":1, config-json 1:": {
					File: file, InlineJSON: inline.InlineJSON, Environ: env, Flags: parseFlags(t, flag, flag),
				},
			} {
				c := mustLoad(t, src)
				if !sameValues(c, want) {
					t.Errorf("%s: got %+v, want %+v", from, c, want)
				}
				if len(c.Warnings) != 1 || !strings.HasPrefix(c.Warnings[0], from) || !strings.HasSuffix(c.Warnings[0], what) {
					t.Errorf("%s: got %q, want one warning that ends with %q", from, c.Warnings, what)
				}
				if all := src.File != "" && src.Environ != nil; all && !strings.HasSuffix(c.Warnings[0], ", env "+s.env()+", flag --"+s.flag()+what) {
					t.Errorf("not all places are named: %q", c.Warnings[0])
				}
			}
		}
		for _, other := range textSettings() {
			if other.path == s.path || other.env() == s.env() || other.flag() == s.flag() {
				t.Errorf("%s is a setting, too", s.path)
			}
		}
		if f := parseFlags(t).Lookup(s.flag()); f == nil || !f.Hidden {
			t.Errorf("--%s is not there, or help shows it", s.flag())
		}
	}
	_, err := Load(Sources{InlineJSON: `{"promotion": {"batch_key": 7}, "groups": {"peer": {"connections": 4}}}`, MemTotal: testMem})
	wantErrors(t, err, `unknown key "promotion.batch_key"`, `unknown key "groups.peer.connections"`)
}
