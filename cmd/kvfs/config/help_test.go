package config

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestFlagUsages shows that the short help has the settings with a heading and says how many there are besides,
// and that --help-all has every setting. What the short help leaves out is a flag as others are.
func TestFlagUsages(t *testing.T) {
	var short, all []string
	for _, s := range textSettings() {
		all = append(all, "--"+s.flag())
		if s.short != "" {
			short = append(short, "--"+s.flag())
		}
	}
	if len(short) < 15 || len(short) > 25 {
		t.Errorf("the short help has %d settings: want about twenty", len(short))
	}
	const last = "\nRun kvfs mount --help-all for the other "
	others := []string{"--" + flagFile, "--" + flagInline, "--" + flagObject, "--help", "--" + flagHelpAll}
	for _, c := range []struct {
		args, want []string
	}{
		{nil, short},
		{[]string{"--help"}, short},
		{[]string{"--peer-timeout=7s", "--help"}, short},
		{[]string{"--help-all"}, all},
		{[]string{"--help-all", "--help"}, all},
	} {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		flags.Bool("help", false, "as cobra defines it")
		AddFlags(flags)
		must(t, flags.Parse(c.args))
		text, ok := FlagUsages(flags, "kvfs mount")
		if !ok {
			t.Fatal("no settings found")
		}
		usage, rest, cut := strings.Cut(text, last)
		var got []string
		for _, m := range regexp.MustCompile(`(?m)^ +(--[a-z-]+)`).FindAllStringSubmatch(usage, -1) {
			got = append(got, m[1])
		}
		want := slices.Concat(c.want, others)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", c.args, got, want)
		}
		left := len(all) - len(c.want)
		if cut != (left > 0) || cut && !strings.HasPrefix(rest, strconv.Itoa(left)+" settings.\n") {
			t.Errorf("%q: ends with %q, and leaves %d out", c.args, rest, left)
		}
		if help, err := flags.GetBool("help"); err != nil || help != (len(c.args) > 0) {
			t.Errorf("%q: asks for help: %v, %v", c.args, help, err)
		}
	}
	if _, ok := FlagUsages(pflag.NewFlagSet("test", pflag.ContinueOnError), "kvfs version"); ok {
		t.Error("settings found where AddFlags defined none")
	}
}

// TestCases shows that the tests that the reference names as cases are there.
func TestCases(t *testing.T) {
	named := 0
	for _, s := range textSettings() {
		dir, rest, _ := strings.Cut(s.reason, " ")
		name := regexp.MustCompile(`^Test\w+`).FindString(rest)
		if !strings.HasPrefix(dir, "tests/") {
			continue
		}
		files, err := filepath.Glob("../../../" + dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %s: no files, %v", s.path, dir, err)
		}
		if name == "" {
			continue
		}
		named++
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "func "+name+"(") && strings.Contains(string(text), "--"+s.flag()+`"`)
		}) {
			t.Errorf("%s: no %s %s that sets it", s.path, dir, name)
		}
	}
	if named < 10 {
		t.Errorf("%d tests named", named)
	}
}
