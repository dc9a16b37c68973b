// Command report runs `go test -json` and prints the results for people: the output of failures as they happen, one
// line a package, and at the end every failed and every skipped case with its reason. Then it prints the counts alone
// on a line:
//
//	N passed, N failed, N skipped
//
// Usage:
//
//	report [-set quick|rest] [-skips FILE] -- [ARGS]
//
// ARGS are arguments of `go test`. With -set the packages are those that have tests of this set (see tests/sets), and
// those of other modules follow each in a run of its own; patterns like ./tests/... at the end of ARGS take a part of
// them. Without -set, ARGS have the packages; without ARGS, too, report reads the JSON of a run from standard input.
//
// With -skips, a skip that FILE does not expect is a failure. A line of FILE has patterns of a package, a test and
// a reason, with a tab between them; "#" begins a comment.
//
// A package in which the race detector itself fails, and no test, runs once more.
//
// A test that has run for two minutes is named, once. SIGTERM and SIGINT end the runs, with all processes that they
// started, and then report. It exits 1 if anything failed or nothing ran at all.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tests/sets"
)

func main() {
	s := newStopper()
	r := newReport(os.Stdout)
	set := flag.String("set", "", "run the tests of this set: quick or rest")
	skips := flag.String("skips", "", "file of the skips that are expected")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: report [-set quick|rest] [-skips FILE] -- [ARGS]")
		flag.PrintDefaults()
	}
	flag.Parse()
	runs, err := plan(*set, flag.Args())
	if err == nil && *skips != "" {
		r.expected, err = readSkips(*skips)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if len(runs) == 0 {
		r.read(os.Stdin)
	} else if err := r.runAll(s, runs); err != nil {
		r.fail("report", err.Error())
	}
	if !r.finish() {
		os.Exit(1)
	}
}

// runAll runs each `go test`, one after the other, with a temporary directory that does not outlive them.
func (r *report) runAll(s *stopper, runs [][]string) error {
	temp, err := newScratch()
	if err != nil {
		return err
	}
	fmt.Fprintln(r.w, "compiling kvfs and the tests; with an empty cache of Go that takes minutes")
	if err := s.build(temp.dir, runs[0]); err != nil {
		return errors.Join(err, temp.remove())
	}
	for _, args := range runs {
		if err := test(s, r, args); err != nil {
			r.fail("go test", err.Error())
		}
		if again := r.again; len(again) > 0 && args[0] != "-C" {
			r.again = nil
			flags := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return !strings.HasPrefix(arg, "-") })
			if err := test(s, r, append(flags, again...)); err != nil {
				r.fail("go test", err.Error())
			}
		}
	}
	return temp.remove()
}

// plan returns the arguments of each `go test`, and sets the environment that selects a set.
func plan(set string, args []string) ([][]string, error) {
	if set == "" {
		if len(args) == 0 {
			return nil, nil
		}
		return [][]string{args}, nil
	}
	if set != sets.Quick && set != sets.Rest {
		return nil, fmt.Errorf("-set=%s: want %s or %s", set, sets.Quick, sets.Rest)
	}
	os.Setenv(sets.Env, set)
	args, below := splitPatterns(args)
	here, modules := packages(set)
	if set == sets.Quick {
		out, err := exec.Command("go", "list", "./...").Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		here = append(here, whole(strings.Fields(string(out)))...)
	}
	outside := func(dir string) bool { return !below(dir) }
	here, modules = slices.DeleteFunc(here, outside), slices.DeleteFunc(modules, outside)
	var runs [][]string
	if len(here) > 0 {
		runs = append(runs, slices.Concat(args, here))
	}
	for _, dir := range modules {
		runs = append(runs, slices.Concat([]string{"-C", dir}, args, []string{"./..."}))
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("-set=%s: no package has tests of it there", set)
	}
	return runs, nil
}

// splitPatterns takes the patterns of packages off the end of args. below reports whether a package, as "./dir", "dir" or with
// its module, is in one of them: those that are below a directory, like ./tests/..., or all if there are none.
func splitPatterns(args []string) (rest []string, below func(pkg string) bool) {
	i := len(args)
	for i > 0 && strings.HasPrefix(args[i-1], "./") {
		i--
	}
	dirs := args[i:]
	return args[:i:i], func(pkg string) bool {
		pkg = strings.TrimPrefix(strings.TrimPrefix(pkg, module), "./") + "/"
		return len(dirs) == 0 || slices.ContainsFunc(dirs, func(d string) bool {
			return strings.HasPrefix(pkg, strings.TrimSuffix(strings.TrimPrefix(d, "./"), "..."))
		})
	}
}

// packages returns the divided packages that have tests of a set: those of this module, as "./dir", and those that are
// modules of their own.
func packages(set string) (here, modules []string) {
	for _, d := range sets.Divisions() {
		if has := map[string]func() bool{sets.Quick: d.HasQuick, sets.Rest: d.HasRest}[set]; !has() {
			continue
		}
		if _, err := os.Stat(filepath.Join(d.Dir, "go.mod")); err == nil {
			modules = append(modules, d.Dir)
		} else {
			here = append(here, "./"+d.Dir)
		}
	}
	return here, modules
}

// whole drops the divided packages.
func whole(all []string) []string {
	divided := map[string]bool{}
	for _, d := range sets.Divisions() {
		divided[module+d.Dir] = true
	}
	return slices.DeleteFunc(all, func(pkg string) bool { return divided[pkg] })
}

// test runs `go test -json args` into r. Its error says that go test failed in
// a way that no test shows.
func test(s *stopper, r *report, args []string) error {
	at := 0
	if len(args) > 0 && args[0] == "-C" { // which must come first
		at = 2
	}
	args = slices.Insert(slices.Clone(args), at, "-json")
	cmd := exec.Command("go", append([]string{"test"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	failed, broken := r.failures(), len(r.broken)
	err = s.run(cmd, func() {
		r.read(out)
		_, _ = io.Copy(io.Discard, out) // what a line too long for read left
	})
	if _, ok := errors.AsType[*exec.ExitError](err); ok && (r.failures() > failed || len(r.broken) > broken) {
		return nil
	}
	return err
}
