package config

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"go.yaml.in/yaml/v3"
)

// normalizeStringOverride trims s. A value that is empty then counts as not
// given, wherever text comes from: a file, a variable or a flag.
func normalizeStringOverride(s string) (value string, given bool) {
	value = strings.TrimSpace(s)
	return value, value != ""
}

// kind is what is known of a type of scalars.
type kind struct {
	name string   // in help and reference
	want string   // what a file must hold
	tags []string // the types of YAML that a file may have
	set  func(s *setting, v reflect.Value, text string) error
}

var stringKind = kind{"string", "a string: put it in quotes", []string{"!!str"}, func(s *setting, v reflect.Value, text string) error {
	return s.setString(v, text)
}}

// kinds are the types of scalars. Sizes and durations may be numbers too, so that their parser can say what is wrong with them.
var kinds = map[reflect.Type]kind{
	reflect.TypeFor[string]():          stringKind,
	reflect.TypeFor[hybrid.Kind]():     stringKind,
	reflect.TypeFor[bool]():            {"bool", "a boolean: write true or false, without quotes", []string{"!!bool"}, setBool},
	reflect.TypeFor[int]():             {"integer", "an integer: write it without quotes", []string{"!!int"}, parsed(parseInt)},
	reflect.TypeFor[float64]():         {"number", "a number: write it without quotes", []string{"!!int", "!!float"}, parsed(parseFloat)},
	reflect.TypeFor[scalar.Size]():     {"size", "a size, such as 4GiB", []string{"!!str", "!!int", "!!float"}, setSize},
	reflect.TypeFor[scalar.Duration](): {"duration", "a duration, such as 30s", []string{"!!str", "!!int", "!!float"}, parsed(scalar.ParseDuration)},
}

// kind returns that of the scalar, which may be absent, or of the elements of a list.
func (s *setting) kind() kind {
	if s.repeated() || s.typ.Kind() == reflect.Pointer {
		return kinds[s.typ.Elem()]
	}
	return kinds[s.typ]
}

// setText sets v, a scalar, from non-empty text, and checks it.
func (s *setting) setText(v reflect.Value, text string) error {
	if v.Kind() != reflect.Pointer {
		return kinds[v.Type()].set(s, v, text)
	}
	n := reflect.New(v.Type().Elem())
	if err := s.setText(n.Elem(), text); err != nil {
		return err
	}
	v.Set(n)
	return nil
}

func setBool(_ *setting, v reflect.Value, text string) error {
	text, err := strictBool(text)
	v.SetBool(textBools[text])
	return err
}

// setSize sets a size that must be a multiple of the unit.
func setSize(s *setting, v reflect.Value, text string) error {
	n, err := scalar.ParseSize(text)
	if err != nil {
		return err
	}
	if unit := s.unit(); n%unit != 0 {
		return scalar.Violate(scalar.ErrRange, "%v is out of range: want %s", n, s.bounds())
	}
	return setBounded(s, v, n, scalar.ParseSize)
}

// textBools are the booleans of the environment and of flags; files know only true and false.
var textBools = map[string]bool{
	"1": true, "true": true, "yes": true, "on": true,
	"0": false, "false": false, "no": false, "off": false,
}

// setString sets a string that must be one of the values of an enum or pass the named check.
func (s *setting) setString(v reflect.Value, text string) error {
	if s.enum != nil && !slices.Contains(s.enum, text) {
		return scalar.Violate(scalar.ErrEnum, "unknown value %q; one of %s", text, strings.Join(s.enum, ", "))
	}
	if s.check != "" {
		if err := checks[s.check](text); err != nil {
			return err
		}
	}
	v.SetString(text)
	return nil
}

// parsed sets a value to what parse makes of text, if that is in the bounds of the setting.
func parsed[T int | float64 | scalar.Size | scalar.Duration](parse func(string) (T, error)) func(*setting, reflect.Value, string) error {
	return func(s *setting, to reflect.Value, text string) error {
		v, err := parse(text)
		if err != nil {
			return err
		}
		return setBounded(s, to, v, parse)
	}
}

// setBounded sets a value to v if v is in the bounds of s. NaN never is.
func setBounded[T int | float64 | scalar.Size | scalar.Duration](s *setting, to reflect.Value, v T, parse func(string) (T, error)) error {
	within := func(bound string, ok func(limit T) bool) bool {
		if bound == "" {
			return true
		}
		limit, err := parse(bound)
		if err != nil {
			panic("config: bad bound in the tag of " + s.path)
		}
		return ok(limit)
	}
	if !within(s.min, func(l T) bool { return v >= l }) ||
		!within(s.max, func(l T) bool { return v <= l }) ||
		!within(s.above, func(l T) bool { return v > l }) ||
		!within(s.below, func(l T) bool { return v < l }) || v != v {
		return scalar.Violate(scalar.ErrRange, "%v is out of range: want %s", v, s.bounds())
	}
	to.Set(reflect.ValueOf(v))
	return nil
}

// unit returns the size of which a setting must be a multiple.
func (s *setting) unit() scalar.Size {
	if s.multiple == "" {
		return 1
	}
	unit, err := scalar.ParseSize(s.multiple)
	if err != nil || unit == 0 {
		panic("config: bad multiple in the tag of " + s.path)
	}
	return unit
}

// bounds returns the range in words, "" if there is none.
func (s *setting) bounds() string {
	limits := s.limits()
	switch {
	case s.multiple == "":
		return limits
	case limits == "":
		return "a multiple of " + s.multiple
	}
	return limits + ", a multiple of " + s.multiple
}

