package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"go.yaml.in/yaml/v3"
)

// field is one place in the configuration that a value can be given to: a setting that
// text can reach, or one in an entry of a table or an element of a list.
type field struct {
	*setting
	path string                                 // as in origins: "memory.size", "groups.g0.quota", "disk.dirs[0].path"
	doc  func(value any) map[string]any         // a document with nothing but it
	get  func(root reflect.Value) reflect.Value // finds it in a Config
}

// allFields lists the fields of Config, from the schema alone.
func allFields(t testing.TB) []field {
	var fields []field
	var walk func(s *setting, path string, doc func(any) map[string]any, get func(reflect.Value) reflect.Value)
	walk = func(s *setting, path string, doc func(any) map[string]any, get func(reflect.Value) reflect.Value) {
		for _, child := range s.settings {
			f := field{
				setting: child, path: join(path, child.key),
				doc: func(value any) map[string]any { return doc(map[string]any{child.key: value}) },
				get: func(root reflect.Value) reflect.Value { return get(root).Field(child.index) },
			}
			switch child.shape {
			case leaf:
				fields = append(fields, f)
			case section:
				walk(child, f.path, f.doc, f.get)
			case table:
				walk(child, f.path+".n0", func(value any) map[string]any {
					return f.doc(map[string]any{"n0": value})
				}, func(root reflect.Value) reflect.Value { return f.get(root).MapIndex(reflect.ValueOf("n0")) })
			case list:
				fields = append(fields, f)
				walk(child, f.path+"[0]", func(value any) map[string]any {
					return f.doc([]any{withRequired(t, child, value.(map[string]any))})
				}, func(root reflect.Value) reflect.Value { return f.get(root).Index(0) })
			}
		}
	}
	walk(schema(), "", func(value any) map[string]any { return value.(map[string]any) }, func(root reflect.Value) reflect.Value { return root })
	return fields
}

// withRequired adds what an element of a list must have besides value.
func withRequired(t testing.TB, s *setting, value map[string]any) map[string]any {
	for _, child := range s.settings {
		if _, given := value[child.key]; child.required && !given {
			value[child.key] = samples(t, child)[0].doc
		}
	}
	return value
}

// value is one value in all of its forms.
type value struct {
	texts []string // in the environment and of flags; several of a list
	doc   any      // in YAML and JSON
	want  any      // in the Config
}

