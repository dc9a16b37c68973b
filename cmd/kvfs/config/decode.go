package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"go.yaml.in/yaml/v3"
)

// loader collects values and violations. One loader serves one Load.
type loader struct {
	cfg  *Config
	errs []error
	bad  map[string]bool   // paths with a violation, which further checks skip
	env  map[string]string // what Sources.Environ says; see environment

	types TierTypes // may be nil

	old []retiredUse // in the order in which they were read

	sections int // decoded from files and inline JSON
}

// maxSections bounds the sections that are decoded. Aliases within lists within tables
// could ask for far more than a document has bytes.
const maxSections = 100_000

// fail records a violation.
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
}

// decode reads exactly one document into the configuration. An empty one, or
// one with only comments, is all defaults.
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

// section decodes a mapping into a struct.
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
		case child == nil && d.noteRetired(join(path, key.Value), d.origin(key)):
			return
		case child == nil:
			d.failKey(d.origin(key), path, unknownKey(key.Value, s, path))
			return
		}
		d.setting(field(child), value, child, join(path, child.key))
	})
}

// setting decodes one value.
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
		given, err := s.setScalar(v, n)
		if err != nil {
			d.fail(d.origin(n), path, err)
		} else if given {
			d.cfg.origins[path] = d.origin(n)
		}
	}
}

// table decodes a mapping from names to sections. What other sources said
// about a name stays where this one is silent.
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

// checkGroupName wants the name of a group.
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

// element decodes one string of a list.
func (d document) element(v reflect.Value, n *yaml.Node, s *setting, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fail(d.origin(n), path, scalar.Violate(scalar.ErrType, "%s is not %s", describe(n), s.want()))
		return
	}
	given, err := s.setScalar(v, n)
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

// required demands the keys of one section of a list.
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
			d.failKey(d.origin(key), path, scalar.Violate(scalar.ErrDuplicate, "duplicate key %q, first given in line %d", join(path, key.Value), before.Line))
		default:
			first[key.Value] = key
			fn(key, n.Content[i+1])
		}
	}
}

// mappingOf says which keys a mapping may have.
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

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
