package index

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

const (
	dirMode  = syscall.S_IFDIR | 0o755
	fileMode = syscall.S_IFREG | 0o644
)

func add(x *Index, parent ID, name string, mode uint16) ID {
	id := x.Alloc()
	x.At(id).Fields().Mode = mode
	x.Link(id, parent, name)
	return id
}

// grow builds the tree that most tests here start from:
//
//	a/b/c  a/b/d  a/e  f
func grow(t *testing.T) (x *Index, ids map[string]ID) {
	t.Helper()
	x = New()
	ids = map[string]ID{"": Root}
	for _, path := range []string{"a/", "a/b/", "a/b/c", "a/b/d", "a/e", "f"} {
		name, isDir := strings.CutSuffix(path, "/")
		parent, base := "", name
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			parent, base = name[:i], name[i+1:]
		}
		mode := uint16(fileMode)
		if isDir {
			mode = dirMode
		}
		ids[name] = add(x, ids[parent], base, mode)
	}
	return x, ids
}

// TestWalk: a path finds its entry in one spelling only.
func TestWalk(t *testing.T) {
	x, ids := grow(t)
	for path, want := range ids {
		if got := x.Walk(path); got != want {
			t.Errorf("Walk(%q): got %d, want %d", path, got, want)
		}
		if got := x.Path(want); got != path {
			t.Errorf("Path(%d): got %q, want %q", want, got, path)
		}
		if got := string(x.AppendPath([]byte("/mnt/"), want)); got != "/mnt/"+path {
			t.Errorf("AppendPath(%d): got %q, want %q", want, got, "/mnt/"+path)
		}
	}
	for _, path := range []string{
		"/", "/a", "a/", "a//b", "a/b/", "A", "a/b/c/", "a/b/c/d", "f/g", "a/.", "..", "a/b/cc",
		strings.Repeat("n", 256), strings.Repeat("a/", 3000) + "a",
	} {
		if got := x.Walk(path); got != 0 {
			t.Errorf("Walk(%q): got %d, want 0", path, got)
		}
	}
}

// TestReuse: a freed ID comes back with nothing of its former life.
func TestReuse(t *testing.T) {
	x := New()
	id := add(x, Root, "a", fileMode)
	e := x.At(id)
	f := e.Fields()
	f.Size, f.Flags, f.Tiers, f.Lease = 1, 2, 3, 4
	x.Unlink(id)
	x.Free(id)
	again := x.Alloc()
	if again != id {
		t.Errorf("Alloc: got %d, want the freed %d", again, id)
	}
	if got := *x.At(again); got != (Entry{state: unlinked}) {
		t.Errorf("entry is not blank: %+v", got)
	}
}

// TestValid: exactly the IDs that are in use are valid.
func TestValid(t *testing.T) {
	x, ids := grow(t)
	gone := x.Alloc()
	x.Free(gone)
	for _, id := range ids {
		if !x.Valid(id) {
			t.Errorf("Valid(%d): got false", id)
		}
	}
	for _, id := range []ID{0, gone, gone + 1, 1 << 20, 1<<32 - 1} {
		if x.Valid(id) {
			t.Errorf("Valid(%d): got true", id)
		}
	}
}

