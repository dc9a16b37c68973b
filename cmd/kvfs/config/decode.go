package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// loader collects values and violations. One loader serves one Load.
type loader struct {
	cfg  *Config
	errs []error
	bad  map[string]bool   // paths with a violation, which further checks skip
	env  map[string]string // what Sources.Environ says; see environment

	types TierTypes // may be nil

	sections int // decoded from files and inline JSON
}

// maxSections bounds the sections that are decoded. Aliases within lists within tables
// could ask for far more than a document has bytes.
const maxSections = 100_000

func (l *loader) fail(o Origin, path string, err error) {
	l.errs = append(l.errs, &Error{Origin: o, Path: path, Err: err})
	l.bad[path] = true
}

// failKey records a violation whose text names the key, in the section at path.
func (l *loader) failKey(o Origin, path string, err error) {
	l.fail(o, "", err)
	l.bad[path] = true
}

// document is one text in YAML or JSON (which is YAML here).
type document struct {
	*loader
	source Source
	name   string
	text   bool // of a variable or a flag: values have no types of YAML
}

// decode reads exactly one document into the configuration. An empty one, or one with only comments, is all defaults.
func (d document) decode(text []byte) {
	var root, second yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(text))
	err := in.Decode(&root)
	if errors.Is(err, io.EOF) {
		return
	}
	if err != nil {
		d.failSyntax(text, err)
		return
	}
	switch err := in.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.failSyntax(text, err)
	default:
		d.fail(d.origin(&second), "", scalar.Violate(scalar.ErrSyntax, "a second document: only one is read"))
	}
	if d.knownVersion(root.Content[0]) {
		d.section(reflect.ValueOf(d.cfg).Elem(), root.Content[0], schema(), "")
	}
}

// Documents may say of which version of the form they are. It is no setting.
const (
	versionKey = "version"
	version    = "1"
)

// knownVersion refuses a document of another version, whose other keys may mean something else.
func (d document) knownVersion(n *yaml.Node) bool {
	n = resolve(n)
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		v := resolve(n.Content[i+1])
		known := v.Kind == yaml.ScalarNode && (v.ShortTag() == "!!null" || strings.TrimSpace(v.Value) == "" || v.Value == version)
		if n.Content[i].Value == versionKey && !known {
			d.fail(d.origin(v), versionKey, scalar.Violate(scalar.ErrEnum, "%s is not a version of this configuration; known: %s", describe(v), version))
			return false
		}
	}
	return true
}

func (d document) whole() Origin { return Origin{Source: d.source, Name: d.name} }

func (d document) origin(n *yaml.Node) Origin {
	return Origin{Source: d.source, Name: d.name, Line: n.Line, Col: n.Column}
}

func (d document) section(v reflect.Value, n *yaml.Node, s *setting, path string) {
	d.fields(n, s, path, func(child *setting) reflect.Value { return v.Field(child.index) })
}

// fields decodes a mapping into what field returns for each setting of s.
func (d document) fields(n *yaml.Node, s *setting, path string, field func(*setting) reflect.Value) {
	if d.sections++; d.sections > maxSections {
		if d.sections == maxSections+1 {
			d.fail(d.origin(n), path, scalar.Violate(scalar.ErrRange, "too much: there are more than %d sections, entries and elements", maxSections))
		}
		return
	}
	d.mapping(n, s, path, func(key, value *yaml.Node) {
		child := s.find(key.Value)
		switch {
		case path == "" && key.Value == versionKey:
			return
		case child == nil:
			d.failKey(d.origin(key), path, unknownKey(key.Value, s, path))
			return
		}
		d.setting(field(child), value, child, join(path, child.key))
	})
}

func (d document) setting(v reflect.Value, n *yaml.Node, s *setting, path string) {
	n = resolve(n)
	switch {
	case d.sections > maxSections:
	case s.shape == section:
		d.section(v, n, s, path)
	case s.shape == table:
		d.table(v, n, s, path)
	case s.repeated():
		d.sequence(v, n, s, path)
	case n.Kind != yaml.ScalarNode:
		d.fail(d.origin(n), path, scalar.Violate(scalar.ErrType, "%s is not %s", describe(n), s.want()))
	default:
		given, err := s.setScalar(v, n, d.text)
		if err != nil {
			d.fail(d.origin(n), path, err)
		} else if given {
			d.cfg.origins[path] = d.origin(n)
		}
	}
}