// candidates are values of each type. Those that a setting takes are its samples, so
// that one for each range and each check suffices.
func candidates(s *setting) []value {
	var all []value
	text := func(want any, text string) { all = append(all, value{[]string{text}, text, want}) }
	switch s.typ {
	case reflect.TypeFor[bool]():
		return []value{{[]string{"yes"}, true, true}, {[]string{"0"}, false, false}}
	case reflect.TypeFor[int]():
		return []value{{[]string{"3"}, 3, 3}, {[]string{"5"}, 5, 5}}
	case reflect.TypeFor[*int]():
		three, zero := 3, 0
		return []value{{[]string{"3"}, 3, &three}, {[]string{"0"}, 0, &zero}}
	case reflect.TypeFor[float64]():
		return []value{{[]string{"0.96"}, 0.96, 0.96}, {[]string{"2.5e-1"}, 0.25, 0.25}}
	case reflect.TypeFor[scalar.Size]():
		text(768*scalar.KiB, "768KiB")
		text(512*scalar.KiB, "0.5MiB")
		text(3*scalar.MiB, "3 MiB")
		text(4096*scalar.KiB, "4194304B")
	case reflect.TypeFor[scalar.Duration]():
		text(scalar.Duration(7e9), "7s")
		text(scalar.Duration(90e9), "1m30s")
	case reflect.TypeFor[[]DiskDir]():
		one, two := map[string]any{"path": "/mnt/a", "size": "3GiB"}, map[string]any{"path": "/mnt/b c", "size": "1TB"}
		return []value{
			{[]string{"path=/mnt/a,size=3GiB"}, []any{one}, []DiskDir{{"/mnt/a", 3 * scalar.GiB}}},
			{[]string{"path=/mnt/a,size=3GiB", "size=1TB, path=/mnt/b c"}, []any{one, two}, []DiskDir{{"/mnt/a", 3 * scalar.GiB}, {"/mnt/b c", 1e12}}},
		}
	case reflect.TypeFor[[]Tier]():
		doc := func(kind string) any { return []any{map[string]any{"type": kind}} }
		return []value{
			{nil, doc("other"), []Tier{{Type: "other", Cascade: "async", Admission: "all", Options: &struct{}{}}}},
			{nil, doc("disk"), []Tier{{Type: "disk", Cascade: "async", Admission: "all"}}},
		}
	case reflect.TypeFor[[]hybrid.Group]():
		doc := func(kind string) any { return []any{map[string]any{"kind": kind, "block_size": 16}} }
		return []value{
			{nil, doc("full"), []hybrid.Group{{Kind: "full", BlockSize: 16}}}, {nil, doc("mla"), []hybrid.Group{{Kind: "mla", BlockSize: 16}}},
		}
	case reflect.TypeFor[hybrid.Kind]():
		text(hybrid.Full, "full")
		text(hybrid.Kind("other"), "other")
	case reflect.TypeFor[string]():
		for _, s := range append(slices.Clone(s.enum), "sample", "other", "[::1]:9100", "[::1]:9101", "tcp://[::1]:5557", "ipc:///a/b", "/run/a.sock", "/b", "bind:0", "interleave:0-3,7", "http://a:1", "https://b/c") {
			text(s, s)
		}
	case reflect.TypeFor[[]string]():
		lists := [][]string{{"a*", "b"}, {"c"}, {"[fd00::1]", "node-2:80"}, {"{group}/{hash}", "{hash:0:3}/{hash}.bin"}, {"{hash}"}, {"mlx5_0", "mlx5_1+mlx5_2"},
			{"tcp://router:5557", "ipc:///a/c"}, {"tcp://[::1]:5558"}}
		if s.enum != nil {
			lists = append(lists, s.enum[:2], s.enum[1:])
		}
		for _, l := range lists {
			all = append(all, value{l, l, l})
		}
	}
	return all
}

// samples returns two values that s takes; the first is not its default.
func samples(t testing.TB, s *setting) []value {
	t.Helper()
	var good []value
	for _, v := range candidates(s) {
		ok := true
		for _, text := range v.texts {
			switch {
			case s.shape == list:
			case s.repeated():
				var element string
				ok = ok && s.setText(reflect.ValueOf(&element).Elem(), text) == nil
			default:
				ok = ok && s.setText(reflect.New(s.typ).Elem(), text) == nil
			}
		}
		if ok {
			good = append(good, v)
		}
	}
	slices.SortStableFunc(good, func(a, b value) int { return count(isDefault(s, a)) - count(isDefault(s, b)) })
	if len(good) < 2 || isDefault(s, good[0]) {
		t.Fatalf("%s: no two samples for type %v, check %q; add some to candidates", s.path, s.typ, s.check)
	}
	return good[:2]
}

// isDefault reports whether v is the default of s.
func isDefault(s *setting, v value) bool {
	def := reflect.New(s.typ).Elem()
	if s.shape == leaf && s.def != "" && !s.repeated() {
		if err := s.setText(def, s.def); err != nil {
			return false
		}
	}
	return reflect.DeepEqual(def.Interface(), v.want)
}

// count is 1 for true, so that false sorts first.
func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// jsonDoc returns a document as JSON, yamlDoc as YAML in block style.
func jsonDoc(t testing.TB, doc any) string {
	t.Helper()
	text, err := json.Marshal(doc)
	must(t, err)
	return string(text)
}

func yamlDoc(t testing.TB, doc any) string {
	t.Helper()
	text, err := yaml.Marshal(doc)
	must(t, err)
	return string(text)
}

// yamlLine returns the line of a YAML document in which the value of f begins.
func yamlLine(t testing.TB, f field, text string) int {
	t.Helper()
	line := 1
	for l := range strings.Lines(text) {
		if key := strings.ReplaceAll(strings.TrimLeft(l, " -"), `"`, ""); strings.HasPrefix(key, f.key+":") {
			if f.repeated() {
				return line + 1
			}
			return line
		}
		line++
	}
	t.Fatalf("no key %s in\n%s", f.key, text)
	return 0
}

