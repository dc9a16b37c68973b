package config

import (
	"reflect"
	"strings"
	"sync"
)

// shape is what a setting looks like in a file.
type shape uint8

const (
	leaf    shape = iota // a scalar or a list of scalars
	section              // a struct: keys known in advance
	table                // a map from names to sections
	list                 // a sequence of sections
)

// setting is one node of the schema, made from a struct field and its tags.
type setting struct {
	key      string // last component of path
	path     string // "memory.size"; "groups.<name>.quota"; "disk.dirs[].path"
	shape    shape  //
	typ      reflect.Type
	index    int        // of the field in its struct
	settings []*setting // of a section, or of the sections in a table or list

	help, def, auto, example string
	reason                   string // a case in which another value than the default is needed; may be empty
	short                    string // the heading in the short help; empty means only --help-all shows it
	enum                     []string
	min, max, above, below   string
	multiple                 string
	check, sep, name         string
	empty                    string // the violation of an element without text
	names                    string // the named check of a table's names
	required, weak           bool
	file                     bool // the value, or each element, is a path, or an endpoint that may be one
	nested                   bool // text cannot reach it, as in a table or a list
}

// schema returns the root section, whose settings are the top-level keys. It is made once and not changed.
var schema = sync.OnceValue(func() *setting {
	root := &setting{shape: section, typ: reflect.TypeFor[Config]()}
	root.settings = settingsOf(root.typ, "", false)
	return root
})

// settingsOf reads the tagged fields of a struct. prefix is the path of the
// struct with its separator. nested is true in tables and lists.
func settingsOf(typ reflect.Type, prefix string, nested bool) []*setting {
	var settings []*setting
	for f := range typ.Fields() {
		key, ok := f.Tag.Lookup("kvfs")
		if !ok {
			continue
		}
		s := &setting{
			key: key, path: prefix + key, typ: f.Type, index: f.Index[0],
			help: f.Tag.Get("help"), def: f.Tag.Get("default"), auto: f.Tag.Get("auto"),
			example: f.Tag.Get("example"), short: f.Tag.Get("short"), reason: f.Tag.Get("case"),
			min: f.Tag.Get("min"), max: f.Tag.Get("max"), above: f.Tag.Get("above"),
			below:    f.Tag.Get("below"),
			multiple: f.Tag.Get("multiple"),
			check:    f.Tag.Get("check"), sep: f.Tag.Get("sep"), name: f.Tag.Get("name"),
			names:    f.Tag.Get("names"),
			empty:    f.Tag.Get("empty"),
			file:     f.Tag.Get("holds") == "path",
			required: f.Tag.Get("required") == "true", weak: f.Tag.Get("env") == "weak", nested: nested || f.Tag.Get("files") == "only",
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			s.enum = strings.Split(enum, "|")
		}
		if s.sep == "" {
			s.sep = ","
		}
		switch {
		case f.Type.Kind() == reflect.Struct:
			s.shape, s.settings = section, settingsOf(f.Type, s.path+".", nested)
		case f.Type.Kind() == reflect.Map:
			s.shape, s.settings = table, settingsOf(f.Type.Elem(), s.path+".<name>.", true)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			s.shape, s.settings = list, settingsOf(f.Type.Elem(), s.path+"[].", true)
		}
		settings = append(settings, s)
	}
	return settings
}

// find returns the setting with key, or nil.
func (s *setting) find(key string) *setting {
	for _, child := range s.settings {
		if child.key == key {
			return child
		}
	}
	return nil
}

func (s *setting) keys() []string {
	keys := make([]string, len(s.settings))
	for i, child := range s.settings {
		keys[i] = child.key
	}
	return keys
}

func (s *setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.textName(), ".", "_"))
}

func (s *setting) flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.textName())
}

// textName is what the variable and the flag are made of: the path, unless the setting has a name of its own.
func (s *setting) textName() string {
	if s.name != "" {
		return s.name
	}
	return s.path
}

// textual reports whether the setting can be given as text, in the environment and as a flag. Sections are only prefixes,
// and tables are for files, with all that is in them.
func (s *setting) textual() bool { return !s.nested && (s.shape == leaf || s.shape == list) }

// repeated reports whether the setting holds any number of values.
func (s *setting) repeated() bool { return s.typ.Kind() == reflect.Slice }

// textSettings lists all textual settings with the index path to their fields, in the order of the struct.
func textSettings() []*textSetting {
	var all []*textSetting
	var walk func(s *setting, index []int)
	walk = func(s *setting, index []int) {
		for _, child := range s.settings {
			at := append(index[:len(index):len(index)], child.index)
			if child.shape == section {
				walk(child, at)
			} else if child.textual() {
				all = append(all, &textSetting{child, at})
			}
		}
	}
	walk(schema(), nil)
	return all
}

// textSetting is a setting that text can reach.
type textSetting struct {
	*setting
	at []int // for reflect.Value.FieldByIndex on a Config
}

func (s *setting) typeName() string {
	switch {
	case s.enum != nil && s.repeated():
		return "list of " + strings.Join(s.enum, "|")
	case s.enum != nil:
		return strings.Join(s.enum, "|")
	case s.shape == list:
		parts := make([]string, len(s.settings))
		for i, child := range s.settings {
			parts[i] = child.key + "=" + strings.ToUpper(child.typeName())
		}
		return strings.Join(parts, ",")
	case s.shape != leaf:
		return s.shape.String()
	case s.check == "hostport":
		return "host:port"
	}
	if s.repeated() {
		return "strings"
	}
	return s.kind().name
}

// String returns the shape in words.
func (s shape) String() string { return [...]string{"value", "section", "table", "list"}[s] }