// table decodes a mapping from names to sections. What other sources said about a name stays where this one is silent.
func (d document) table(v reflect.Value, n *yaml.Node, s *setting, path string) {
	d.mapping(n, s, path, func(key, value *yaml.Node) {
		name := key.Value
		if err := tableNames[s.names](name); err != nil {
			d.fail(d.origin(key), path, err)
			return
		}
		at := joinName(path, name)
		entry := reflect.New(s.typ.Elem()).Elem()
		if v.IsNil() {
			v.Set(reflect.MakeMap(s.typ))
		}
		if old := v.MapIndex(reflect.ValueOf(name)); old.IsValid() {
			entry.Set(old)
		} else {
			setDefaults(entry, s.settings)
			d.cfg.origins[at] = d.origin(key)
		}
		d.section(entry, resolve(value), s, at)
		v.SetMapIndex(reflect.ValueOf(name), entry)
	})
}

// tableNames are the named checks of the names in a table.
var tableNames = map[string]func(string) error{
	"group": checkGroupName,
	"spec":  invalid(hybrid.CheckName),
}

// invalid makes a named check of one whose reasons are violations of the kind ErrInvalid.
func invalid(check func(string) error) func(string) error {
	return func(text string) error {
		if err := check(text); err != nil {
			return scalar.Violate(scalar.ErrInvalid, "%v", err)
		}
		return nil
	}
}

func checkGroupName(name string) error {
	if err := block.CheckName(name); err != nil {
		return scalar.Violate(scalar.ErrInvalid, "%q cannot name a group: want 1 to %d bytes without slash and NUL, not . or ..", name, block.MaxName)
	}
	if name == block.Reserved {
		return scalar.Violate(scalar.ErrInvalid, "%q is reserved for the control directory", name)
	}
	return nil
}

// sequence decodes a list, which replaces what other sources said.
func (d document) sequence(v reflect.Value, n *yaml.Node, s *setting, path string) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.fail(d.origin(n), path, scalar.Violate(scalar.ErrType, "%s is not a sequence: want %s", describe(n), s.sequenceOf(n)))
		return
	}
	d.clear(path)
	out := reflect.MakeSlice(s.typ, len(n.Content), len(n.Content))
	for i, element := range n.Content {
		element = resolve(element)
		at := fmt.Sprintf("%s[%d]", path, i)
		if s.shape == list {
			setDefaults(out.Index(i), s.settings)
			d.cfg.origins[at] = d.origin(element)
			if t, ok := out.Index(i).Addr().Interface().(*Tier); ok {
				d.tier(t, element, s, at)
			} else {
				d.section(out.Index(i), element, s, at)
			}
			if !d.bad[at] { // else it is no section
				d.required(out.Index(i), s, at, d.origin(element))
			}
			continue
		}
		d.element(out.Index(i), element, s, at)
	}
	if len(n.Content) == 0 && s.typ != reflect.TypeFor[[]hybrid.Group]() {
		out = reflect.Zero(s.typ) // as if it had never been set, which groups of a spec must be
	}
	v.Set(out)
	d.cfg.origins[path] = d.origin(n)
}

func (d document) element(v reflect.Value, n *yaml.Node, s *setting, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fail(d.origin(n), path, scalar.Violate(scalar.ErrType, "%s is not %s", describe(n), s.want()))
		return
	}
	given, err := s.setScalar(v, n, d.text)
	if err == nil && !given {
		err = scalar.Violate(scalar.ErrInvalid, "%s", cmp.Or(s.empty, "the element is empty"))
	}
	if err != nil {
		d.fail(d.origin(n), path, err)
	}
}

// clear forgets the origins below path, because its list is being replaced.
func (l *loader) clear(path string) {
	if _, given := l.cfg.origins[path]; !given {
		return
	}
	for at := range l.cfg.origins {
		if strings.HasPrefix(at, path+"[") {
			delete(l.cfg.origins, at)
		}
	}
}

func (l *loader) required(v reflect.Value, s *setting, path string, o Origin) {
	for _, child := range s.settings {
		at := join(path, child.key)
		if child.required && v.Field(child.index).IsZero() && !l.bad[at] {
			l.fail(o, path, scalar.Violate(scalar.ErrInvalid, "%s is missing", child.key))
		}
	}
}

