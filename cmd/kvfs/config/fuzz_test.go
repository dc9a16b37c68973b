package config

import (
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// FuzzLoadYAML feeds any text to the loader: it never panics, and what it
// accepts prints as a file that loads to the same values.
func FuzzLoadYAML(f *testing.F) {
	for _, seed := range []string{
		"", "---\n", "a: b\n---\n", "{}", string(example()), "memory: {size: 1GiB, low_watermark: 1e-3}",
		`{"groups": {"a\u0000": {}, "b": {"pinned": true, "quota": "1.5GiB"}}}`, "groups: {a: &x {pinned: true}, b: *x}",
		"x: &x [*x]", "specs: {a/b: {retention_interval: 0, groups: [{kind: swa, window: -0x10}, null]}, c: null}",
		"specs: {a: &x {groups: [&y {name: '0'}, *y]}, b: *x}", "events: {zmq: {bind: 'tcp://*:0', templates: ['{hash:0:3}/{hash}', '{hash']}}", "memory: &m\n  <<: *m\n", "mount: {temp_patterns: ['a b', \"\\n\", tmp/, true]}",
		"? {a: b}\n: c\n", "memory:\n  size: !!str 5GiB\n  keep: !!bool yes\n", "disk:\n  dirs:\n  - {path: /a, size: 1TiB}\n  - null\n",
		"tiers: [{type: memory}, &x {type: store, root: \"\\n\", hosts: [a:1]}, *x, {type: other, cascade: off}, null, {type: peer}]",
		"http: '[::1]:80'\ndrain_timeout: 1h1m1s1ms\n", "groups: {0x10: {}, null: {}, ~: {}, 'x.pinned': {}, \"\\u2028\": {}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l := &loader{cfg: decode(Sources{}).cfg, bad: make(map[string]bool), types: testTypes{}}
		document{loader: l, source: InlineJSON}.decode(text)
		if len(l.errs) > 0 {
			for _, err := range l.errs {
				_ = err.Error()
			}
			return
		}
		again := &loader{cfg: decode(Sources{}).cfg, bad: make(map[string]bool), types: testTypes{}}
		out := printedText(t, l.cfg)
		document{loader: again, source: InlineJSON}.decode([]byte(out))
		if len(again.errs) > 0 || !sameValues(l.cfg, again.cfg) {
			t.Fatalf("%q prints as\n%s\nwhich loads with %v to %+v, want %+v", text, out, again.errs, again.cfg, l.cfg)
		}
	})
}

// FuzzDisk feeds any text to --disk: it never panics, and disks that are
// accepted load to the same through a file.
func FuzzDisk(f *testing.F) {
	for _, seed := range []string{"", "path=/a,size=1GiB", "size=1GiB,path= /a b ", "path=/a", "path=/a,size=0", "=,=", "path==,size=5MiB", ",", "path=\x00\xff,size=1GiB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := decode(Sources{Flags: parseFlags(t, "--disk="+text)})
		if len(l.errs) > 0 || len(l.cfg.Disk.Dirs) == 0 {
			return
		}
		d := l.cfg.Disk.Dirs[0]
		if len(l.cfg.Disk.Dirs) != 1 || d.Path == "" || d.Size < scalar.MiB {
			t.Errorf("%q: accepted %+v", text, l.cfg.Disk.Dirs)
		}
	})
}