// TestMisuse: breaking a rule panics at once and says which entry it was.
func TestMisuse(t *testing.T) {
	tests := []struct {
		name string
		call func(x *Index, ids map[string]ID)
	}{
		{"At(0)", func(x *Index, _ map[string]ID) { x.At(0) }},
		{"At beyond", func(x *Index, _ map[string]ID) { x.At(1 << 31) }},
		{"At free", func(x *Index, ids map[string]ID) { x.Unlink(ids["f"]); x.Free(ids["f"]); x.At(ids["f"]) }},
		{"Free linked", func(x *Index, ids map[string]ID) { x.Free(ids["f"]) }},
		{"Free twice", func(x *Index, _ map[string]ID) { id := x.Alloc(); x.Free(id); x.Free(id) }},
		{"Free Root", func(x *Index, _ map[string]ID) { x.Free(Root) }},
		{"Unlink Root", func(x *Index, _ map[string]ID) { New().Unlink(Root) }},
		{"Unlink twice", func(x *Index, ids map[string]ID) { x.Unlink(ids["f"]); x.Unlink(ids["f"]) }},
		{"Unlink full", func(x *Index, ids map[string]ID) { x.Unlink(ids["a"]) }},
		{"Link twice", func(x *Index, ids map[string]ID) { x.Link(ids["f"], Root, "g") }},
		{"Link taken name", func(x *Index, _ map[string]ID) { x.Link(x.Alloc(), Root, "f") }},
		{"Rename to taken name", func(x *Index, ids map[string]ID) { x.Rename(ids["a/e"], Root, "f") }},
		{"Link no name", func(x *Index, _ map[string]ID) { x.Link(x.Alloc(), Root, "") }},
		{"Link long name", func(x *Index, _ map[string]ID) { x.Link(x.Alloc(), Root, strings.Repeat("n", 256)) }},
		{"Link into file", func(x *Index, ids map[string]ID) { x.Link(x.Alloc(), ids["f"], "g") }},
		{"Link into itself", func(x *Index, _ map[string]ID) {
			id := x.Alloc()
			x.At(id).Fields().Mode = dirMode
			x.Link(id, id, "g")
		}},
		{"Rename Root", func(x *Index, ids map[string]ID) { x.Rename(Root, ids["a"], "g") }},
		{"Rename below itself", func(x *Index, ids map[string]ID) { x.Rename(ids["a"], ids["a/b"], "g") }},
		{"Rename unlinked", func(x *Index, _ map[string]ID) { x.Rename(x.Alloc(), Root, "g") }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			x, ids := grow(t)
			defer func() {
				if msg, ok := recover().(string); !ok || !strings.HasPrefix(msg, "index: ") {
					t.Errorf("got panic %q, want one of this package", msg)
				}
			}()
			test.call(x, ids)
		})
	}
}

// TestAllocs: looking up and appending into a buffer that is large enough
// allocate nothing, and linking allocates only when a part of the table grows.
func TestAllocs(t *testing.T) {
	x, ids := grow(t)
	buf := make([]byte, 0, 256)
	temp := add(x, Root, "temp", fileMode)
	tests := []struct {
		name string
		call func()
	}{
		{"Lookup", func() { x.Lookup(ids["a/b"], "c"); x.Lookup(Root, "missing") }},
		{"Walk", func() { x.Walk("a/b/c"); x.Walk("a/b/missing") }},
		{"AppendPath", func() { x.AppendPath(buf, ids["a/b/c"]) }},
		{"ReadDir", func() { x.ReadDir(ids["a"], 0, 0, func(ID, *Entry, uint64) bool { return true }) }},
		{"Descend", func() { x.Descend(Root, func(ID, *Entry) bool { return true }) }},
		{"Link", func() { x.Unlink(temp); x.Free(temp); temp = x.Alloc(); x.Link(temp, Root, "temp") }},
		{"Rename", func() { x.Rename(temp, ids["a"], "other") }},
	}
	for _, test := range tests {
		if got := testing.AllocsPerRun(100, test.call); got != 0 {
			t.Errorf("%s: %v allocations a call, want 0", test.name, got)
		}
	}
}

// TestEntrySize keeps the memory that the package comment promises, and what a look-up reads in one cache line.
func TestEntrySize(t *testing.T) {
	var e Entry
	if got := unsafe.Sizeof(e); got != 128 {
		t.Errorf("Entry has %d bytes, want 128", got)
	}
	if end := unsafe.Offsetof(e.f) + unsafe.Offsetof(e.f.Accounts) + unsafe.Sizeof(e.f.Accounts); end != 64 {
		t.Errorf("Accounts, the last field that a look-up reads, ends at byte %d, want 64", end)
	}
}

// TestReserve: a table that was made large beforehand holds the same as one that
// grew.
func TestReserve(t *testing.T) {
	const n = 20_000
	x := New()
	first := x.Alloc()
	x.Link(first, Root, "before")
	x.Reserve(n)
	size := x.Bytes()
	ids := make([]ID, n)
	for i := range ids {
		ids[i] = x.Alloc()
		x.Link(ids[i], Root, fmt.Sprintf("%08d", i))
	}
	for i, id := range ids {
		if got := x.Lookup(Root, fmt.Sprintf("%08d", i)); got != id {
			t.Fatalf("entry %d: got %d, want %d", i, got, id)
		}
	}
	if got := x.Lookup(Root, "before"); got != first {
		t.Errorf("entry linked before: got %d, want %d", got, first)
	}
	if size < 4*n {
		t.Errorf("index of %d bytes after Reserve(%d)", size, n)
	}
}
