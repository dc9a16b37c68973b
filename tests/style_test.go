package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Limits of the house style.
const (
	maxFileLines = 1000
	maxFuncLines = 70
)

// longFuncs lists the functions that may exceed maxFuncLines, as
// "file.go:Name". It is empty and should stay so.
var longFuncs []string

// TestStyle shows that the tree keeps the rules of the house style that a
// machine can see.
func TestStyle(t *testing.T) {
	packages := map[string][]*source{}
	for _, name := range goFiles(t) {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		src, err := parseSource(name, string(text))
		if err != nil {
			t.Error(err)
			continue
		}
		dir := filepath.Dir(name)
		packages[dir] = append(packages[dir], src)
	}
	for _, files := range packages {
		for _, complaint := range checkPackage(files) {
			t.Error(complaint)
		}
	}
}

// TestCheckPackage plants a breach of each rule in the checker, next to the form
// that is allowed.
func TestCheckPackage(t *testing.T) {
	const head = "// Package p is planted.\npackage p\n"
	for _, c := range []struct{ name, file, src, want string }{
		{"clean", "tiers/p.go", head + "// F does.\nfunc F() {}\n", ""},
		{"text in if", "tiers/p.go", head + "func f(err error) { if len(err.Error()) > 3 {} }", "p.go:3: looks into err.Error()"},
		{"text compared", "tiers/p.go", head + "func f(err error) bool { return err.Error() == `x` }", "p.go:3: looks into err.Error()"},
		{"text searched", "tiers/p.go", head + "import \"strings\"\nfunc f(err error) bool { return strings.Contains(err.Error(), `x`) }", "p.go:4: looks into err.Error()"},
		{"text switched", "tiers/p.go", head + "func f(err error) { switch err.Error() {} }", "p.go:3: looks into err.Error()"},
		{"text printed", "tiers/p.go", head + "func f(err error) string { return `x: ` + err.Error() }", ""},
		{"raw atomic", "tiers/p.go", head + "import \"sync/atomic\"\nfunc f(n *int64) { atomic.AddInt64(n, 1) }", "p.go:4: atomic.AddInt64: use the typed atomics"},
		{"typed atomic", "tiers/p.go", head + "import \"sync/atomic\"\nfunc f(n *atomic.Int64) { n.Add(1) }", ""},
		{"print", "tiers/p.go", head + "import \"fmt\"\nfunc f() { fmt.Println() }", "p.go:4: fmt.Println outside cmd and tests"},
		{"print in cmd", "cmd/kvfs/p.go", head + "import \"fmt\"\nfunc f() { fmt.Println() }", ""},
		{"print to writer", "tiers/p.go", head + "import (\"fmt\"; \"io\")\nfunc f(w io.Writer) { fmt.Fprintln(w) }", ""},
		{"panic", "tiers/p.go", head + "import \"fmt\"\nfunc f() { panic(fmt.Sprint(1)) }", "p.go:4: panic(fmt.…) outside invariant"},
		{"panic in invariant", "tiers/invariant/p.go", head + "import \"fmt\"\nfunc f() { panic(fmt.Sprint(1)) }", ""},
		{"sleep", "tiers/p_test.go", "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }", "p_test.go:3: time.Sleep without a `// reason:` on the line"},
		{"sleep with reason", "tiers/p_test.go", "package p\nimport \"time\"\nfunc f() {\n\ttime.Sleep(1) // reason: the kernel's clock tick\n}", ""},
		{"directory", "tests/p_test.go", "package p\nimport \"os\"\nfunc f() { os.MkdirTemp(``, `p`) }",
			"p_test.go:3: os.MkdirTemp(``, ...): use harness.ProcessDir or harness.MemoryDir, or say why with `// reason:`"},
		{"directory in another", "tests/p_test.go", "package p\nimport \"os\"\nfunc f(dir string) { os.MkdirTemp(dir, `p`) }", ""},
		{"global appended", "tiers/p.go", head + "var a []int\nfunc f() { a = append(a, 1) }", "p.go:4: assigns to the package variable a"},
		{"global map", "tiers/p.go", head + "var a = map[int]int{}\nfunc f() { a[1]++; delete(a, 1) }", "p.go:4: assigns to the package variable a\np.go:4: assigns to the package variable a"},
		{"global of a test helper", "tests/harness/p.go", head + "var a []int\nfunc f() { a = append(a, 1) }", ""},
		{"global shadowed", "tiers/p.go", head + "var a []int\nfunc f(a []int) { a[0] = 1 }", ""},
		{"local", "tiers/p.go", head + "var a []int\nfunc f() int { b := a; b = b[1:]; return b[0] }", ""},
		{"long file", "tiers/p.go", head + strings.Repeat("\n", maxFileLines), "p.go:1002: file of 1002 lines, 1000 is the limit"},
		{"long function", "tiers/p.go", head + "func f() {\n" + strings.Repeat("\n", maxFuncLines) + "}", "p.go:3: f has 71 lines, 70 is the limit"},
		{"function at the limit", "tiers/p.go", head + "func f() {\n" + strings.Repeat("\n", maxFuncLines-1) + "}", ""},
		{"no comment", "tiers/p.go", head + "func F() {}\n", "p.go:3: F: doc comment must begin with its name"},
		{"wrong comment", "tiers/p.go", head + "// Does F.\nfunc F() {}\n", "p.go:4: F: doc comment must begin with its name"},
		{"longer name", "tiers/p.go", head + "// Fish.\nfunc F() {}\n", "p.go:4: F: doc comment must begin with its name"},
		{"type", "tiers/p.go", head + "type T struct{}\n", "p.go:3: T: doc comment must begin with its name"},
		{"method", "tiers/p.go", head + "// T is.\ntype T struct{}\nfunc (t *T) M() {}\n", "p.go:5: M: doc comment must begin with its name"},
		{"method of unexported", "tiers/p.go", head + "type t struct{}\nfunc (t) M() {}\n", ""},
		{"constant", "tiers/p.go", head + "const C = 1\n", "p.go:3: C: exported without a comment"},
		{"constants in a group", "tiers/p.go", head + "const (\n\tC = 1 // one\n\tD = 2\n)\n", "p.go:5: D: exported without a comment"},
		{"values of a type", "tiers/p.go", head + "// T is.\ntype T int\nconst (\n\tC T = iota\n\tD\n)\n", ""},
		{"group with comment", "tiers/p.go", head + "// Limits.\nconst (\n\tC = 1\n\tD = 2\n)\n", ""},
		{"package comment", "tiers/p.go", "package p\n", "tiers: no package comment"},
		{"nobody's", "tiers/p.go", head + "// TO" + "DO: later\n", "p.go:3: TO" + "DO without an owner"},
		{"somebody's", "tiers/p.go", head + "// TO" + "DO(ann): later\n", ""},
		{"generated", "tiers/p.go", "// Code generated by hand. DO NOT EDIT.\n\n" + head + "func F() {}\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, err := parseSource(c.file, c.src)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(checkPackage([]*source{src}), "\n")
			got = strings.ReplaceAll(got, filepath.Dir(c.file)+"/", "")
			if got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

// source is one parsed file.
type source struct {
	name string // relative to the root of the module
	fset *token.FileSet
	file *ast.File
	bad  []string
}

func parseSource(name, text string) (*source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{name: name, fset: fset, file: f}, nil
}

func (s *source) test() bool           { return strings.HasSuffix(s.name, "_test.go") }
func (s *source) line(p token.Pos) int { return s.fset.Position(p).Line }

func (s *source) complain(p token.Pos, format string, args ...any) {
	s.bad = append(s.bad, fmt.Sprintf("%s:%d: %s", s.name, s.line(p), fmt.Sprintf(format, args...)))
}

// checkPackage returns the complaints about the files of one directory.
func checkPackage(files []*source) []string {
	var bad []string
	documented, code := false, false
	globals := map[string]bool{}
	for _, s := range files {
		if s.test() || ast.IsGenerated(s.file) {
			continue
		}
		code = true
		documented = documented || s.file.Doc != nil
		collectGlobals(s.file, globals)
	}
	if code && !documented {
		bad = append(bad, filepath.Dir(files[0].name)+": no package comment")
	}
	for _, s := range files {
		if ast.IsGenerated(s.file) {
			continue
		}
		s.checkFile()
		if s.test() {
			s.checkReasons()
		} else {
			s.checkCalls()
			s.checkErrorText()
			s.checkFuncs(globals)
			s.checkDocs()
		}
		bad = append(bad, s.bad...)
	}
	return bad
}

var ownerless = regexp.MustCompile(`^(//|/\*)?\s*(TODO|FIXME|XXX)\b($|[^(]|\(\))`)

// checkFile looks at length and comments.
func (s *source) checkFile() {
	if lines := s.fset.File(s.file.FileStart).LineCount(); lines > maxFileLines {
		s.complain(s.file.FileEnd, "file of %d lines, %d is the limit", lines, maxFileLines)
	}
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			for i, text := range strings.Split(c.Text, "\n") {
				if m := ownerless.FindStringSubmatch(text); m != nil {
					s.bad = append(s.bad, fmt.Sprintf("%s:%d: %s without an owner", s.name, s.line(c.Pos())+i, m[2]))
				}
			}
		}
	}
}

// checkReasons wants a reason next to every time.Sleep of a test, and next to every directory that a test makes outside
// those that go with its process, also when that is killed.
func (s *source) checkReasons() {
	reasons := map[int]bool{}
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "// reason:") {
				reasons[s.line(c.Pos())] = true
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || reasons[s.line(call.Pos())] {
			return true
		}
		if s.selected(call.Fun, "time") == "Sleep" {
			s.complain(call.Pos(), "time.Sleep without a `// reason:` on the line")
		}
		if s.selected(call.Fun, "os") == "MkdirTemp" && within(s.name, "tests") {
			if lit, ok := call.Args[0].(*ast.BasicLit); ok {
				s.complain(call.Pos(), "os.MkdirTemp(%s, ...): use harness.ProcessDir or harness.MemoryDir, or say why with `// reason:`", lit.Value)
			}
		}
		return true
	})
}

