// Package sets divides the tests in two: the quick set, which `make test` runs before each commit, and the rest, which
// `make test-all` runs.
//
// The file quick.txt has the division. A package that it does not name is quick as a whole. The TestMain of a package
// that it names calls Select.
package sets

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Env is the environment variable that selects a set: Quick or Rest. Without it, all tests of a package run.
const Env = "KVFS_TEST_SET"

// The sets, as values of Env.
const (
	Quick = "quick"
	Rest  = "rest"
)

//go:embed quick.txt
var table string

// Division says which tests of a package are quick. A name may be that of a subtest: TestA/b.
type Division struct {
	Dir   string   // of the package, from the root of the module
	All   bool     // all but those in Rest are quick; else those in Quick alone
	Quick []string // patterns, as of `go test -run`; empty if All
	Rest  []string // likewise; empty if not All
}

// Divisions returns the packages of quick.txt, in its order.
func Divisions() []Division { return parse(table) }

// parse reads the form of quick.txt. It panics if text has another form: the file is part of the program.
func parse(text string) []Division {
	var found []Division
	for n, line := range strings.Split(text, "\n") {
		name := strings.TrimSpace(line)
		switch {
		case name == "" || name[0] == '#':
		case line[0] != '\t':
			found = append(found, Division{Dir: name})
		case len(found) == 0 || !found[len(found)-1].add(name):
			panic(fmt.Sprintf("quick.txt:%d: %q does not belong here", n+1, name))
		}
	}
	return found
}

// add takes a line of a package. It reports false for names of quick tests and of others in one package: what
// is in neither would be in both sets, or in none.
func (d *Division) add(name string) bool {
	switch rest, is := strings.CutPrefix(name, "-"); {
	case is:
		d.Rest = append(d.Rest, rest)
	case name == "*":
		d.All = true
	default:
		d.Quick = append(d.Quick, name)
	}
	if d.All {
		return len(d.Quick) == 0
	}
	return len(d.Rest) == 0
}

// HasQuick reports whether any test of the package is quick.
func (d Division) HasQuick() bool { return d.All || len(d.Quick) > 0 }

// HasRest reports whether any test of the package is not quick.
func (d Division) HasRest() bool { return !d.All || len(d.Rest) > 0 }

// Patterns returns the values of -run and -skip for a set.
func (d Division) Patterns(set string) (run, skip string) {
	named := pattern(slices.Concat(d.Quick, d.Rest))
	if (set == Quick) == d.All {
		return "", named
	}
	if named == "" {
		named = "^$" // no test has this name
	}
	return named, ""
}

// pattern matches the names, each part as a whole. Without any it is empty.
func pattern(names []string) string {
	var all []string
	for _, name := range names {
		parts := strings.Split(name, "/")
		for i, p := range parts {
			parts[i] = "^" + p + "$"
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}

// Select makes this test process run the set that the environment selects. The package is that of the working
// directory, where `go test` starts it. Processes that it starts run what they are told to. Call it in TestMain.
func Select() {
	set := os.Getenv(Env)
	if set == "" {
		return
	}
	os.Unsetenv(Env)
	if set != Quick && set != Rest {
		fail("%s=%s: want %s or %s", Env, set, Quick, Rest)
	}
	dir, err := os.Getwd()
	if err != nil {
		fail("%v", err)
	}
	for _, d := range Divisions() {
		if strings.HasSuffix(filepath.ToSlash(dir), "/"+d.Dir) {
			d.use(set)
			return
		}
	}
	fail("%s: tests/sets/quick.txt does not name this package", dir)
}

func (d Division) use(set string) {
	flag.Parse()
	run, skip := d.Patterns(set)
	for name, value := range map[string]string{"test.run": run, "test.skip": skip} {
		if err := flag.Set(name, value); err != nil {
			fail("%v", err)
		}
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(2)
}
