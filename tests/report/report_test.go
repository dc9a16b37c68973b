package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/sets"
)

// TestReport feeds runs as go test prints them and shows what is counted, and
// that no failure goes unseen.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		name   string
		events string // "action test output" a line, of package p
		ok     bool
		counts string
		has    string
	}{
		{"pass", "run A|pass A|pass", true, "1 passed, 0 failed, 0 skipped", "ok   p"},
		{"subtests are the cases", "run A|run A/x|run A/y|pass A/x|pass A/y|pass A|pass", true, "2 passed, 0 failed, 0 skipped", "2 cases"},
		{"skip with reason", "run A|output A === RUN A|output A     a_test.go:7: no device|skip A|run B|pass B|pass", true, "1 passed, 0 failed, 1 skipped", "\nskipped:\n  p A: no device\n"},
		{"only skips", "run A|skip A|pass", false, "0 passed, 0 failed, 1 skipped", "no test ran"},
		{"no test files", "output  ?|skip", false, "0 passed, 0 failed, 0 skipped", "no test ran"},
		{"fail", "run A|output A     a_test.go:7: got 1|fail A|fail", false, "0 passed, 1 failed, 0 skipped", "\nfailed:\n  p A: got 1\n"},
		{"failed subtest counts once", "run A|run A/x|fail A/x|run A/y|pass A/y|fail A|fail", false, "1 passed, 1 failed, 0 skipped", "p A/x"},
		{"parent fails by itself", "run A|run A/x|pass A/x|fail A|fail", false, "1 passed, 1 failed, 0 skipped", "p A: no reason"},
		{"panic", "run A|run A/x|output A/x panic: oh|fail", false, "0 passed, 1 failed, 0 skipped", "p A/x: did not finish"},
		{"cut off", "run A", false, "0 passed, 1 failed, 0 skipped", "p A: did not finish"},
		{"fails to build", "output  FAIL p [build failed]|fail", false, "0 passed, 1 failed, 0 skipped", "p: does not build"},
		{"exit after the tests", "run A|pass A|output  leaked|fail", false, "1 passed, 1 failed, 0 skipped", "p: failed outside its tests"},
		{"race detector fails", "run A|pass A|run B|output B ThreadSanitizer: CHECK failed: x|fail", false, "0 passed, 1 failed, 0 skipped", "p: the race detector failed"},
		{"race detector fails once", "run A|skip A|run B|output B ThreadSanitizer: CHECK failed: x|fail|run A|skip A|run B|pass B|pass", false, "1 passed, 1 failed, 1 skipped", "again p"},
		{"race detector fails twice", "run B|output B ThreadSanitizer: CHECK failed: x|fail|run B|output B ThreadSanitizer: CHECK failed: x|fail", false, "0 passed, 2 failed, 0 skipped", "p B: did not finish"},
		{"a test fails, then the race detector", "run A|fail A|run B|output B ThreadSanitizer: CHECK failed: x|fail", false, "0 passed, 2 failed, 0 skipped", "p B: did not finish"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			r.read(strings.NewReader(stream(c.events)))
			if ok := r.finish(); ok != c.ok {
				t.Errorf("ok = %v, want %v", ok, c.ok)
			}
			if !strings.HasSuffix(out.String(), "\n"+c.counts+"\n") || !strings.Contains(out.String(), c.has) {
				t.Errorf("got:\n%s\nwant %q and at the end %q", out.String(), c.has, c.counts)
			}
		})
	}
}

// TestSkips shows that a skip is a failure if the file of skips does not expect this test and this reason.
func TestSkips(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	for _, c := range []struct{ lines, counts string }{
		{"", "1 passed, 2 failed, 0 skipped"},
		{"# a device is missing\np\tA(/.*)?\tno device .*\n", "1 passed, 1 failed, 1 skipped"},
		{"p\t.*\tno .*", "1 passed, 0 failed, 2 skipped"},
		{"p\t.*\tdevice", "1 passed, 2 failed, 0 skipped"},
		{"q\t.*\t.*", "1 passed, 2 failed, 0 skipped"},
	} {
		if err := os.WriteFile(file, []byte(c.lines), 0o644); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		r := newReport(&out)
		var err error
		if r.expected, err = readSkips(file); err != nil {
			t.Fatal(err)
		}
		r.read(strings.NewReader(stream("run A|run A/x|output A/x no device 7|skip A/x|pass A|run B|output B no root|skip B|run C|pass C|pass")))
		r.finish()
		if !strings.HasSuffix(out.String(), "\n"+c.counts+"\n") {
			t.Errorf("%q: got:\n%s\nwant at the end %q", c.lines, out.String(), c.counts)
		}
	}
	for _, bad := range []string{"p A no device", "p\tA", "p\t(\tx"} {
		if err := os.WriteFile(file, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readSkips(file); err == nil || !strings.Contains(err.Error(), file+":1:") {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

// TestPlan shows the runs of go test of each set, and that other words are refused.
func TestPlan(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	t.Setenv(sets.Env, "")
	for _, c := range []struct {
		set, part, has, hasNot string
	}{
		{sets.Quick, "", "-v ./tests/mount", "tests/csi"},
		{sets.Quick, "", module + "tests/report", "./tests/engines/llama"},
		{sets.Quick, "./...", module + "tests/report", "./tests/engines/llama"},
		{sets.Quick, "./tests/...", "-v ./tests/mount", "kvfs/tiers"},
		{sets.Quick, "./tests/...", module + "tests/report", "./cluster"},
		{sets.Quick, "./tiers/... ./cluster/...", "-v ./cluster ./cluster/location", "tests"},
		{sets.Rest, "", "./tests/engines/llama", "tests/report"},
		{sets.Rest, "", "-C tests/csi -v ./...", module},
		{sets.Rest, "./tests/csi/...", "-C tests/csi -v ./...", "tests/mount"},
	} {
		runs, err := plan(c.set, append([]string{"-v"}, strings.Fields(c.part)...))
		text := ""
		for _, args := range runs {
			text += strings.Join(args, " ") + "\n"
		}
		if err != nil || !strings.Contains(text, c.has) || strings.Contains(text, c.hasNot) {
			t.Errorf("%s: %v\n%s", c.set, err, text)
		}
	}
	for _, c := range [][]string{{"all"}, {sets.Rest, "./fs/..."}} {
		if _, err := plan(c[0], c[1:]); err == nil {
			t.Errorf("%s is no error", c)
		}
	}
}

func stream(events string) string {
	var b strings.Builder
	for _, line := range strings.Split(events, "|") {
		action, rest, _ := strings.Cut(line, " ")
		test, output, _ := strings.Cut(rest, " ")
		fmt.Fprintf(&b, "{\"Action\":%q,\"Package\":%q,\"Test\":%q,\"Output\":%q}\n", action, module+"p", test, output+"\n")
	}
	return b.String()
}
