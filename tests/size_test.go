package tests

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxComplexity limits the branches, cases, && and || of a function, plus one. A single switch may have more cases:
// it reads better whole than in five pieces. Packages and types have no limit: they end where their meaning ends.
const (
	maxComplexity       = 15
	maxSwitchComplexity = 20 // of a function in which one switch or select makes half of the branches
)

// TestComplexityLimit shows that functions stay simple enough to follow.
func TestComplexityLimit(t *testing.T) {
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
		for _, d := range src.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n, limit := complexity(f), complexityLimit(f); n > limit {
				t.Errorf("%s: %s has complexity %d, %d is the limit", name, f.Name.Name, n, limit)
			}
		}
	}
}

// complexityLimit is maxSwitchComplexity if one switch or select makes at least half of the branches of f.
func complexityLimit(f *ast.FuncDecl) int {
	most := 0
	ast.Inspect(f, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.SwitchStmt:
			most = max(most, len(x.Body.List))
		case *ast.TypeSwitchStmt:
			most = max(most, len(x.Body.List))
		case *ast.SelectStmt:
			most = max(most, len(x.Body.List))
		}
		return true
	})
	if 2*most >= complexity(f) {
		return maxSwitchComplexity
	}
	return maxComplexity
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
func whole(k int) {
	if x { return }
	switch k { case 1: case 2: case 3: case 4: default: }
}
`
	src, err := parseSource("p.go", text)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ n, limit int }{{1, maxComplexity}, {9, maxComplexity}, {6, maxSwitchComplexity}} {
		f := src.file.Decls[i].(*ast.FuncDecl)
		if n, limit := complexity(f), complexityLimit(f); n != want.n || limit != want.limit {
			t.Errorf("%s: %d of %d, want %+v", f.Name, n, limit, want)
		}
	}
}
