package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// flagHelpAll shows the help with all settings; --help shows those that people use.
const flagHelpAll = "help-all"

// FlagUsages returns the help of the flags of command, where AddFlags defined some of
// them: first flags that are no settings, then settings by their headings. Settings
// without a heading are left out, and the last line says so, unless --help-all was
// given. ok is false if AddFlags defined none.
func FlagUsages(flags *pflag.FlagSet, command string) (text string, ok bool) {
	all := flags.Lookup(flagHelpAll)
	if all == nil {
		return "", false
	}
	const first, last = "Flags", "Other settings"
	headings, under := []string{first}, map[string]*pflag.FlagSet{}
	add := func(heading string, f *pflag.Flag) {
		if under[heading] == nil {
			under[heading] = pflag.NewFlagSet("", pflag.ContinueOnError)
			under[heading].SortFlags = flags.SortFlags
		}
		under[heading].AddFlag(f)
	}
	settings := make(map[string]bool)
	for _, t := range textSettings() {
		settings[t.flag()] = true
		if t.short == "" {
			add(last, flags.Lookup(t.flag()))
			continue
		}
		if under[t.short] == nil {
			headings = append(headings, t.short)
		}
		add(t.short, flags.Lookup(t.flag()))
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if !settings[f.Name] {
			add(first, f)
		}
	})
	if all.Changed {
		headings = append(headings, last)
	}
	var b strings.Builder
	for _, heading := range headings {
		fmt.Fprintf(&b, "\n%s:\n%s", heading, under[heading].FlagUsages())
	}
	if !all.Changed {
		count := 0
		under[last].VisitAll(func(*pflag.Flag) { count++ })
		fmt.Fprintf(&b, "\nRun %s --%s for the other %d settings.\n", command, flagHelpAll, count)
	}
	return b.String(), true
}