// layer is one way to give a field a value.
type layer struct {
	name string
	kind Source
	set  func(src *Sources, v value)
	from func(v value) string // how its origin prints, or begins
}

// layers lists all ways to give f a value, from the lowest precedence to the highest.
// Of several for the same source, one at a time can be used.
func layers(t testing.TB, f field) []layer {
	var last string // of the files written
	file := func(name string, text string) string { last = writeFile(t, name, text); return last }
	asYAML := func(v value) string { return yamlDoc(t, f.doc(v.doc)) }
	asJSON := func(v value) string { return jsonDoc(t, f.doc(v.doc)) }
	inYAML := func(v value) string { return fmt.Sprintf("%s:%d", last, yamlLine(t, f, asYAML(v))) }
	inJSON := func(value) string { return last + ":1" }
	inline := func(value) string { return "config-json 1:" }
	flags := func(src *Sources, args ...string) {
		if src.Flags == nil {
			src.Flags = parseFlags(t)
		}
		must(t, src.Flags.Parse(args))
	}
	all := []layer{
		{"yaml", File, func(s *Sources, v value) { s.File = file("c.yaml", asYAML(v)) }, inYAML},
		{"json", File, func(s *Sources, v value) { s.File = file("c.json", asJSON(v)) }, inJSON},
		{"file by env", File, func(s *Sources, v value) { s.Environ = append(s.Environ, "KVFS_CONFIG="+file("c.yaml", asYAML(v))) }, inYAML},
		{"file by flag", File, func(s *Sources, v value) { flags(s, "--config", file("c.json", asJSON(v))) }, inJSON},
		{"inline", InlineJSON, func(s *Sources, v value) { s.InlineJSON = asJSON(v) }, inline},
		{"inline by env", InlineJSON, func(s *Sources, v value) { s.Environ = append(s.Environ, "KVFS_CONFIG_JSON="+asJSON(v)) }, inline},
		{"inline by flag", InlineJSON, func(s *Sources, v value) { flags(s, "--config-json", asJSON(v)) }, inline},
	}
	if f.textual() {
		all = append(all,
			layer{"env", Env, func(s *Sources, v value) { s.Environ = append(s.Environ, f.env()+"="+strings.Join(v.texts, f.sep)) },
				func(value) string { return "env " + f.env() }},
			layer{"flag", Flag, func(s *Sources, v value) {
				for _, text := range v.texts {
					flags(s, "--"+f.flag()+"="+text)
				}
			}, func(value) string { return "flag --" + f.flag() }})
	}
	return all
}

// check demands that only f is set, to v, by a layer.
func (f field) check(t *testing.T, what string, src Sources, v value, from string) *Config {
	t.Helper()
	src.TierTypes = testTypes{}
	l := decode(src)
	if len(l.errs) > 0 {
		t.Fatalf("%s: errors: %v", what, l.errs)
	}
	if got := f.get(reflect.ValueOf(l.cfg).Elem()).Interface(); !reflect.DeepEqual(got, v.want) {
		t.Errorf("%s: got %#v, want %#v", what, got, v.want)
	}
	if got := l.cfg.Origin(f.path).String(); !strings.HasPrefix(got, from) {
		t.Errorf("%s: origin %q, want %q", what, got, from)
	}
	return l.cfg
}