var rawAtomic = regexp.MustCompile(`^(Add|Load|Store|Swap|CompareAndSwap|And|Or)[A-Z]`)

// checkCalls looks at calls of raw atomics, printing and panics.
func (s *source) checkCalls() {
	prints := within(s.name, "cmd") || within(s.name, "tests")
	panics := within(s.name, "tiers/invariant") || within(s.name, "tests")
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if name := s.selected(call.Fun, "sync/atomic"); rawAtomic.MatchString(name) {
			s.complain(call.Pos(), "atomic.%s: use the typed atomics", name)
		}
		if name := s.selected(call.Fun, "fmt"); strings.HasPrefix(name, "Print") && !prints {
			s.complain(call.Pos(), "fmt.%s outside cmd and tests", name)
		}
		id, _ := call.Fun.(*ast.Ident)
		if id == nil || id.Name != "panic" || len(call.Args) != 1 || panics {
			return true
		}
		if arg, ok := call.Args[0].(*ast.CallExpr); ok && s.selected(arg.Fun, "fmt") != "" {
			s.complain(call.Pos(), "panic(fmt.…) outside invariant")
		}
		return true
	})
}

// selected returns the name that e selects from the package imported as path,
// "" if e is something else.
func (s *source) selected(e ast.Expr, path string) string {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	for _, spec := range s.file.Imports {
		if strings.Trim(spec.Path.Value, "`\"") != path {
			continue
		}
		name := filepath.Base(path)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if id.Name == name {
			return sel.Sel.Name
		}
	}
	return ""
}