// mapping calls fn for each key of n, once a key. Null is an empty mapping.
func (d document) mapping(n *yaml.Node, s *setting, path string, fn func(key, value *yaml.Node)) {
	n = resolve(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(d.origin(n), path, scalar.Violate(scalar.ErrType, "%s is not a mapping: want %s", describe(n), mappingOf(s)))
		return
	}
	first := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		switch before := first[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			d.fail(d.origin(key), path, scalar.Violate(scalar.ErrType, "%s is not a key", describe(key)))
		case key.ShortTag() == "!!merge":
			d.fail(d.origin(key), path, scalar.Violate(scalar.ErrUnknown, "merge keys (<<) are not read"))
		case before != nil:
			d.failKey(d.origin(key), path, scalar.Violate(scalar.ErrDuplicate, "duplicate key %q%s", join(path, key.Value), inLine(before)))
		default:
			first[key.Value] = key
			fn(key, n.Content[i+1])
		}
	}
}

// inLine says where the first of two keys is, in a document that has lines.
func inLine(n *yaml.Node) string {
	if n.Line == 0 {
		return ""
	}
	return fmt.Sprintf(", first given in line %d", n.Line)
}

func mappingOf(s *setting) string {
	if s.shape == table {
		return "names, each with " + strings.Join(s.keys(), ", ")
	}
	return "the keys " + strings.Join(s.keys(), ", ")
}

// resolve follows an alias to its anchor. What it points at is decoded by the
// schema, whose depth is fixed, so that no document can unfold without end.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// joinName appends the name of a table's entry, quoted unless it is plain, so
// that a dot in it cannot be taken for the end of it.
func joinName(path, name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return strings.ContainsRune(".[]\"", r) || !strconv.IsPrint(r) }) {
		name = strconv.Quote(name)
	}
	return join(path, name)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// parserText is how the parser of YAML puts an error. It leaves out the line if that is the first.
var parserText = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// remedies are what to do about errors of the parser, by a part of its text.
var remedies = []struct{ text, remedy string }{
	{"mapping values are not allowed", "a colon too many, or the line is indented deeper than the one above: put a value with a colon in quotes"},
	{"did not find expected ',' or", "a bracket is not closed, or a comma is missing"},
	{"unexpected end of stream", "a quote or a bracket is not closed"},
	{"unknown anchor", "put a value that begins with * in quotes"},
	{"UTF", "the text is not UTF-8: save it as that"},
	{"control characters", "the text has bytes that are not text: save it as UTF-8"},
	{"cannot start any token", "put a value that begins so in quotes"},
	{"did not find expected", "check the indentation of this line and of those above it"},
}

func (d document) failSyntax(text []byte, err error) {
	o, what := d.whole(), err.Error()
	if m := parserText.FindStringSubmatch(what); m != nil {
		o.Line, o.Col, what = 1, 1, m[2]
		if m[1] != "" {
			o.Line, _ = strconv.Atoi(m[1])
		}
	}
	if line := tabbed(text); line > 0 && line <= o.Line {
		o.Line = line
		d.fail(o, "", scalar.Violate(scalar.ErrSyntax, "a tab indents the line: YAML wants spaces"))
		return
	}
	for _, r := range remedies {
		if strings.Contains(what, r.text) {
			what += ": " + r.remedy
			break
		}
	}
	d.fail(o, "", scalar.Violate(scalar.ErrSyntax, "%s", what))
}

// tabbed returns the first line that a tab indents, 0 if there is none.
func tabbed(text []byte) int {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if rest := bytes.TrimLeft(line, " "); len(rest) > 0 && rest[0] == '\t' && len(bytes.TrimSpace(rest)) > 0 {
			return n
		}
	}
	return 0
}

const (
	bucketTier = "a bucket is a tier: write tiers: [{type: object, url: s3://BUCKET/PREFIX}]"
	pathOfSSD  = "each directory of the SSD tier has its own: write disk: {dirs: [{path: DIR, size: SIZE}]}"
	ofPeers    = "the addresses of peers are the settings bind and join"
	mountPoint = "the mount point is an argument: kvfs mount DIR"
)

// meant are keys that people write for what has another form here, and what to write.
var meant = map[string]string{
	"object": bucketTier, "s3": bucketTier, "bucket": bucketTier,
	"disk.path": pathOfSSD, "disk.size": pathOfSSD, "disk.dir": pathOfSSD, "ssd": pathOfSSD, "nvme": pathOfSSD,
	"peers": ofPeers, "cluster": ofPeers,
	"mount.dir": mountPoint, "mount.path": mountPoint, "mount_point": mountPoint, "mountpoint": mountPoint,
}

