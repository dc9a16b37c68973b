package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/big"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// envPrefix begins every variable of ours.
const envPrefix = "KVFS_"

// Variables that name the file and hold the inline JSON.
const (
	envFile   = "KVFS_CONFIG"
	envInline = "KVFS_CONFIG_JSON"
)

// foreign are variables with our prefix that are not settings, with what they are for. A name that ends in * is a prefix.
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

// environment splits "NAME=value" strings. The last of several wins. Values are trimmed, and empty ones left out.
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

// overlayEnv sets what the environment says and refuses unknown variables with our prefix.
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
		case strings.HasPrefix(name, envPrefix) && !isForeign(name):
			l.fail(o, "", unknownName("variable", name, names))
		}
	}
}

// setEnv is setText, except that it keeps a setting that a file gives and the environment must not override.
func (l *loader) setEnv(t *textSetting, o Origin, texts []string) {
	if from := l.cfg.Origin(t.path).Source; t.weak && (from == File || from == InlineJSON) {
		return
	}
	l.setText(t, o, texts)
}

// isForeign reports whether a variable with our prefix is no setting and yet fine.
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

// setText sets a setting from the texts of one origin: one for a scalar, any number for a list, of which each section is
// "key=value,key=value".
func (l *loader) setText(t *textSetting, o Origin, texts []string) {
	n := textNode(texts[len(texts)-1])
	if t.repeated() {
		if _, given := normalizeStringOverride(texts[0]); !given && len(texts) == 1 {
			return
		}
		n = &yaml.Node{Kind: yaml.SequenceNode}
		for i, text := range texts {
			element := textNode(text)
			if t.shape == list {
				element = &yaml.Node{Kind: yaml.MappingNode}
				if err := addPairs(element, text, t.typeName()); err != nil {
					l.fail(o, fmt.Sprintf("%s[%d]", t.path, i), err)
					return
				}
			}
			n.Content = append(n.Content, element)
		}
	}
	l.textDocument(o).setting(reflect.ValueOf(l.cfg).Elem().FieldByIndex(t.at), n, t.setting, t.path)
}

// textDocument is a document of what a variable or a flag says.
func (l *loader) textDocument(o Origin) document {
	return document{loader: l, source: o.Source, name: o.Name, text: true}
}

func textNode(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// addPairs adds the keys of "key=value,key=value" to a mapping. A dot is between the keys of a section. want is what an
// error wants.
func addPairs(root *yaml.Node, text, want string) error {
	sections := map[string]*yaml.Node{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if key = strings.TrimSpace(key); !ok {
			return scalar.Violate(scalar.ErrSyntax, "%q is not key=value: want %s", part, want)
		}
		in := root
		if section, below, nested := strings.Cut(key, "."); nested {
			if in = sections[section]; in == nil {
				in = &yaml.Node{Kind: yaml.MappingNode}
				sections[section] = in
				root.Content = append(root.Content, textNode(section), in)
			}
			key = below
		}
		in.Content = append(in.Content, textNode(key), textNode(strings.TrimSpace(value)))
	}
	return nil
}

// Flags that name the file and hold the inline JSON.
const (
	flagFile   = "config"
	flagInline = "config-json"
)

// AddFlags defines a flag for every setting that text can reach, and --config, --config-json and --help-all. The flags hold
// text: Load parses it, so that all violations come at once. FlagUsages shows them.
func AddFlags(fs *pflag.FlagSet) {
	fs.String(flagFile, "", "configuration `FILE`, YAML or JSON (env "+envFile+")")
	fs.String(flagInline, "", "configuration as inline `JSON`, over the file (env "+envInline+")")
	fs.StringArray(flagObject, nil, "add a tier on object storage: `url=s3://BUCKET/PREFIX[,endpoint=URL,...]`, with keys of the type object (env "+envObject+")")
	for _, t := range textSettings() {
		f := fs.VarPF(&flagText{setting: t.setting}, t.flag(), "", strings.TrimSuffix(strings.SplitN(t.help, ". ", 2)[0], ".")) // the first sentence
		f.DefValue, f.Annotations = cmp.Or(t.auto, t.def), map[string][]string{"values": t.enum}                                // for cmd/kvfs/complete
		if t.typ.Kind() == reflect.Bool {
			f.NoOptDefVal = "true"
		}
	}
	fs.BoolFunc(flagHelpAll, "help with all settings", func(text string) error { return fs.Set("help", text) })
}

// flagText is the pflag.Value of every setting: the texts as they were given.
type flagText struct {
	setting *setting
	texts   []string
}

var _ pflag.Value = (*flagText)(nil)

// String returns the texts, with commas.
func (f *flagText) String() string { return strings.Join(f.texts, ",") }

// Set keeps the text. Of a scalar the last one counts; a list of strings is also cut at commas.
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

// overlayFlags sets what the flags say that were set. Flags that AddFlags did not define are not ours.
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
}

