package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// indexChanges are the methods of index.Index that change what it knows of entries.
var indexChanges = []string{"Alloc", "Free", "Link", "Unlink", "Rename", "SetExpires"}

// inside are the packages that may change entries.
var inside = []string{"tiers/catalog", "tiers/index"}

// TestOneDoor shows that only tiers/catalog changes what the engine knows of files: no other package of the engine asks for
// the fields of an index.Entry, which it could assign, or changes the index.
func TestOneDoor(t *testing.T) {
	for _, name := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(name))
		if strings.HasSuffix(name, "_test.go") || !strings.HasPrefix(dir, "tiers") || slices.Contains(inside, dir) {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", name))
		must(t, err)
		for _, what := range doors(t, name, string(text)) {
			t.Errorf("%s calls %s: say it to the catalog with an Edit", name, what)
		}
	}
}

// doors returns the calls in a source that give the fields of an entry, or change an index.
func doors(t *testing.T, name, text string) (found []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	must(t, err)
	ast.Inspect(file, func(x ast.Node) bool {
		if s, ok := x.(*ast.SelectorExpr); ok && (s.Sel.Name == "Fields" && !isPackage(s.X) || isIndex(s.X) && slices.Contains(indexChanges, s.Sel.Name)) {
			found = append(found, s.Sel.Name)
		}
		return true
	})
	return found
}

// isPackage reports whether an expression is a package that has a function Fields.
func isPackage(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && (id.Name == "strings" || id.Name == "bytes")
}

// isIndex reports whether an expression is an index, by its name.
func isIndex(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "ix"
	case *ast.SelectorExpr:
		return x.Sel.Name == "Ix"
	}
	return false
}

// TestDoors: which calls change an entry, and which do not.
func TestDoors(t *testing.T) {
	const text = `package p
func (r *R) a(id index.ID, en *index.Entry) {
	r.Mu.Ix.At(id).Fields().Flags |= 4
	f := en.Fields()
	ix.Unlink(id)
	names.Unlink(id)
	words := strings.Fields(text)
	if en.Size() == 3 { y = en.Size() }
}
`
	if got, want := doors(t, "p.go", text), []string{"Fields", "Fields", "Unlink"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