// unknownKey is the violation for a key that section s, at path, lacks.
func unknownKey(key string, s *setting, path string) error {
	full := join(path, key)
	if instead, is := meant[full]; is {
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q: %s", full, instead)
	}
	if path == "" && strings.Contains(key, ".") &&
		slices.ContainsFunc(textSettings(), func(t *textSetting) bool { return t.path == key }) {
		at, last := key[:strings.LastIndex(key, ".")], key[strings.LastIndex(key, ".")+1:]
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q: write it as a section: %s: {%s: ...}", key, strings.ReplaceAll(at, ".", ": {"), last)
	}
	candidates := make([]string, 0, len(s.settings))
	for _, child := range s.settings {
		candidates = append(candidates, join(path, child.key))
	}
	if near := Nearest(full, candidates); near != "" {
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q; did you mean %q?", full, near)
	}
	if other := elsewhere(key, full); other != "" {
		return scalar.Violate(scalar.ErrUnknown, "unknown key %q; did you mean %q?", full, other)
	}
	return scalar.Violate(scalar.ErrUnknown, "unknown key %q; known here: %s", full, strings.Join(s.keys(), ", "))
}

// elsewhere returns the setting that is meant by a right key in a wrong place, or by a path written with other separators:
// the one nearest to the top.
func elsewhere(key, full string) (best string) {
	depth := func(path string) int { return strings.Count(path, ".") }
	for _, t := range textSettings() {
		if (t.key == key || sameName(t.path, full) || sameName(t.path, key)) && (best == "" || depth(t.path) < depth(best)) {
			best = t.path
		}
	}
	return best
}

// sameName compares two paths without regard to separators and case.
func sameName(a, b string) bool {
	fold := strings.NewReplacer(".", "", "_", "", "-", "")
	return strings.EqualFold(fold.Replace(a), fold.Replace(b))
}

// Nearest returns the candidate that a typing error may have turned into name, or "".
func Nearest(name string, candidates []string) string {
	best, bestDistance := "", min(2, len(name)/3)+1
	for _, c := range candidates {
		if sameName(name, c) {
			return c
		}
		if d := distance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two short strings, in bytes. Long ones are far from everything.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = slices.Min([]int{cost, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}

// Suggest returns the flag or variable that is meant by a name that is none, or "": one with a typing error, the end of one
// (because people remember --size: that of the memory tier, else the shortest), one with a section too many, or the first
// words of one.
func Suggest(name string, names []string) string {
	if near := Nearest(name, names); near != "" {
		return near
	}
	fold := func(name string) string {
		return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", "-")
	}
	name = fold(name)
	best, bestRank := "", 0
	for _, n := range names {
		f, rank := fold(n), 0
		switch {
		case f == "memory-"+name, f == "memory-size" && name == "memory":
			rank = 4000
		case strings.HasSuffix(f, "-"+name):
			rank = 3000 - len(f)
		case strings.HasSuffix(name, "-"+f):
			rank = 2000 + len(f)
		case strings.HasPrefix(name, f+"-"):
			rank = 1000 + len(f)
		}
		if rank > bestRank {
			best, bestRank = n, rank
		}
	}
	return best
}

// Source is the kind of place that a value comes from, in order of precedence.
type Source uint8

const (
	Default Source = iota
	File
	InlineJSON
	Env
	Flag
)

// Origin is the place that a value, or a violation, comes from.
type Origin struct {
	Source Source
	Name   string // file, environment variable, or flag without dashes; else empty
	Line   int    // of a File or InlineJSON, from 1; 0 if not known
	Col    int    // in runes, from 1
}

// String returns "default", "<file>:<line>", "config-json <line>:<col>", "env <NAME>" or "flag --<name>".
func (o Origin) String() string {
	switch o.Source {
	case File:
		if o.Line == 0 {
			return o.Name
		}
		return fmt.Sprintf("%s:%d", o.Name, o.Line)
	case InlineJSON:
		if o.Line == 0 {
			return "config-json"
		}
		return fmt.Sprintf("config-json %d:%d", o.Line, o.Col)
	case Env:
		return "env " + o.Name
	case Flag:
		return "flag --" + o.Name
	}
	return "default"
}

// Error is one violation.
type Error struct {
	Origin Origin // where it stands
	Path   string // the setting that is meant; empty if there is none
	Err    error  // one of the kinds below, wrapped with what was found and what is allowed
}

// Error prints "<origin>: <path>: <what>".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Origin.String())
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	b.WriteString(": " + e.Err.Error())
	return b.String()
}

// Unwrap returns the kind, wrapped.
func (e *Error) Unwrap() error { return e.Err }
