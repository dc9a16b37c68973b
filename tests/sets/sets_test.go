package sets

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPatterns shows that each test of a package is in exactly one set.
func TestPatterns(t *testing.T) {
	tests := []string{"TestA", "TestA/x", "TestA/y", "TestAB", "TestB"}
	for _, c := range []struct {
		text  string
		quick []string
	}{
		{"p\n", nil},
		{"p\n\t*\n", []string{"TestA", "TestA/x", "TestA/y", "TestAB", "TestB"}},
		{"# all\np\n\tTestA\n", []string{"TestA", "TestA/x", "TestA/y"}},
		{"p\n\tTestA/x\n\tTestB\n", []string{"TestA/x", "TestB"}},
		{"p\n\t*\n\t-TestB\n\t-TestA/y\n", []string{"TestA/x", "TestAB"}},
	} {
		d := parse(c.text)[0]
		var quick, rest []string
		for _, name := range tests {
			if name == "TestA" && strings.Contains(c.text, "TestA/") {
				continue // its subtests are the cases
			}
			if runs(t, d, Quick, name) {
				quick = append(quick, name)
			}
			if runs(t, d, Rest, name) {
				rest = append(rest, name)
			}
		}
		if !slices.Equal(quick, c.quick) || len(quick)+len(rest) < len(tests)-1 || slices.ContainsFunc(quick, func(s string) bool { return slices.Contains(rest, s) }) {
			t.Errorf("%q: quick %q, rest %q", c.text, quick, rest)
		}
	}
}

// runs says whether a set has the test, as package testing matches names.
func runs(t *testing.T, d Division, set, name string) bool {
	t.Helper()
	run, skip := d.Patterns(set)
	return (run == "" || matches(t, run, name)) && (skip == "" || !matches(t, skip, name))
}

func matches(t *testing.T, patterns, name string) bool {
	t.Helper()
	parts := strings.Split(name, "/")
	return slices.ContainsFunc(strings.Split(patterns, "|"), func(pattern string) bool {
		elems := strings.Split(pattern, "/")
		if len(elems) > len(parts) {
			return false
		}
		for i, e := range elems {
			if !regexp.MustCompile(e).MatchString(parts[i]) {
				return false
			}
		}
		return true
	})
}

var (
	selects  = regexp.MustCompile(`\bMain\(m[,)]|sets\.Select\(\)`)
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`)
)

// TestTable shows that quick.txt names the packages that select a set, each once, and that the tests which it names
// exist: no test gets lost.
func TestTable(t *testing.T) {
	root := filepath.Join("..", "..")
	tests, selecting := map[string][]string{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil || dir == "tests/sets" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			tests[dir] = append(tests[dir], string(m[1]))
		}
		selecting[dir] = selecting[dir] || selects.Match(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, d := range Divisions() {
		if seen[d.Dir] || !selecting[d.Dir] {
			t.Errorf("%s: twice here, or its TestMain does not select a set", d.Dir)
		}
		seen[d.Dir] = true
		for _, name := range slices.Concat(d.Quick, d.Rest) {
			top, err := regexp.Compile("^" + strings.Split(name, "/")[0] + "$")
			if err != nil || !slices.ContainsFunc(tests[d.Dir], top.MatchString) {
				t.Errorf("%s has no test %s", d.Dir, name)
			}
		}
	}
	for dir, yes := range selecting {
		if yes && !seen[dir] {
			t.Errorf("quick.txt does not name %s, which selects a set", dir)
		}
	}
}
