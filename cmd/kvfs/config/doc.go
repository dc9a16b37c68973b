// Package config is the configuration of the kvfs daemon: one struct, Config,
// and the strict loader that fills it.
//
// The struct is the only table. Names, flags, environment variables, defaults,
// ranges, the example file and the reference page all come from its field tags
// by reflection, so a new setting is one new field:
//
//	kvfs:"size"       the key in files; with the section's key it makes the path memory.size
//	help:"..."        what it means, in full sentences; the first one is the flag's help
//	default:"4GiB"    in the text form that a file would use; absent means the zero value
//	auto:"a quarter…" the default in words, where it is computed (see rationalize.go)
//	example:"64GiB"   a value for the documentation, in text form; of a table, a name; - in a list: none
//	enum:"a|b"        the values of a string, or of each element of a list
//	min, max          bounds in text form, inclusive
//	above, below      likewise, exclusive
//	multiple:"4KiB"   a size must be a multiple of this one
//	check:"hostport"  a named check of a string or of each element of a list (see checks)
//	name:"disk"       what the variable and the flag are called, if not as the path
//	empty:"contains…" what is wrong with a list of which an element is empty; else in general words
//	sep:";"           what separates the elements of a list in an environment variable; else ","
//	names:"group"     a named check of the names in a table (see tableNames)
//	short:"Peers"     the heading under which the short help shows its flag; absent means only --help-all does
//	case:"tests/x …"  why it is a setting and no constant, for the reference, where nobody has measured it
//	holds:"path"      the value is the path of a file or directory, or an endpoint that may be one (see Paths)
//	env:"weak"        the environment counts only where no file and no inline JSON says anything
//	files:"only"      neither a variable nor a flag
//	required:"true"   in a list of sections: the key must be given
//
// Field types are bool, string, int, *int (may be absent, which is not 0),
// float64, Size, Duration, []string, sections (structs), tables
// (map[string]struct, files only) and lists ([]struct). Tables may hold lists.
//
// # Sources
//
// From the lowest precedence to the highest: defaults, file (YAML or JSON),
// inline JSON, environment, flags. Names map mechanically: memory.size in files
// is KVFS_MEMORY_SIZE in the environment and --memory-size as a flag. Sections
// and tables merge key by key across sources; a list is replaced as a whole.
//
// Variables of Mooncake and of engines are aliases of ours, or say nothing to us; each
// one is a line in Config.Warnings, for the log. See aliases and unmatched.
//
// # Steps
//
// Load runs decode, overlay of the environment, overlay of the flags that were
// set, validate, rationalize, and says what became of aliases and what has no effect. Every violation of the
// first four is collected, and all are returned at once, each an *Error that knows its
// Origin.
package config
