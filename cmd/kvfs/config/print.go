package config

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Print writes the configuration to w as YAML that Load reads, with the origin of each value in a comment, aligned.
func Print(w io.Writer, c *Config) error { return (&printer{origins: c.origins}).print(w, c) }

// PrintPublic is Print with "(removed)" for the value of each setting that is a secret by its name, and for users in URLs.
func PrintPublic(w io.Writer, c *Config) error { return (&printer{c.origins, true, nil}).print(w, c) }

func (p *printer) print(w io.Writer, c *Config) error {
	p.section(reflect.ValueOf(*c), schema(), "", "")
	width := 0
	for _, l := range p.lines {
		if n := utf8.RuneCountInString(l.text); l.origin != "" && n <= maxAlign {
			width = max(width, n)
		}
	}
	for _, l := range p.lines {
		text := l.text
		if l.origin != "" {
			text = fmt.Sprintf("%-*s  # %s", width, l.text, l.origin)
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}

// maxAlign is the longest line, in runes, to which the others are aligned.
const maxAlign = 60

type printer struct {
	origins map[string]Origin
	public  bool // without secrets
	lines   []printed
}

// printed is one line of YAML; sections have no origin.
type printed struct {
	text, origin string
	path, value  string // of a value
}

// Value is a value of a configuration, as Print writes it.
type Value struct{ Path, Text, Origin string }

// Public returns what PrintPublic writes.
func Public(c *Config) (all []Value) {
	p := &printer{c.origins, true, nil}
	p.section(reflect.ValueOf(*c), schema(), "", "")
	for _, l := range p.lines {
		if l.value != "" {
			all = append(all, Value{l.path, l.value, l.origin})
		}
	}
	return all
}

func (p *printer) line(path, indent, key, value string) {
	origin := p.origins[path].String()
	if strings.ContainsFunc(origin, func(r rune) bool { return !strconv.IsPrint(r) }) {
		origin = strconv.Quote(origin)
	}
	p.lines = append(p.lines, printed{strings.TrimSuffix(indent+key+": "+value, " "), origin, path, value})
}

func (p *printer) heading(format string, args ...any) {
	p.lines = append(p.lines, printed{text: fmt.Sprintf(format, args...)})
}

// section prints the fields of a struct. path is its path, indent what its lines begin with.
func (p *printer) section(v reflect.Value, s *setting, path, indent string) {
	for _, child := range s.settings {
		at, field := join(path, child.key), v.Field(child.index)
		switch {
		case child.shape == section:
			p.heading("%s%s:", indent, child.key)
			p.section(field, child, at, indent+"  ")
		case child.shape == table && field.Len() > 0:
			p.heading("%s%s:", indent, child.key)
			p.table(field, child, at, indent+"  ")
		case child.shape == list && field.Len() > 0:
			p.line(at, indent, child.key, "")
			for i := range field.Len() {
				p.element(field.Index(i), child, fmt.Sprintf("%s[%d]", at, i), indent)
			}
		default:
			p.line(at, indent, child.key, p.value(field, child))
		}
	}
}

func (p *printer) table(v reflect.Value, s *setting, path, indent string) {
	names := v.MapKeys()
	slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range names {
		p.heading("%s%s:", indent, quote(name.String()))
		p.section(v.MapIndex(name), s, joinName(path, name.String()), indent+"  ")
	}
}

// element prints one section of a list: its first line begins with a dash.
func (p *printer) element(v reflect.Value, s *setting, path, indent string) {
	first := len(p.lines)
	if t, ok := v.Interface().(Tier); ok {
		common, own := t.settings(s)
		p.section(v, &setting{settings: common}, path, indent+"    ")
		if len(own) > 0 {
			p.section(reflect.ValueOf(t.Options).Elem(), &setting{settings: own}, path, indent+"    ")
		}
	} else {
		p.section(v, s, path, indent+"    ")
	}
	p.lines[first].text = indent + "  - " + strings.TrimPrefix(p.lines[first].text, indent+"    ")
}

var (
	secretName = regexp.MustCompile(`(?i)(^|_)(keys?|tokens?|passw(or)?d|passphrase|secrets?|credentials?|auth(orization)?)($|_)`)
	noSecrets  = []string{"tls.key", "peer.gossip_keys", "http_token_file"} // names of files
	userOfURL  = regexp.MustCompile(`(://)[^/@\s"]*@`)
)

// value is format, without secrets if p is public.
func (p *printer) value(v reflect.Value, s *setting) string {
	switch {
	case !p.public || v.IsZero():
		return format(v)
	case secretName.MatchString(s.key) && !slices.Contains(noSecrets, s.path):
		return `"(removed)"`
	}
	return userOfURL.ReplaceAllString(format(v), "${1}(removed)@")
}

func format(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case string:
		return quote(value)
	case hybrid.Kind:
		return quote(string(value))
	case []string:
		quoted := make([]string, len(value))
		for i, element := range value {
			quoted[i] = quote(element)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case *int:
		if value == nil {
			return "null"
		}
		return strconv.Itoa(*value)
	case []hybrid.Group:
		if value == nil {
			return "null"
		}
	case float64:
		return strconv.FormatFloat(value, 'f', -1, 64)
	case fmt.Stringer:
		return value.String()
	}
	switch v.Kind() {
	case reflect.Map:
		return "{}"
	case reflect.Slice:
		return "[]"
	}
	return fmt.Sprint(v.Interface())
}

// quote returns s as a YAML scalar that is a string: as it is where that is
// plain enough, else in double quotes. Go's escapes are YAML's, too.
func quote(s string) string {
	plain := s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '/' || r == '.' || r == '-')
	}) < 0 && s[0] != '-' && s[0] != '.'
	if plain {
		n := yaml.Node{Kind: yaml.ScalarNode, Value: s}
		plain = n.ShortTag() == "!!str"
	}
	if plain {
		return s
	}
	return strconv.Quote(s)
}