// flagTexts returns the texts of a flag that may be repeated.
func flagTexts(fs *pflag.FlagSet, name string) []string {
	if fs == nil || !fs.Changed(name) {
		return nil
	}
	texts, _ := fs.GetStringArray(name)
	return texts
}

// flagString returns the trimmed text of a flag, "" if there is none.
func flagString(fs *pflag.FlagSet, name string) string {
	if fs == nil {
		return ""
	}
	text, _ := fs.GetString(name)
	return strings.TrimSpace(text)
}

// alias is a further variable for a setting, mostly one of Mooncake or of an engine that has a setting with the same
// meaning. It counts as the setting's own variable, which wins over it.
type alias struct {
	name    string
	path    string                            // the setting
	part    string                            // of disk.dirs: which part of its one directory; else empty
	form    func(text string) (string, error) // from the form of the other program to ours; nil if they are the same
	lenient bool                              // a value that form refuses is a warning
	remarks string
}

// The parts of a directory that aliases of disk.dirs give, and the switch that turns it on.
const (
	partEnabled = "enabled"
	partPath    = "path"
	partSize    = "size"
)

// aliases are tried in order: of those for one setting the first that is given counts.
//
// Source of names and forms: vllm/envs.py, and MooncakeConfig of Mooncake and SGLang.
var aliases = []alias{
	{name: "KVFS_TIER_LOG", path: "log.tier_summary", remarks: "The short name of the setting."},
	{name: "VLLM_MOONCAKE_STORE_TIER_LOG", path: "log.tier_summary", form: aliasBool},
	{name: "VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO", path: "staging.usable_ratio"},
	{name: "MOONCAKE_GLOBAL_SEGMENT_SIZE", path: "memory.size", form: aliasSize,
		remarks: "In Mooncake the memory of one rank, here all memory of the mount: with several ranks give the sum. Zero, for ranks without memory, needs mode standalone-store."},
	{name: "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", path: "staging.size", form: aliasSize},
	{name: "MOONCAKE_LOCAL_BUFFER_SIZE", path: "staging.size", form: aliasSize,
		remarks: "kvfs needs far less than Mooncake, because large blocks go through it in pieces."},
	{name: "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", path: "node_name", form: aliasNode, lenient: true,
		remarks: "kvfs cuts off a port. It ignores an IPv6 address, which is no name."},
	{name: "MOONCAKE_PREFERRED_SEGMENT", path: "preferred_segment", remarks: "Files and inline JSON win over it. Ignored without bind."},
	{name: "MOONCAKE_PROTOCOL", path: "peer.transport", form: aliasTransport, lenient: true,
		remarks: "tcp is tcp; rdma and efa are auto, which needs no such card to start. Other values are ignored. Without bind all values are ignored."},
	{name: "MOONCAKE_DEVICE", path: "rdma.devices", form: aliasDevices, lenient: true,
		remarks: "Names of cards, with commas. A topology in JSON is ignored. Without bind all values are ignored."},
	{name: "KVFS_SSD_ENABLED", path: diskDirs, part: partEnabled, form: strictBool, remarks: "The SSD tier as one directory, instead of KVFS_DISK. On: it needs a path and a size; without them it has no effect, and other sources count. Off: it wins over files, and flags win over it."},
	{name: "MOONCAKE_ENABLE_SSD_OFFLOAD", path: diskDirs, part: partEnabled, form: aliasBool},
	{name: "MOONCAKE_ENABLE_OFFLOAD", path: diskDirs, part: partEnabled, form: aliasBool},
	{name: "MOONCAKE_OFFLOAD_ENABLED", path: diskDirs, part: partEnabled, form: aliasBool},
	{name: "KVFS_SSD_PATH", path: diskDirs, part: partPath},
	{name: "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", path: diskDirs, part: partPath, remarks: "Give a directory that Mooncake does not use itself."},
	{name: "KVFS_SSD_SIZE", path: diskDirs, part: partSize},
	{name: "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", path: diskDirs, part: partSize, form: aliasSize, remarks: "It must be given: there is no default here."},
}

