package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// below lists the tiers below memory, by name.
func below(c *Config) []string {
	names := []string{}
	for _, t := range c.Below() {
		names = append(names, t.Name)
	}
	return names
}

// TestTierOrder shows the order of the tiers: as they are listed, and in its place what is not (A1).
func TestTierOrder(t *testing.T) {
	const disk, peer = `, "disk": {"dirs": [{"path": "/a", "size": "1GiB"}], "cascade": "sync", "admission": "second_hit"}`, `, "bind": "127.0.0.1"`
	for _, tc := range []struct {
		tiers, more string
		want        []string
	}{
		{``, ``, []string{}},
		{``, disk, []string{"disk"}},
		{`{"type": "memory"}`, disk, []string{"disk"}},
		{`{"type": "other"}`, ``, []string{"other"}},
		{`{"type": "other"}`, disk, []string{"disk", "other"}},
		{`{"type": "other"}, {"type": "disk"}`, disk, []string{"other", "disk"}},
		{`{"type": "memory"}, {"type": "disk"}, {"type": "other"}, {"type": "peer"}`, disk + peer, []string{"disk", "other"}},
		{`{"type": "other", "name": "b"}, {"type": "disk"}, {"type": "other", "name": "a"}`, disk, []string{"b", "disk", "a"}},
	} {
		c := mustLoad(t, Sources{InlineJSON: `{"tiers": [` + tc.tiers + `]` + tc.more + `}`})
		if got := below(c); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s%s: got %v, want %v", tc.tiers, tc.more, got, tc.want)
		}
		for _, b := range c.Below() {
			if b.Type == TierDisk && (b.Cascade != "sync" || b.Admission != AdmitSecondHit || b.CascadeQueue != scalar.GiB || b.Options != nil) {
				t.Errorf("the disk is %+v", b)
			}
			if c.TypeOf(b.Name) != b.Type {
				t.Errorf("type of %s: got %s, want %s", b.Name, c.TypeOf(b.Name), b.Type)
			}
		}
	}
}

// TestTierOptions shows that the options of a type are decoded by what it registered: with their
// defaults, their origins and, printed, in a form that loads again (A1, A35).
func TestTierOptions(t *testing.T) {
	c := mustLoad(t, Sources{InlineJSON: `{"tiers": [{"type": "memory"}, {"root": "/r", "type": "store", "hosts": ["a:1"], "cascade_queue": "2MiB"},
		{"type": "store", "name": "cold", "root": "/c", "size": "5GiB", "cascade": "on_evict", "admission": "second_hit"}]}`})
	want := []Tier{
		{Type: "memory", Name: "memory", Cascade: "async", Admission: "all"},
		{Type: "store", Name: "store", Cascade: "async", CascadeQueue: 2 * scalar.MiB, Admission: "all", Options: &storeOptions{"/r", scalar.GiB, []string{"a:1"}}},
		{Type: "store", Name: "cold", Cascade: "on_evict", Admission: "second_hit", Options: &storeOptions{"/c", 5 * scalar.GiB, nil}},
	}
	if !reflect.DeepEqual(c.Tiers, want) {
		t.Errorf("got %+v, want %+v", c.Tiers, want)
	}
	for path, from := range map[string]Source{"tiers": InlineJSON, "tiers[1].root": InlineJSON, "tiers[1].size": Default, "tiers[2].size": InlineJSON} {
		if got := c.Origin(path).Source; got != from {
			t.Errorf("%s is from %v, want %v", path, got, from)
		}
	}
	text := printedText(t, c)
	if again := mustLoad(t, Sources{File: writeFile(t, "again.yaml", text)}); !sameValues(c, again) {
		t.Errorf("reloaded %+v\nwant %+v from\n%s", again, c, text)
	}
	if !strings.Contains(text, "\n  - type: memory ") || !strings.Contains(text, "\n    root: /r ") {
		t.Errorf("printed\n%s", text)
	}
}

