package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	module       = "github.com/kvfs/kvfs/"
	maxLineBytes = 16 << 20 // of JSON; test2json cuts output into lines far shorter
)

// event is a line of `go test -json`.
//
// Source: `go doc test2json`, `go help buildjson`.
type event struct {
	Action     string
	Package    string
	ImportPath string // build-output, build-fail
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// id names a test; Test is empty for the package itself.
type id struct{ pkg, test string }

// note is a line of the summary.
type note struct{ name, reason string }

// report adds up the events of one or more runs.
type report struct {
	w       io.Writer
	output  map[id][]string  // of tests and packages that have not ended
	began   map[id]time.Time // when they began, until they have ended or were said to be slow
	parents map[id]bool      // tests with subtests: not cases of their own
	bad     map[id]bool      // tests and packages below which a failure was counted
	cases   map[string]int   // passed, by package

	broken map[string]bool // packages in which the race detector failed, and no test
	again  []string        // those of them that are to run once more

	passed   int
	failed   []note
	skipped  []note
	expected []skip // nil: any skip is
}

func newReport(w io.Writer) *report {
	return &report{
		w:       w,
		output:  map[id][]string{},
		began:   map[id]time.Time{},
		parents: map[id]bool{},
		bad:     map[id]bool{},
		cases:   map[string]int{},
		broken:  map[string]bool{},
	}
}

func (r *report) failures() int { return len(r.failed) }

// slowTime is how long a test may run before it is named, so that one sees which hangs.
const slowTime = 2 * time.Minute

// read takes the events of one run. Lines that are not events are passed on.
func (r *report) read(in io.Reader) {
	lines := make(chan string)
	var failed error
	go func() { // ends with in
		defer close(lines)
		scan := bufio.NewScanner(in)
		scan.Buffer(nil, maxLineBytes)
		for scan.Scan() {
			lines <- scan.Text()
		}
		failed = scan.Err()
	}()
	tick := time.NewTicker(slowTime / 8)
	defer tick.Stop()
	for more := true; more; {
		var line string
		select {
		case line, more = <-lines:
			if more {
				r.line(line)
			}
		case now := <-tick.C:
			r.slow(now)
		}
	}
	if failed != nil {
		r.fail("go test -json", failed.Error())
	}
	r.unfinished("")
}

func (r *report) line(text string) {
	var e event
	if json.Unmarshal([]byte(text), &e) != nil || e.Action == "" {
		fmt.Fprintln(r.w, text)
		return
	}
	r.take(e)
}

// slow names the tests that have run for long, each once, and not those that only wait for one that they began.
func (r *report) slow(now time.Time) {
	for k, since := range r.began {
		if now.Sub(since) < slowTime {
			continue
		}
		delete(r.began, k)
		if !r.parents[k] {
			fmt.Fprintf(r.w, "slow %s has run for %v\n", k.name(), slowTime)
		}
	}
}

func (r *report) take(e event) {
	k := id{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "run":
		r.output[k] = nil
		r.began[k] = time.Now()
		if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
			r.parents[id{e.Package, e.Test[:i]}] = true
		}
	case "pause": // until others have ended
		delete(r.began, k)
	case "cont":
		r.began[k] = time.Now()
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(k, e)
		} else {
			r.endTest(k, e.Action)
		}
		delete(r.output, k)
		delete(r.began, k)
	}
}

// endTest counts a test. One with subtests is no case of its own, unless it
// fails by itself or skips after them.
func (r *report) endTest(k id, action string) {
	switch {
	case action == "skip":
		r.skip(k, reason(r.output[k]))
	case action == "fail" && !r.bad[k]:
		r.show(k)
		r.count(k, reason(r.output[k]))
	case action == "fail":
		r.show(k)
	case !r.parents[k]:
		r.passed++
		r.cases[k.pkg]++
	}
}

func (r *report) endPackage(k id, e event) {
	r.unfinished(k.pkg)
	switch {
	case e.Action == "fail" && slices.Contains(r.again, k.pkg):
		fmt.Fprintf(r.w, "again %s: the race detector failed, and no test\n", short(k.pkg))
	case e.Action == "fail":
		if !r.bad[k] {
			why := "failed outside its tests"
			if strings.Contains(strings.Join(r.output[k], ""), "[build failed]") {
				why = "does not build"
			}
			r.show(k)
			r.count(k, why)
		}
		fmt.Fprintf(r.w, "FAIL %s  %.1fs\n", short(k.pkg), e.Elapsed)
	case e.Action == "pass" && r.cases[k.pkg] > 0:
		fmt.Fprintf(r.w, "ok   %s  %.1fs  %d cases\n", short(k.pkg), e.Elapsed, r.cases[k.pkg])
	}
	delete(r.cases, k.pkg)
}

