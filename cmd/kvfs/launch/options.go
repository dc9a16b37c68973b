package launch

import (
	"regexp"
	"strings"
)

// option is one option of a command line.
type option struct {
	name  string // without dashes in front, with dashes for underscores, up to a dot
	value string // after =, or the next word unless that is an option
}

// parseOptions returns the long options among the arguments of an engine, up to
// --. Every word that looks like one counts: to add one option too few is a cache
// less, one too many may change what the engine does.
func parseOptions(args []string) []option {
	var found []option
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, isLong := strings.CutPrefix(arg, "--")
		if !isLong {
			continue
		}
		o := option{}
		name, value, inline := strings.Cut(name, "=")
		switch {
		case inline:
			o.value = value
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			o.value = args[i+1]
		}
		// vLLM and llama.cpp take underscores; --x.key is a part of vLLM's --x.
		name, _, _ = strings.Cut(name, ".")
		o.name = strings.ReplaceAll(name, "_", "-")
		found = append(found, o)
	}
	return found
}

// given returns the options of the command that are name, or, for engines that
// parse with argparse, an abbreviation of it. Those that are abbreviations of
// others, too, are refused by argparse itself.
func (b *builder) given(name string) []option {
	abbreviates := b.plan.Engine != LlamaCpp
	var found []option
	for _, o := range b.options {
		if o.name == name || abbreviates && o.name != "" && strings.HasPrefix(name, o.name) {
			found = append(found, o)
		}
	}
	return found
}

// last returns the value of an option that counts: that of the last one.
func (b *builder) last(name string) (value string, given bool) {
	found := b.given(name)
	if len(found) == 0 {
		return "", false
	}
	return found[len(found)-1].value, true
}

// mentions reports whether a YAML or JSON document has a key, written with
// dashes or underscores, at any depth.
func mentions(text []byte, key string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(key), "-", "[-_]")
	return regexp.MustCompile(`(?m)(^|[\s{,"'])` + pattern + `["']?\s*:`).Match(text)
}
