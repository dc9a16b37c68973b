package config

import (
	"math"
	"testing"
	"time"
)

// FuzzLoadYAML feeds any text to the loader: it never panics, and what it
// accepts prints as a file that loads to the same values.
func FuzzLoadYAML(f *testing.F) {
	for _, seed := range []string{
		"", "---\n", "a: b\n---\n", "{}", string(Example()), "memory: {size: 1GiB, low_watermark: 1e-3}",
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

// FuzzSize shows that sizes and durations survive the way to text and back, and
// that no text makes the parsers panic.
func FuzzSize(f *testing.F) {
	for _, seed := range []string{"0", "4GiB", "1.5TiB", "1KB", "-1B", "1e9GiB", "9223372036854775807B", "8EiB", "0.000001MB", " 5 MiB ", "5s", "1h0m0s", "10m", "100h", ".", "+1B", "1.2.3B"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseSize(text); err == nil {
			if again, err := ParseSize(n.String()); n < 0 || err != nil || again != n {
				t.Errorf("size %q = %d prints %q, which is %d, %v", text, n, n, again, err)
			}
		}
		if d, err := ParseDuration(text); err == nil {
			if again, err := ParseDuration(d.String()); d < 0 || err != nil || again != d {
				t.Errorf("duration %q = %d prints %q, which is %d, %v", text, d, d, again, err)
			}
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
		if len(l.cfg.Disk.Dirs) != 1 || d.Path == "" || d.Size < MiB {
			t.Errorf("%q: accepted %+v", text, l.cfg.Disk.Dirs)
		}
	})
}

// TestUnits pins the text form of sizes and durations.
func TestUnits(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "0GiB": 0, "512B": 512, "1KiB": 1024, "1KB": 1000, "1.5GiB": 3 * GiB / 2, "2TB": 2e12, "4 MiB": 4 * MiB,
		"9223372036854775807B": math.MaxInt64,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: unmarshals to %d, %v", text, s, err)
		}
	}
	for size, want := range map[Size]string{
		0: "0", 1: "1B", 1000: "1KB", 1024: "1KiB", 1536: "1536B", 64 * MiB: "64MiB", 3 * GiB / 2: "1536MiB", 2e12: "2TB", 5 * TiB: "5TiB",
	} {
		if got, _ := size.MarshalText(); string(got) != want {
			t.Errorf("%d prints %q, want %q", size, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Hour: "1h", 10 * time.Minute: "10m", 90 * time.Second: "1m30s", 250 * time.Millisecond: "250ms", 3605 * time.Second: "1h0m5s",
	} {
		got, _ := Duration(d).MarshalText()
		var again Duration
		if err := again.UnmarshalText(got); string(got) != want || err != nil || time.Duration(again) != d {
			t.Errorf("%v prints %q, want %q; reads as %v, %v", d, got, want, again, err)
		}
	}
}
