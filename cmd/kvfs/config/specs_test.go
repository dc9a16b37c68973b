package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// gemma is a spec with every setting that it can have and still be one.
const gemma = `
specs:
  google/gemma-3.1:
    hash_block_size: 16
    scheduler_block_size: 32
    cache_block_size: 16
    eagle: true
    retention_interval: 0
    groups:
    - {kind: full, block_size: 32, eagle: true}
    - {name: local, kind: swa, block_size: 16, window: 1024, ranks: 2, variant: 1, uniform: true}
  jamba:
    hash_block_size: 16
    decode_context_parallel: 1
    groups: [{kind: mamba, block_size: 16, mode: all}, {kind: full, block_size: 16}]
`

// TestSpecs shows what specs come to, for readers of the configuration and for look-ups,
// where their values come from, and that they print as a file that loads to the same
// (C1, C2).
func TestSpecs(t *testing.T) {
	file := writeFile(t, "c.yaml", gemma)
	c := mustLoad(t, Sources{File: file})
	zero := 0
	want := map[string]hybrid.Spec{
		"google/gemma-3.1": {
			HashBlockSize: 16, SchedulerBlockSize: 32, CacheBlockSize: 16, Eagle: true, Retention: &zero,
			PrefillContext: 1, DecodeContext: 1,
			Groups: []hybrid.Group{
				{Kind: "full", BlockSize: 32, Eagle: true},
				{Name: "local", Kind: "swa", BlockSize: 16, Window: 1024, Ranks: 2, Variant: 1, Uniform: true},
			},
		},
		"jamba": {
			HashBlockSize: 16, PrefillContext: 1, DecodeContext: 1,
			Groups: []hybrid.Group{{Kind: "mamba", BlockSize: 16, Mode: "all"}, {Kind: "full", BlockSize: 16}},
		},
	}
	if !reflect.DeepEqual(c.Specs, want) {
		t.Errorf("got %+v\nwant %+v", c.Specs, want)
	}
	for path, want := range map[string]string{
		`specs."google/gemma-3.1"`:                      file + ":3",
		`specs."google/gemma-3.1".retention_interval`:   file + ":8",
		`specs."google/gemma-3.1".groups[1].window`:     file + ":11",
		`specs.jamba.groups[0].mode`:                    file + ":15",
		`specs.jamba.retention_interval`:                "default",
		`specs."google/gemma-3.1".groups[0].name`:       "default",
		`specs."google/gemma-3.1".scheduler_block_size`: file + ":5",
	} {
		if got := c.Origin(path).String(); got != want {
			t.Errorf("origin of %s is %q, want %q", path, got, want)
		}
	}
	text := printedText(t, c)
	for _, want := range []string{`    retention_interval: 0 `, `    retention_interval: null `, `      - name: local `, `        window: 1024 `} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if again := mustLoad(t, Sources{File: writeFile(t, "again.yaml", text)}); !sameValues(c, again) {
		t.Errorf("reloaded %+v\nwant %+v", again, c)
	}
}

// TestManySpecs shows that many specs load, and that aliases cannot make a small
// document large.
func TestManySpecs(t *testing.T) {
	var b strings.Builder
	b.WriteString("specs:\n")
	for i := range hybrid.MaxSpecs {
		fmt.Fprintf(&b, "  s%d: {hash_block_size: 16, groups: [{kind: full, block_size: 16}]}\n", i)
	}
	if c := mustLoad(t, Sources{InlineJSON: b.String()}); len(c.Specs) != hybrid.MaxSpecs || c.Specs["s1023"].Groups[0].BlockSize != 16 {
		t.Errorf("got %d specs", len(c.Specs))
	}
	b.WriteString("  x: {}\n  ' ': {hash_block_size: 16, groups: [{kind: full, block_size: 16}]}\n")
	_, err := Load(Sources{InlineJSON: b.String(), MemTotal: testMem})
	wantErrors(t, err, "specs: there are 1026: want at most 1024")
	b.Reset()
	b.WriteString("specs:\n  s: &s {groups: [" + strings.Repeat("{}, ", 1000) + "]}\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "  s%d: *s\n", i)
	}
	l := decode(Sources{InlineJSON: b.String()})
	wantErrors(t, errors.Join(l.errs...), "specs.s98.groups[899]: too much: there are more than 100000 sections")
}

// TestUnsupportedSpecs shows that specs of the right form that look-ups cannot obey are
// refused at the start, each with all reasons in one violation where it stands, and
// together with all other violations (C2, C3, C4, C24).
func TestUnsupportedSpecs(t *testing.T) {
	file := writeFile(t, "c.yaml", `
memory: {policy: mru}
specs:
  fine: {hash_block_size: 16, groups: [{kind: full, block_size: 16}]}
  cross:
    hash_block_size: 16
    cache_block_size: 16
    decode_context_parallel: 2
    groups:
    - {kind: cross, block_size: 16}
    - {kind: mamba, block_size: 32}
    - {kind: newest, block_size: 24}
  empty:
  broken: {eagle: 1, groups: [{kind: cross, block_size: 16}]}
`)
	_, err := Load(Sources{File: file, InlineJSON: `{"specs": {"late": {"hash_block_size": 16, "groups": [{"kind": "swa", "block_size": 16}]}}}`, MemTotal: testMem})
	wantErrors(t, err, file+":2: memory.policy:", file+":14: specs.broken.eagle: the number 1",
		file+":5: specs.cross: ", file+":13: specs.empty: ", "config-json 1:12: specs.late: ")
	if !errors.Is(err, scalar.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	violations := err.(interface{ Unwrap() []error }).Unwrap()
	for i, want := range map[int][]string{
		2: {"group 0: CrossAttentionSpec; ", "group 1: MambaSpec with block_size=32", "dcp=2", `group 2: `, `"newest"`, "24"},
		4: {"window"},
	} {
		for _, part := range want {
			if !strings.Contains(violations[i].Error(), part) {
				t.Errorf("no %q in %q", part, violations[i])
			}
		}
	}
}