// limits returns the least and the largest value in words.
func (s *setting) limits() string {
	switch {
	case s.above != "" && s.max != "":
		return "above " + s.above + ", at most " + s.max
	case s.min != "" && s.below != "":
		return "at least " + s.min + ", below " + s.below
	case s.min != "" && s.max != "":
		return s.min + " to " + s.max
	case s.min != "":
		return "at least " + s.min
	case s.max != "":
		return "at most " + s.max
	case s.above != "":
		return "above " + s.above
	}
	return ""
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, scalar.Violate(scalar.ErrType, "%q is not an integer", s)
	}
	return n, nil
}

func parseFloat(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, scalar.Violate(scalar.ErrType, "%q is not a number", s)
	}
	return f, nil
}

// setScalar sets v from a scalar of a file, or of a text that has no types. given is false
// if the scalar is null or empty, which counts as absent.
func (s *setting) setScalar(v reflect.Value, n *yaml.Node, untyped bool) (given bool, err error) {
	text, given := normalizeStringOverride(n.Value)
	if untyped {
		if given {
			err = s.setText(v, text)
		}
		return given, err
	}
	tag := n.ShortTag()
	if tag == "!!null" || !given && tag == "!!str" {
		return false, nil
	}
	if !slices.Contains(s.kind().tags, tag) {
		return false, scalar.Violate(scalar.ErrType, "%s is not %s", describe(n), s.want())
	}
	if v.Kind() == reflect.Bool {
		text = strings.ToLower(text) // YAML has true, True and TRUE
	}
	return true, s.setText(v, text)
}

func (s *setting) want() string {
	if s.enum != nil {
		return "one of " + strings.Join(s.enum, ", ")
	}
	return s.kind().want
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a sequence"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str":
		return fmt.Sprintf("the string %q", n.Value)
	case "!!bool":
		return "the boolean " + n.Value
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!null":
		return "null"
	default:
		return fmt.Sprintf("%q, of type %s,", n.Value, strings.TrimPrefix(tag, "!!"))
	}
}

// checks are the named checks of strings.
var checks = map[string]func(string) error{
	"hostport":  checkHostPort,
	"pattern":   checkPattern,
	"url":       checkURL,
	"filename":  checkFilename,
	"fsname":    checkFSName,
	"listen":    scalar.CheckListen,
	"address":   scalar.CheckAddress,
	"name":      scalar.CheckName,
	"word":      scalar.CheckWord,
	"device":    checkDevice,
	"endpoint":  checkEndpoint,
	"socket":    checkSocket,
	"topic":     checkTopic,
	"component": invalid(hybrid.CheckGroupName),
	"template":  checkTemplate,
	"numa":      checkNUMA,
}

// numa matches the memory policies of tmpfs. Source: the option mpol of tmpfs(5).
var numa = regexp.MustCompile(`^(bind:[0-9]+([,-][0-9]+)*|prefer:[0-9]+|interleave(:[0-9]+([,-][0-9]+)*)?|local)$`)

func checkNUMA(s string) error {
	if !numa.MatchString(s) {
		return scalar.Violate(scalar.ErrInvalid, "%q is not a memory policy: want bind:NODES, prefer:NODE, interleave, interleave:NODES or local, such as bind:0 or interleave:0-3", s)
	}
	return nil
}

// checkHostPort wants "host:port" with a numeric port; the host may be empty, and IPv6 addresses stand in brackets.
func checkHostPort(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return scalar.Violate(scalar.ErrInvalid, "%q is not host:port, such as 127.0.0.1:9100 or [::1]:9100", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || port[0] == '+' {
		return scalar.Violate(scalar.ErrRange, "%q has the port %q: want 0 to 65535", s, port)
	}
	return nil
}

// checkURL wants the URL of an HTTP server, which may have a path.
func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return scalar.Violate(scalar.ErrInvalid, "%q is not http://host:port or https://host:port, with or without a path", s)
	}
	return nil
}

// checkPattern wants a pattern of path.Match for one name, or for a directory with a slash behind it.
func checkPattern(s string) error {
	name := strings.TrimSuffix(s, "/")
	if _, err := path.Match(name, ""); err != nil || name == "" || strings.Contains(name, "/") {
		return scalar.Violate(scalar.ErrInvalid, "%q is not a pattern for one name, such as *.tmp, or for a directory, such as tmp/", s)
	}
	return nil
}

func checkFilename(s string) error {
	if strings.HasSuffix(s, "/") {
		return scalar.Violate(scalar.ErrInvalid, "%q is not a pattern for one name, such as *.lock", s)
	}
	return checkPattern(s)
}

func checkSocket(s string) error {
	if !isSocket(s) {
		return scalar.Violate(scalar.ErrInvalid, "%q does not name a socket: want a clean path from the root of at most %d bytes, such as /run/kvfs/0/store.sock", s, maxSocket)
	}
	return nil
}

// checkFSName refuses what would break the mount options or mount tables.
func checkFSName(s string) error {
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r == ',' || r == '\\' || r == 0x7f }); i >= 0 {
		return scalar.Violate(scalar.ErrInvalid, "%q holds %q: want no white space, comma or backslash", s, s[i])
	}
	return nil
}

// sequenceOf returns what a sequence looks like that n may have been meant for.
func (s *setting) sequenceOf(n *yaml.Node) string {
	switch {
	case s.shape == list:
		return "[{" + strings.Join(s.keys(), ": ..., ") + ": ...}]"
	case n.Kind == yaml.ScalarNode:
		return "[" + n.Value + "]"
	}
	return "[..., ...]"
}