// textTests are the functions of package strings that decide something.
var textTests = []string{"Compare", "Contains", "ContainsAny", "Count", "Cut", "EqualFold", "HasPrefix", "HasSuffix", "Index", "LastIndex"}

// checkErrorText finds decisions that rest on the text of an error.
func (s *source) checkErrorText() {
	ast.Inspect(s.file, func(n ast.Node) bool {
		var decides []ast.Node
		switch n := n.(type) {
		case *ast.IfStmt:
			decides = []ast.Node{n.Cond}
		case *ast.SwitchStmt:
			if n.Tag != nil {
				decides = []ast.Node{n.Tag}
			}
		case *ast.BinaryExpr:
			if n.Op.Precedence() == token.EQL.Precedence() {
				decides = []ast.Node{n}
			}
		case *ast.CallExpr:
			if slices.Contains(textTests, s.selected(n.Fun, "strings")) {
				decides = []ast.Node{n}
			}
		}
		if slices.ContainsFunc(decides, callsError) {
			s.complain(n.Pos(), "looks into err.Error()")
			return false
		}
		return true
	})
}

// callsError reports whether a call x.Error() lies in n.
func callsError(n ast.Node) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 0 {
			sel, ok := call.Fun.(*ast.SelectorExpr)
			found = found || ok && sel.Sel.Name == "Error"
		}
		return !found
	})
	return found
}