// diskDirs is the setting that several aliases together stand for.
const diskDirs = "disk.dirs"

// unmatched are variables of Mooncake that nothing here corresponds to, with what to
// set instead. They are a warning, and never an error.
var unmatched = []struct{ name, instead string }{
	{"MOONCAKE_MASTER", "there is no master: peers find each other; set KVFS_BIND and KVFS_JOIN"},
	{"MOONCAKE_MASTER_METRICS_URL", "there is no master; set KVFS_HTTP for metrics of this mount"},
	{"MOONCAKE_TE_META_DATA_SERVER", "there is no metadata server: peers find each other; set KVFS_BIND and KVFS_JOIN"},
	{"MOONCAKE_LOCAL_HOSTNAME", "set KVFS_NODE_NAME, and KVFS_ADVERTISE for the address"},
	{"MOONCAKE_CONFIG_PATH", "that file is not read; set KVFS_CONFIG to one of kvfs"},
	{"MOONCAKE_STANDALONE_STORAGE", "set KVFS_MODE to standalone-store"},
	{"MOONCAKE_CLIENT", "set KVFS_STORE_SOCKET to the socket of the owner"},
	{"MOONCAKE_BUCKET_EVICTION_POLICY", "set KVFS_DISK_POLICY"},
	{"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "set KVFS_DISK_POLICY"},
	{"MOONCAKE_USE_URING", "set KVFS_DIRECTIO_ENGINE"},
	{"MOONCAKE_OFFLOAD_USE_URING", "set KVFS_DIRECTIO_ENGINE"},
}

func strictBool(text string) (string, error) {
	if _, ok := textBools[text]; !ok {
		return "", scalar.Violate(scalar.ErrType, "%q is not a boolean: want one of 1, 0, true, false, yes, no, on, off", text)
	}
	return text, nil
}

// aliasBool takes the same words in capitals, too: True is how Python writes them.
func aliasBool(text string) (string, error) { return strictBool(strings.ToLower(text)) }

// aliasUnits are the units of sizes in Mooncake and vLLM, in small letters. Those of 1000 are ours alone.
var aliasUnits = map[string]scalar.Size{
	"": 1, "b": 1, "k": scalar.KiB, "kb": scalar.KiB, "kib": scalar.KiB, "m": scalar.MiB, "mb": scalar.MiB, "mib": scalar.MiB,
	"g": scalar.GiB, "gb": scalar.GiB, "gib": scalar.GiB, "t": scalar.TiB, "tb": scalar.TiB, "tib": scalar.TiB,
}

// aliasSize reads sizes as Mooncake and vLLM do: a bare number is bytes, 4gb and 4 GB
// are 4GiB, and a part of a byte is cut off.
func aliasSize(text string) (string, error) {
	number, unit := scalar.SplitNumber(strings.ToLower(text))
	if strings.HasPrefix(number, "-") {
		return "", scalar.Violate(scalar.ErrRange, "%q is negative", text)
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok || len(number) > scalar.MaxNumber {
		return "", scalar.Violate(scalar.ErrType, "%q is not a size: want bytes, or a number and a unit, such as 4gb", text)
	}
	factor, ok := aliasUnits[unit]
	if !ok {
		return "", scalar.Violate(scalar.ErrUnit, "%q has the unknown unit %q; one of b, kb, mb, gb, tb", text, unit)
	}
	value.Mul(value, new(big.Rat).SetInt64(int64(factor)))
	bytes := new(big.Int).Quo(value.Num(), value.Denom())
	if !bytes.IsInt64() {
		return "", scalar.Violate(scalar.ErrRange, "%q is more than %d bytes", text, int64(math.MaxInt64))
	}
	return bytes.String() + "B", nil
}

// aliasNode makes the name of a peer from what may be host:port, as the port is one of Mooncake.
func aliasNode(text string) (string, error) {
	host := text
	if h, _, err := net.SplitHostPort(text); err == nil {
		host = h
	}
	return host, scalar.CheckName(host)
}

// overlayAliases sets the values of the aliases in the environment.
func (l *loader) overlayAliases() {
	taken := make(map[string]bool)
	for _, a := range aliases {
		value, given := l.env[a.name]
		t := lookup(a.path)
		if _, own := l.env[t.env()]; !given || own || taken[a.path] || a.part != "" {
			continue
		}
		taken[a.path] = true
		o := Origin{Source: Env, Name: a.name}
		if text, err := a.text(value); err == nil {
			texts := []string{text}
			if t.repeated() {
				texts = strings.Split(text, t.sep)
			}
			l.setEnv(t, o, texts)
		} else if !a.lenient {
			l.fail(o, a.path, err)
		}
	}
	l.overlaySSD()
}

// text returns the value of an alias in the form of the setting.
func (a alias) text(value string) (string, error) {
	if a.form == nil {
		return value, nil
	}
	return a.form(value)
}

// aliasOf returns the alias for a part of disk.dirs that is given and counts, and its value.
func (l *loader) aliasOf(part string) (a alias, value string, given bool) {
	for _, a := range aliases {
		if value, given := l.env[a.name]; given && a.part == part {
			return a, value, true
		}
	}
	return alias{}, "", false
}

// aliasesOf lists the names of the aliases for a part of disk.dirs.
func aliasesOf(part string) string {
	var names []string
	for _, a := range aliases {
		if a.part == part {
			names = append(names, a.name)
		}
	}
	return strings.Join(names, " or ")
}

// overlaySSD makes the directory that aliases describe together, if one of them turns it on and none of its parts is
// missing; see validateSSD for the rest. If one turns it off, what files say does not count. Source: D4 of Mooncake's setup,
// which gives a path only to a store whose offloading is on.
func (l *loader) overlaySSD() {
	dirs := lookup(diskDirs)
	if _, own := l.env[dirs.env()]; own {
		return
	}
	a, _, given := l.aliasOf(partEnabled)
	switch wanted := l.wantsSSD(); {
	case given && !wanted && l.good(diskDirs) && len(l.cfg.Disk.Dirs) > 0:
		l.clear(diskDirs)
		l.cfg.Disk.Dirs, l.cfg.origins[diskDirs] = nil, Origin{Source: Env, Name: a.name}
		return
	case !wanted || len(l.missingSSD()) > 0:
		return
	}
	l.clear(diskDirs)
	out := reflect.MakeSlice(dirs.typ, 1, 1)
	for _, child := range dirs.settings {
		a, value, _ := l.aliasOf(child.key)
		o, at := Origin{Source: Env, Name: a.name}, diskDirs+"[0]"
		text, err := a.text(value)
		if err == nil {
			err = child.setText(out.Index(0).Field(child.index), text)
		}
		if err != nil {
			l.fail(o, join(at, child.key), err)
		}
		if child.key == partPath {
			l.cfg.origins[diskDirs], l.cfg.origins[at] = o, o
		}
		l.cfg.origins[join(at, child.key)] = o
	}
	reflect.ValueOf(l.cfg).Elem().FieldByIndex(dirs.at).Set(out)
}

// wantsSSD reports whether an alias turns the SSD tier on. It is off by default.
func (l *loader) wantsSSD() bool {
	a, value, given := l.aliasOf(partEnabled)
	if !given {
		return false
	}
	text, err := a.text(value)
	if err != nil {
		l.fail(Origin{Source: Env, Name: a.name}, diskDirs, err)
	}
	return textBools[text]
}

// missingSSD lists what else the aliases would have to say, each part with its names.
func (l *loader) missingSSD() []string {
	var missing []string
	for _, part := range []string{partPath, partSize} {
		if _, _, given := l.aliasOf(part); !given {
			missing = append(missing, fmt.Sprintf("a %s (%s)", part, aliasesOf(part)))
		}
	}
	return missing
}

// validateSSD refuses an SSD tier that is turned on without a directory, so that nobody believes it works.
func (l *loader) validateSSD() {
	a, _, given := l.aliasOf(partEnabled)
	if !given || !l.good(diskDirs) || len(l.cfg.Disk.Dirs) > 0 || !l.wantsSSD() {
		return
	}
	l.fail(Origin{Source: Env, Name: a.name}, diskDirs, scalar.Violate(scalar.ErrInvalid, "the SSD tier is on, and needs %s, or %s=path=DIR,size=SIZE",
		strings.Join(l.missingSSD(), " and "), lookup(diskDirs).env()))
}

// warnings reports the effect of each variable of another program, after all sources are read.
func (l *loader) warnings() []string {
	var lines []string
	say := func(name, format string, args ...any) {
		lines = append(lines, Origin{Source: Env, Name: name}.String()+": "+fmt.Sprintf(format, args...))
	}
	for _, a := range aliases {
		if _, given := l.env[a.name]; !given {
			continue
		}
		why, used := l.ignored(a)
		switch t := lookup(a.path); {
		case !used:
			say(a.name, "ignored: %s", why)
		case !strings.HasPrefix(a.name, envPrefix):
			say(a.name, "taken for %s: %s; %s is its name here", a.path, why, a.ownName(t))
		}
	}
	for _, s := range unmatched {
		if _, given := l.env[s.name]; given {
			say(s.name, "ignored: %s", s.instead)
		}
	}
	return lines
}

// ownName returns our variable with the meaning of an alias.
func (a alias) ownName(t *textSetting) string {
	if a.part != "" {
		return envPrefix + "SSD_" + strings.ToUpper(a.part)
	}
	return t.env()
}

// ignored reports whether an alias took effect, and its value, else why it did not.
func (l *loader) ignored(a alias) (why string, used bool) {
	o := l.cfg.Origin(a.path)
	counts := o.Source == Env && slices.ContainsFunc(aliases, func(b alias) bool { return b.name == o.Name })
	switch {
	case a.part != "":
		return l.ignoredSSD(a, o, counts)
	case counts && o.Name == a.name:
		return format(reflect.ValueOf(l.cfg).Elem().FieldByIndex(lookup(a.path).at)), true
	case o.Source != Default:
		return fmt.Sprintf("%s comes from %v", a.path, o), false
	}
	if _, err := a.text(l.env[a.name]); err != nil {
		return fmt.Sprintf("%v; set %s", err, a.ownName(lookup(a.path))), false
	}
	return "without bind there are no peers", false
}

// ignoredSSD is ignored for the aliases of disk.dirs. counts says that they made it.
func (l *loader) ignoredSSD(a alias, o Origin, counts bool) (why string, used bool) {
	switch first, _, _ := l.aliasOf(a.part); {
	case first.name != a.name:
		return fmt.Sprintf("%s is set", first.name), false
	case counts && len(l.cfg.Disk.Dirs) == 0 && a.part != partEnabled:
		return fmt.Sprintf("the SSD tier is off: %v", o), false
	case counts:
		return fmt.Sprintf("%s %s", a.part, l.env[a.name]), true
	case o.Source != Default:
		return fmt.Sprintf("%s comes from %v", diskDirs, o), false
	}
	missing := l.missingSSD()
	if a.part == partEnabled {
		return "the SSD tier is off, as by default", false
	}
	missing = slices.Insert(missing, 0, fmt.Sprintf("to be turned on (%s)", aliasesOf(partEnabled)))
	return "the SSD tier needs " + strings.Join(missing, " and "), false
}
