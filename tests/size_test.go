package tests

import (
	"bytes"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits of what one reads at a time. What is larger today is listed below with its size, methods rounded up to
// tens and lines to hundreds: it may shrink, and leaves the list when it is within the limit. Nothing is added.
const (
	maxMethods      = 60   // of a type
	maxComplexity   = 15   // of a function: branches, cases, && and ||, and one
	maxPackageLines = 4000 // without tests
)

// largeTypes are the types of more than maxMethods methods.
var largeTypes = map[string]int{}

// largePackages are the packages of more than maxPackageLines lines.
var largePackages = map[string]int{}

// complexFuncs are the functions that are more complex than maxComplexity.
var complexFuncs = map[string]int{}

// TestSizes shows that types, functions and packages stay small, and that those which are not shrink.
func TestSizes(t *testing.T) {
	methods, lines, branches := map[string]int{}, map[string]int{}, map[string]int{}
	for _, name := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(name))
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(dir, "tests") {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		src, err := parseSource(name, string(text))
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(src.file) {
			continue
		}
		lines[dir] += bytes.Count(text, []byte("\n"))
		for _, d := range src.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			of := dir + "."
			if f.Recv != nil {
				methods[of+receiver(f)]++
				of += receiver(f) + "."
			}
			branches[of+f.Name.Name] = complexity(f)
		}
	}
	checkSizes(t, "methods", methods, maxMethods, largeTypes)
	checkSizes(t, "lines", lines, maxPackageLines, largePackages)
	checkSizes(t, "branches", branches, maxComplexity, complexFuncs)
}

// checkSizes fails the test for what is larger than most, or than its exception, and for exceptions that
// are none any more.
func checkSizes(t *testing.T, unit string, sizes map[string]int, most int, except map[string]int) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if n, limit := sizes[name], max(most, except[name]); n > limit {
			t.Errorf("%s has %d %s, %d is the limit", name, n, unit, limit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(except)) {
		if sizes[name] <= most {
			t.Errorf("%s has %d %s: take it off the list", name, sizes[name], unit)
		}
	}
}

// complexity is the cyclomatic complexity of a function, function literals in it included.
func complexity(f *ast.FuncDecl) int {
	n := 1
	ast.Inspect(f, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// TestComplexity counts what a reader has to follow.
func TestComplexity(t *testing.T) {
	const text = `package p
func plain() { x() }
func (t *T) busy(a, b bool) {
	if a && b || a { }
	for range 3 { switch { case a: case b: default: } }
	select { case <-c: default: }
	f := func() { if a { } }
}
`
	src, err := parseSource("p.go", text)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 9} {
		if f := src.file.Decls[i].(*ast.FuncDecl); complexity(f) != want {
			t.Errorf("%s: %d, want %d", f.Name, complexity(f), want)
		}
	}
}