// checkFuncs looks at the length of functions and at what they assign to. Test
// helpers may keep state of their process in package variables.
func (s *source) checkFuncs(globals map[string]bool) {
	for _, decl := range s.file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		// The closing brace does not count.
		lines := s.line(fn.End()) - s.line(fn.Pos())
		if lines > maxFuncLines && !slices.Contains(longFuncs, s.name+":"+fn.Name.Name) {
			s.complain(fn.Pos(), "%s has %d lines, %d is the limit", fn.Name.Name, lines, maxFuncLines)
		}
		local := localNames(fn)
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			for _, e := range assigned(n) {
				if name := base(e); globals[name] && !local[name] && !within(s.name, "tests") {
					s.complain(n.Pos(), "assigns to the package variable %s", name)
				}
			}
			return true
		})
	}
}

// collectGlobals adds the names of the package variables of f.
func collectGlobals(f *ast.File, globals map[string]bool) {
	for _, decl := range f.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, spec := range gen.Specs {
			for _, id := range spec.(*ast.ValueSpec).Names {
				if id.Name != "_" {
					globals[id.Name] = true
				}
			}
		}
	}
}

// localNames returns every name that fn declares anywhere. A local name hides a
// package variable in all of fn: too mild where both occur, never too strict.
func localNames(fn *ast.FuncDecl) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, id := range n.Names {
				names[id.Name] = true
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				names[id.Name] = true
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, e := range n.Lhs {
					names[base(e)] = true
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				names[base(n.Key)], names[base(n.Value)] = true, true
			}
		}
		return true
	})
	return names
}

// assigned returns the expressions that statement n changes.
func assigned(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return n.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") {
			return n.Args[:1]
		}
	}
	return nil
}

// base returns the variable at the left end of e: a for a[i].f.
func base(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x.Name
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return ""
		}
	}
}

// checkDocs wants a comment on every exported name: functions, types and methods
// of exported types with a sentence that begins with the name, constants and
// variables with one of their own or of their group.
func (s *source) checkDocs() {
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
				s.wantName(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			s.checkGroup(d)
		}
	}
}

func (s *source) checkGroup(d *ast.GenDecl) {
	covered := d.Doc != nil || enumerates(d)
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && spec.Doc != nil {
				s.wantName(spec.Name, spec.Doc)
			} else if spec.Name.IsExported() {
				s.wantName(spec.Name, d.Doc)
			}
		case *ast.ValueSpec:
			for _, id := range spec.Names {
				if id.IsExported() && spec.Doc == nil && spec.Comment == nil && !covered {
					s.complain(id.Pos(), "%s: exported without a comment", id.Name)
				}
			}
		}
	}
}

// enumerates reports whether d lists the values of a named type, whose own comment
// then covers them.
func enumerates(d *ast.GenDecl) bool {
	first, ok := d.Specs[0].(*ast.ValueSpec)
	if !ok || d.Tok != token.CONST {
		return false
	}
	name, ok := first.Type.(*ast.Ident)
	return ok && name.IsExported()
}

// wantName complains unless doc begins with the word id.
func (s *source) wantName(id *ast.Ident, doc *ast.CommentGroup) {
	rest, ok := strings.CutPrefix(doc.Text(), id.Name)
	if !ok || rest == "" || token.IsIdentifier(rest[:1]) {
		s.complain(id.Pos(), "%s: doc comment must begin with its name", id.Name)
	}
}

// receiver returns the type name of the receiver of d.
func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	return base(e)
}