// TestEveryField shows that one loader serves all sources. The schema says which fields
// there are; each gets a value from each source alone, and all make the same Config,
// with the right origin (B4, D1, D2, D3, D14, D16). Then each two sources give it two
// values: flags win over the environment, that over inline JSON, that over the file, and
// all over the default. The one exception, in the schema, is the preferred segment, of
// which the environment says only what no file says (E1). It looks before validation,
// because some settings need others.
func TestEveryField(t *testing.T) {
	for _, f := range allFields(t) {
		t.Run(f.path, func(t *testing.T) {
			v, ways := samples(t, f.setting), layers(t, f)
			var first *Config
			for _, way := range ways {
				var src Sources
				way.set(&src, v[0])
				c := f.check(t, way.name, src, v[0], way.from(v[0]))
				if first == nil {
					first = c
				}
				if !sameValues(c, first) {
					t.Errorf("%s: got %+v, want as from %s %+v", way.name, c, ways[0].name, first)
				}
			}
			// Of each source one way is enough here.
			ranks := slices.CompactFunc(slices.Clone(ways), func(a, b layer) bool { return a.kind == b.kind })
			for i, low := range ranks {
				for _, high := range ranks[i+1:] {
					for n := range v {
						var src Sources
						high.set(&src, v[n])
						low.set(&src, v[1-n])
						winner, want := high, v[n]
						if f.weak && high.kind == Env {
							winner, want = low, v[1-n]
						}
						f.check(t, low.name+" and "+high.name, src, want, winner.from(want))
					}
				}
			}
		})
	}
}

// TestFieldsAreComplete shows that the table has every tagged field of Config, and some
// of each kind, so that it cannot come to be empty.
func TestFieldsAreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range allFields(t) {
		seen[f.setting.path] = true
	}
	for _, s := range textSettings() {
		if !seen[s.path] {
			t.Errorf("%s is not in the table", s.path)
		}
	}
	for _, path := range []string{"memory.size", "store.socket", "store.owner_timeout", "groups.<name>.quota", "disk.dirs[].path",
		"specs.<name>.retention_interval", "specs.<name>.groups[].window", "events.zmq.templates", "events.zmq.connect", "preferred_segment"} {
		if !seen[path] {
			t.Errorf("%s is not in the table", path)
		}
	}
}

// TestStrictBooleans shows B6 on every boolean there is: true and false in documents, and
// eight words in the environment and as flags. Everything else is an error that names
// the setting: "false" is not true.
func TestStrictBooleans(t *testing.T) {
	booleans := 0
	for _, f := range allFields(t) {
		if f.typ.Kind() != reflect.Bool {
			continue
		}
		booleans++
		wantBad := func(what string, src Sources) {
			t.Helper()
			l := decode(src)
			if len(l.errs) != 1 || l.errs[0].(*Error).Path != f.path || kindOf(l.errs[0]) != scalar.ErrType {
				t.Errorf("%s: %s: got %v", f.path, what, l.errs)
			}
		}
		for _, bad := range []any{"false", "true", "yes", "on", 0, 1, 1.0, []string{}, map[string]any{}} {
			wantBad(fmt.Sprintf("inline %#v", bad), Sources{InlineJSON: jsonDoc(t, f.doc(bad))})
			wantBad(fmt.Sprintf("file %#v", bad), Sources{File: writeFile(t, "c.yaml", yamlDoc(t, f.doc(bad)))})
		}
		if !f.textual() {
			continue
		}
		for text, want := range textBools {
			f.check(t, text, Sources{Environ: []string{f.env() + "=" + text}}, value{want: want}, "env ")
			f.check(t, text, Sources{Flags: parseFlags(t, "--"+f.flag()+"="+text)}, value{want: want}, "flag ")
		}
		for _, bad := range []string{"True", "FALSE", "2", "-1", "y", "n", "t", "enabled", "null", "0x1"} {
			wantBad("env "+bad, Sources{Environ: []string{f.env() + "=" + bad}})
			wantBad("flag "+bad, Sources{Flags: parseFlags(t, "--"+f.flag()+"="+bad)})
		}
	}
	if booleans < 8 {
		t.Errorf("there are %d booleans in the table", booleans)
	}
}

// kindOf returns the kind of a violation.
func kindOf(err error) error {
	for _, k := range []scalar.Kind{scalar.ErrSyntax, scalar.ErrUnknown, scalar.ErrDuplicate, scalar.ErrType, scalar.ErrUnit, scalar.ErrRange, scalar.ErrEnum, scalar.ErrInvalid} {
		if errors.Is(err, k) {
			return k
		}
	}
	return nil
}
