package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/spf13/pflag"
)

// envPrefix begins every variable of ours.
const envPrefix = "KVFS_"

// Variables that name the file and hold the inline JSON.
const (
	envFile   = "KVFS_CONFIG"
	envInline = "KVFS_CONFIG_JSON"
)

// foreign are variables with our prefix that are not settings, with what they
// are for. A name that ends in * is a prefix.
var foreign = []struct{ name, help string }{
	{envFile, "the configuration file, as --config"},
	{envInline, "inline JSON, as --config-json"},
	{envObject, "a tier on object storage, as --object"},
	{"KVFS_MOUNT", "the mount point, for programs that kvfs starts and for scripts"},
	{"KVFS_SOCKET", "the socket of the owner, for programs that kvfs starts; the setting is KVFS_STORE_SOCKET"},
	{"KVFS_BIN", "the kvfs binary, for scripts and tests"},
	{"KVFS_LIBFABRIC", "libfabric.so.1, where it is not found by itself"},
	{"KVFS_VECTORS", "where test vectors are, for tests"},
	{"KVFS_TEST_*", "tests"},
}

// kubernetes matches the variables that Kubernetes gives to every pod for a
// service whose name begins with kvfs: KVFS_SERVICE_HOST, KVFS_PORT_80_TCP_ADDR.
var kubernetes = regexp.MustCompile(`^KVFS(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// environment splits "NAME=value" strings. The last of several wins. Values are
// trimmed, and empty ones left out.
func environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if value, given := normalizeStringOverride(value); given {
			env[name] = value
		} else {
			delete(env, name)
		}
	}
	return env
}

// overlayEnv sets what the environment says and refuses unknown variables with
// our prefix.
func (l *loader) overlayEnv() {
	known := make(map[string]*textSetting)
	names := []string{}
	for _, t := range textSettings() {
		known[t.env()] = t
		names = append(names, t.env())
	}
	l.overlayAliases()
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		o := Origin{Source: Env, Name: name}
		switch t := known[name]; {
		case t != nil && t.repeated():
			l.setEnv(t, o, strings.Split(l.env[name], t.sep))
		case t != nil:
			l.setEnv(t, o, []string{l.env[name]})
		case slices.ContainsFunc(retired, func(s *setting) bool { return s.env() == name && l.noteRetired(s.path, o) }):
		case strings.HasPrefix(name, envPrefix) && !isForeign(name):
			l.fail(o, "", unknownName("variable", name, names))
		}
	}
}

// setEnv is setText, except that it keeps a setting that a file gives and the environment must
// not override.
func (l *loader) setEnv(t *textSetting, o Origin, texts []string) {
	if from := l.cfg.Origin(t.path).Source; t.weak && (from == File || from == InlineJSON) {
		return
	}
	l.setText(t, o, texts)
}

// isForeign reports whether a variable with our prefix is no setting and yet
// fine.
func isForeign(name string) bool {
	for _, f := range foreign {
		if prefix, ok := strings.CutSuffix(f.name, "*"); name == f.name || ok && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.ContainsFunc(aliases, func(a alias) bool { return a.name == name }) ||
		kubernetes.MatchString(name)
}

// unknownName is the violation for a variable or flag that does not exist.
func unknownName(what, name string, names []string) error {
	if near := Suggest(name, names); near != "" {
		return scalar.Violate(scalar.ErrUnknown, "unknown %s %q; did you mean %q?", what, name, near)
	}
	return scalar.Violate(scalar.ErrUnknown, "unknown %s %q", what, name)
}

// setText sets a setting from the texts of one origin: one for a scalar, any
// number for a list.
func (l *loader) setText(t *textSetting, o Origin, texts []string) {
	v := reflect.ValueOf(l.cfg).Elem().FieldByIndex(t.at)
	switch {
	case t.shape == list:
		l.setSections(v, t.setting, o, texts)
	case t.repeated():
		l.setStrings(v, t.setting, o, texts)
	default:
		text, given := normalizeStringOverride(texts[len(texts)-1])
		if !given {
			return
		}
		if err := t.setText(v, text); err != nil {
			l.fail(o, t.path, err)
			return
		}
		l.cfg.origins[t.path] = o
	}
}

// setStrings replaces a list of strings.
func (l *loader) setStrings(v reflect.Value, s *setting, o Origin, texts []string) {
	out := make([]string, len(texts))
	for i, text := range texts {
		text, given := normalizeStringOverride(text)
		switch {
		case !given && len(texts) == 1:
			return
		case !given:
			l.fail(o, s.path, s.emptyElement(i, texts))
			return
		}
		if err := s.setString(&out[i], text); err != nil {
			l.fail(o, s.path, err)
			return
		}
	}
	v.Set(reflect.ValueOf(out))
	l.cfg.origins[s.path] = o
}

// emptyElement is the violation of element i of a list, which is empty.
func (s *setting) emptyElement(i int, texts []string) error {
	if s.empty != "" {
		return scalar.Violate(scalar.ErrInvalid, "%q %s", strings.Join(texts, s.sep), s.empty)
	}
	return scalar.Violate(scalar.ErrInvalid, "element %d is empty", i)
}

// setSections replaces a list of sections, each given as "key=value,key=value".
func (l *loader) setSections(v reflect.Value, s *setting, o Origin, texts []string) {
	if _, given := normalizeStringOverride(strings.Join(texts, "")); !given {
		return
	}
	l.clear(s.path)
	out := reflect.MakeSlice(s.typ, len(texts), len(texts))
	for i, text := range texts {
		at := fmt.Sprintf("%s[%d]", s.path, i)
		setDefaults(out.Index(i), s.settings)
		l.cfg.origins[at] = o
		l.setSection(out.Index(i), s, at, o, text)
		if !l.bad[at] {
			l.required(out.Index(i), s, at, o)
		}
	}
	v.Set(out)
	l.cfg.origins[s.path] = o
}

// setSection sets one section of a list from "key=value,key=value".
func (l *loader) setSection(v reflect.Value, s *setting, path string, o Origin, text string) {
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		key = strings.TrimSpace(key)
		child := s.find(key)
		switch {
		case !ok:
			l.fail(o, path, scalar.Violate(scalar.ErrSyntax, "%q is not key=value: want %s", part, s.typeName()))
			continue
		case child == nil:
			l.fail(o, path, unknownKey(key, s, s.path+"[]"))
			continue
		case seen[key]:
			l.fail(o, path, scalar.Violate(scalar.ErrDuplicate, "duplicate key %q", key))
			continue
		}
		seen[key] = true
		at := join(path, key)
		if value, given := normalizeStringOverride(value); given {
			if err := child.setText(v.Field(child.index), value); err != nil {
				l.fail(o, at, err)
				continue
			}
			l.cfg.origins[at] = o
		}
	}
}

// Flags that name the file and hold the inline JSON.
const (
	flagFile   = "config"
	flagInline = "config-json"
)

// AddFlags defines a flag for every setting that text can reach, and --config,
// --config-json and --help-all. The flags hold text: Load parses it, so that all
// violations come at once. FlagUsages shows them.
func AddFlags(fs *pflag.FlagSet) {
	fs.String(flagFile, "", "configuration `FILE`, YAML or JSON (env "+envFile+")")
	fs.String(flagInline, "", "configuration as inline `JSON`, over the file (env "+envInline+")")
	fs.StringArray(flagObject, nil, "add a tier on object storage: `url=s3://BUCKET/PREFIX[,endpoint=URL,...]`, with keys of the type object (env "+envObject+")")
	for _, t := range textSettings() {
		f := fs.VarPF(&flagText{setting: t.setting}, t.flag(), "", firstSentence(t.help))
		f.DefValue, f.Annotations = cmp.Or(t.auto, t.def), map[string][]string{"values": t.enum} // for cmd/kvfs/complete
		if t.typ.Kind() == reflect.Bool {
			f.NoOptDefVal = "true"
		}
	}
	for _, s := range retired {
		fs.String(s.flag(), s.def, s.help)
		fs.Lookup(s.flag()).Hidden = true
	}
	fs.BoolFunc(flagHelpAll, "help with all settings", func(text string) error { return fs.Set("help", text) })
}