// unfinished fails the tests of pkg that began and never ended, as after a panic
// or a timeout; of all packages if pkg is empty.
func (r *report) unfinished(pkg string) {
	var left []id
	for k := range r.output {
		if k.test != "" && (pkg == "" || k.pkg == pkg) {
			left = append(left, k)
		}
	}
	if pkg != "" && !r.bad[id{pkg, ""}] && !r.broken[pkg] && slices.ContainsFunc(left, r.detector) {
		r.repeat(pkg, left)
		return
	}
	slices.SortFunc(left, func(a, b id) int { return strings.Compare(b.name(), a.name()) })
	for _, k := range left { // subtests before their parents
		r.show(k)
		if !r.bad[k] {
			r.count(k, "did not finish")
		}
		delete(r.output, k)
		delete(r.began, k)
	}
}

// detector reports whether a test ended because a check of the race detector's own runtime failed. That happens in long
// runs, and says nothing about the test.
func (r *report) detector(k id) bool {
	return strings.Contains(strings.Join(r.output[k], ""), "ThreadSanitizer: CHECK failed")
}

// repeat forgets what a package has counted so far, because it will run once more. left are its tests that did not end.
func (r *report) repeat(pkg string, left []id) {
	for _, k := range left {
		delete(r.output, k)
		delete(r.began, k)
	}
	r.broken[pkg] = true
	r.again = append(r.again, pkg)
	r.passed -= r.cases[pkg]
	r.cases[pkg] = 0
	r.skipped = slices.DeleteFunc(r.skipped, func(n note) bool { return strings.HasPrefix(n.name, short(pkg)+" ") })
}

// count adds a failure and marks everything above it.
func (r *report) count(k id, why string) {
	r.failed = append(r.failed, note{k.name(), why})
	r.bad[id{k.pkg, ""}] = true
	for test := k.test; test != ""; {
		r.bad[id{k.pkg, test}] = true
		test = test[:max(0, strings.LastIndexByte(test, '/'))]
	}
}

// fail adds a failure that belongs to no test.
func (r *report) fail(name, why string) {
	fmt.Fprintf(r.w, "%s: %s\n", name, why)
	r.failed = append(r.failed, note{name, why})
}

// show prints what a test or package wrote.
func (r *report) show(k id) {
	fmt.Fprintf(r.w, "--- %s\n%s", k.name(), strings.Join(r.output[k], ""))
}

// finish prints the summary and reports whether all is well.
func (r *report) finish() bool {
	for _, pkg := range r.again {
		r.fail(short(pkg), "the race detector failed")
	}
	r.list("skipped", r.skipped)
	r.list("failed", r.failed)
	ran := r.passed+len(r.failed) > 0
	if !ran {
		fmt.Fprintln(r.w, "no test ran")
	}
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), len(r.skipped))
	return ran && len(r.failed) == 0
}

func (r *report) list(title string, notes []note) {
	if len(notes) == 0 {
		return
	}
	fmt.Fprintf(r.w, "\n%s:\n", title)
	for _, n := range notes {
		fmt.Fprintf(r.w, "  %s: %s\n", n.name, n.reason)
	}
}

var (
	framing  = regexp.MustCompile(`^\s*(===|---) `)
	location = regexp.MustCompile(`^\s*\S+\.go:\d+: `)
)

// reason returns the first thing that a test said, without its position.
func reason(output []string) string {
	for _, line := range output {
		if said := strings.TrimSpace(location.ReplaceAllString(line, "")); said != "" && !framing.MatchString(line) {
			return said
		}
	}
	return "no reason given"
}

// name returns "package Test", without the part of the path that all share.
func (k id) name() string {
	if k.test == "" {
		return short(k.pkg)
	}
	return short(k.pkg) + " " + k.test
}

func short(pkg string) string { return strings.TrimPrefix(pkg, module) }
