package tests

import (
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxUnproven is how many features may have no test: what is not built, or cannot be.
const maxUnproven = 4

var (
	featureRow  = regexp.MustCompile(`^\| ([A-G])(\d+) \| .+ \| (.+) \|$`)
	featureID   = regexp.MustCompile(`\b[A-G][0-9]{1,2}\b`)
	featureTest = regexp.MustCompile("^`([a-z0-9/]+) ((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`$")
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
)

// TestFeatures shows that tests/features.md lists each feature once and in order, that the tests
// which it names exist, and that it has every id that a comment names.
func TestFeatures(t *testing.T) {
	known, unproven := map[string]bool{}, 0
	group, number := "", 0
	have := testFuncs(t)
	for i, line := range strings.Split(read(t, "features.md"), "\n") {
		m := featureRow.FindStringSubmatch(line)
		if m == nil {
			if featureID.MatchString(strings.SplitN(line+"||", "|", 3)[1]) {
				t.Errorf("features.md:%d: not a row: %s", i+1, line)
			}
			continue
		}
		if m[1] != group {
			if m[1] <= group {
				t.Errorf("features.md:%d: %s after %s", i+1, m[1], group)
			}
			group, number = m[1], 0
		}
		if number++; m[2] != strconv.Itoa(number) {
			t.Errorf("features.md:%d: %s%s, want %s%d", i+1, m[1], m[2], group, number)
		}
		known[m[1]+m[2]] = true
		if m[3] == "no test" {
			unproven++
			continue
		}
		for _, text := range strings.Split(m[3], ", ") {
			if f := featureTest.FindStringSubmatch(text); f == nil || !have[f[1]+" "+f[2]] {
				t.Errorf("features.md:%d: there is no test %s", i+1, text)
			}
		}
	}
	if unproven > maxUnproven {
		t.Errorf("%d features have no test, %d may", unproven, maxUnproven)
	}
	for where, id := range namedFeatures(t) {
		if !known[id] {
			t.Errorf("%s: names %s, which tests/features.md lacks", where, id)
		}
	}
}

// testFuncs returns the tests of the tree, as "package Name".
func testFuncs(t *testing.T) map[string]bool {
	found := map[string]bool{}
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(read(t, filepath.Join("..", file)), -1) {
				found[path.Dir(file)+" "+m[1]] = true
			}
		}
	}
	return found
}

// namedFeatures returns the ids in the comments of the tree, by their places.
func namedFeatures(t *testing.T) map[string]string {
	found := map[string]string{}
	for _, file := range goFiles(t) {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, read(t, filepath.Join("..", file)), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, group := range f.Comments {
			for _, c := range group.List {
				for _, id := range featureID.FindAllString(c.Text, -1) {
					found[fset.Position(c.Pos()).String()+" "+id] = id
				}
			}
		}
	}
	return found
}
