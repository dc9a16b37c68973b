// Command report runs `go test -json` and prints the results for people: the output of failures as they happen, one
// line a package, and at the end every failed and every skipped case with its reason. Then it prints the counts alone
// on a line:
//
//	N passed, N failed, N skipped
//
// Usage:
//
//	report [-vet] -- ARGS [-- ARGS]...
//
// With -vet, `go vet ./...` comes first, with the first -tags in ARGS, and counts as a case. Each ARGS are the arguments
// of one `go test`, and may begin with -C DIR for another module. The runs follow each other, and a failure does not stop
// the next. Without any, report reads the JSON of a run from standard input. A test that has run for two minutes is
// named, once. SIGTERM and SIGINT end the runs, with all processes that they started, and then report. It exits 1 if
// anything failed or nothing ran at all.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	s := newStopper()
	r := newReport(os.Stdout)
	vet := flag.Bool("vet", false, "run go vet first")
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "usage: report [-vet] -- ARGS [-- ARGS]...") }
	flag.Parse()
	runs := split(flag.Args())
	if *vet {
		r.vet(s, slices.Concat(runs...))
	}
	if len(runs) == 0 {
		r.read(os.Stdin)
	}
	for _, args := range runs {
		if err := test(s, r, args); err != nil {
			r.fail("go test", err.Error())
		}
	}
	if !r.finish() {
		os.Exit(1)
	}
}

// split cuts args at each "--". (Package flag has swallowed the first one.)
func split(args []string) [][]string {
	if len(args) == 0 {
		return nil
	}
	runs := [][]string{nil}
	for _, a := range args {
		if a == "--" {
			runs = append(runs, nil)
			continue
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], a)
	}
	return runs
}

// vet runs go vet over everything, with the first -tags in args, as one case.
func (r *report) vet(s *stopper, args []string) {
	flags := []string{"vet"}
	if i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-tags=") }); i >= 0 {
		flags = append(flags, args[i])
	}
	cmd := exec.Command("go", append(flags, "./...")...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := s.run(cmd, func() {}); err != nil {
		r.fail("go vet ./...", err.Error())
		return
	}
	fmt.Fprintln(r.w, "ok   go vet ./...")
	r.passed++
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
	failed := r.failures()
	err = s.run(cmd, func() {
		r.read(out)
		_, _ = io.Copy(io.Discard, out) // what a line too long for read left
	})
	if _, ok := errors.AsType[*exec.ExitError](err); ok && r.failures() > failed {
		return nil
	}
	return err
}