// TestRejectTiers shows every way in which the list of tiers is refused: types that are missing or not
// known, with those that are; keys that a type does not have; places and names that cannot be (A1, A35).
func TestRejectTiers(t *testing.T) {
	const known = "one of disk, memory, other, peer, sample, store"
	for _, tc := range []struct {
		tiers string // in flow style, in a line of its own for each
		kind  error
		want  string // behind the file's name
	}{
		{"{root: /r}", scalar.ErrInvalid, ":2: tiers[0].type: it is missing; " + known},
		{"{type: null, root: /r}", scalar.ErrInvalid, ":2: tiers[0].type: it is missing; " + known},
		{"null", scalar.ErrInvalid, ":2: tiers[0]: type is missing"},
		{"{type: other},\n{type: stoer, root: /r}", scalar.ErrEnum, `:3: tiers[1].type: unknown value "stoer"; ` + known},
		{"{type: [store]}", scalar.ErrType, "tiers[0].type: a sequence is not a string"},
		{"{type: store, roots: /r, root: /r}", scalar.ErrUnknown, `unknown key "tiers[0].roots"; did you mean "tiers[0].root"?`},
		{"{type: other, root: /r}", scalar.ErrUnknown, `unknown key "tiers[0].root"; known here: type, name, cascade, cascade_queue, admission`},
		{"{type: store, root: /r, root: /s}", scalar.ErrDuplicate, `duplicate key "tiers[0].root", first given in line 2`},
		{"{type: store, root: 7}", scalar.ErrType, "tiers[0].root: the number 7 is not a string"},
		{"{type: store, root: /r, size: 7}", scalar.ErrUnit, `tiers[0].size: "7" needs a unit`},
		{"{type: store, root: /r, size: 7KiB}", scalar.ErrRange, "tiers[0].size: 7KiB is out of range: want at least 1MiB"},
		{"{type: store, root: /r, hosts: [a, '']}", scalar.ErrInvalid, "tiers[0].hosts[1]: the element is empty"},
		{"{type: store}", scalar.ErrInvalid, ":2: tiers[0]: root is missing"},
		{"{type: other, cascade: 'on'}", scalar.ErrEnum, `tiers[0].cascade: unknown value "on"; one of async, sync, on_evict, off`},
		{"{type: other, name: a/b}", scalar.ErrInvalid, `tiers[0].name: "a/b"`},
		{"{type: memory, size: 1GiB}", scalar.ErrUnknown, `unknown key "tiers[0].size"; did you mean "memory.size"?`},

		{"{type: other},\n{type: other}", scalar.ErrInvalid, `:3: tiers[1]: the name "other" is that of tiers[0], too`},
		{"{type: memory},\n{type: memory}", scalar.ErrInvalid, `:3: tiers[1]: the name "memory" is that of tiers[0], too`},
		{"{type: other, name: disk}", scalar.ErrInvalid, `tiers[0]: the name "disk" is kept for memory, disk and peers`},
		{"{type: other, name: peer-2}", scalar.ErrInvalid, `tiers[0]: the name "peer-2" is kept for memory, disk and peers`},
		{"{type: other},\n{type: memory}", scalar.ErrInvalid, ":3: tiers[1]: memory is the first tier: list it first, or leave it out"},
		{"{type: peer},\n{type: other}", scalar.ErrInvalid, ":2: tiers[0]: peers are the last tier: list them last, or leave them out"},
		{"{type: disk}", scalar.ErrInvalid, ":2: tiers[0]: it needs disk.dirs"},
		{"{type: peer}", scalar.ErrInvalid, ":2: tiers[0]: it needs bind"},
	} {
		t.Run(tc.tiers, func(t *testing.T) {
			file := writeFile(t, "c.yaml", "tiers: [\n"+tc.tiers+"]\n")
			_, err := Load(Sources{File: file, MemTotal: testMem, TierTypes: testTypes{}})
			if err == nil {
				t.Fatal("accepted")
			}
			wantErrors(t, err, tc.want)
			if kindOf(err) != tc.kind {
				t.Errorf("kind %v, want %v", kindOf(err), tc.kind)
			}
		})
	}
	var many strings.Builder
	for i := range maxTiers + 1 {
		fmt.Fprintf(&many, "- {type: other, name: t%d}\n", i)
	}
	_, err := Load(Sources{File: writeFile(t, "c.yaml", "tiers:\n"+many.String()), TierTypes: testTypes{}})
	wantErrors(t, err, ":2: tiers: 16 tiers below memory: want at most 15")
	_, err = Load(Sources{InlineJSON: `{"mode": "standalone-store", "tiers": [{"type": "other"}]}`, TierTypes: testTypes{}})
	wantErrors(t, err, "tiers: a list of tiers excludes mode standalone-store")
	_, err = Load(Sources{InlineJSON: `{"tiers": [{"type": "other"}]}`})
	wantErrors(t, err, `tiers[0].type: unknown value "other"; one of`)
	_, err = Load(Sources{InlineJSON: `{"tiers": ["store"]}`, TierTypes: testTypes{}})
	wantErrors(t, err, `tiers[0]: the string "store" is not a mapping: want the keys type`)
	_, err = Load(Sources{Environ: []string{"KVFS_TIERS=other"}})
	wantErrors(t, err, `unknown variable "KVFS_TIERS"`)
}