// firstSentence returns help up to its first full stop, without it.
func firstSentence(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(first, ".")
}

// flagText is the pflag.Value of every setting: the texts as they were given.
type flagText struct {
	setting *setting
	texts   []string
}

var _ pflag.Value = (*flagText)(nil)

// String returns the texts, with commas.
func (f *flagText) String() string { return strings.Join(f.texts, ",") }

// Set keeps the text. Of a scalar the last one counts; a list of strings is
// also cut at commas.
func (f *flagText) Set(text string) error {
	switch {
	case !f.setting.repeated():
		f.texts = []string{text}
	case f.setting.shape == list:
		f.texts = append(f.texts, text)
	default:
		f.texts = append(f.texts, strings.Split(text, f.setting.sep)...)
	}
	return nil
}

// Type returns the type as help shows it.
func (f *flagText) Type() string {
	if f.setting.repeated() && f.setting.shape == leaf {
		return "string,..."
	}
	return f.setting.typeName()
}

// overlayFlags sets what the flags say that were set. Flags that AddFlags did
// not define are not ours.
func (l *loader) overlayFlags(fs *pflag.FlagSet) {
	for _, t := range textSettings() {
		f := fs.Lookup(t.flag())
		if f == nil || !f.Changed {
			continue
		}
		if text, ok := f.Value.(*flagText); ok {
			l.setText(t, Origin{Source: Flag, Name: f.Name}, text.texts)
		}
	}
	for _, s := range retired {
		if f := fs.Lookup(s.flag()); f != nil && f.Changed {
			l.noteRetired(s.path, Origin{Source: Flag, Name: f.Name})
		}
	}
}

// flagTexts returns the texts of a flag that may be repeated.
func flagTexts(fs *pflag.FlagSet, name string) []string {
	if fs == nil || !fs.Changed(name) {
		return nil
	}
	texts, _ := fs.GetStringArray(name)
	return texts
}

// flagString returns the trimmed text of a flag that was set, or "".
func flagString(fs *pflag.FlagSet, name string) string {
	if fs == nil {
		return ""
	}
	if f := fs.Lookup(name); f != nil && f.Changed {
		return strings.TrimSpace(f.Value.String())
	}
	return ""
}
