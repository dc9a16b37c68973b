package index

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// model does what Index does in the most obvious way: the name and parent of
// each entry, and each directory's children in their order.
type model struct {
	nodes map[ID]*modelNode
	left  modelPlace // of the entry that was unlinked last, until the next link
}

type modelPlace struct {
	parent ID
	name   string
	at     int // among the children
}

type modelNode struct {
	parent   ID
	name     string
	dir      bool
	linked   bool
	children []ID
}

func newModel() *model {
	return &model{nodes: map[ID]*modelNode{Root: {dir: true, linked: true}}}
}

func (m *model) lookup(parent ID, name string) ID {
	if p := m.nodes[parent]; p != nil {
		for _, id := range p.children {
			if m.nodes[id].name == name {
				return id
			}
		}
	}
	return 0
}

func (m *model) link(id, parent ID, name string) {
	n, p := m.nodes[id], m.nodes[parent]
	n.parent, n.name, n.linked = parent, name, true
	at := len(p.children)
	if m.left.parent == parent && m.left.name == name {
		at = m.left.at
	}
	p.children = slices.Insert(p.children, at, id)
	m.left = modelPlace{}
}

func (m *model) rename(id, parent ID, name string) {
	target := m.left
	m.unlink(id)
	if target.parent != parent || target.name != name {
		if m.left.name = name; m.left.parent != parent {
			m.left = modelPlace{}
		}
	} else {
		if m.left.parent == parent && m.left.at < target.at {
			target.at--
		}
		m.left = target
	}
	m.link(id, parent, name)
}

func (m *model) unlink(id ID) {
	n := m.nodes[id]
	p := m.nodes[n.parent]
	m.left = modelPlace{n.parent, n.name, slices.Index(p.children, id)}
	p.children = slices.DeleteFunc(p.children, func(c ID) bool { return c == id })
	n.parent, n.name, n.linked = 0, "", false
}

func (m *model) path(id ID) string {
	var names []string
	for n := m.nodes[id]; n.parent != 0; n = m.nodes[n.parent] {
		names = append(names, n.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

func (m *model) within(id, dir ID) bool {
	for ; id != 0; id = m.nodes[id].parent {
		if id == dir {
			return true
		}
	}
	return false
}

func (m *model) descend(dir ID, found []ID) []ID {
	for _, id := range m.nodes[dir].children {
		found = m.descend(id, append(found, id))
	}
	return found
}

// world is an index and its model, driven by one source of choices.
type world struct {
	t    testing.TB
	x    *Index
	m    *model
	pick func(n int) int // a number below n
}

// choose returns one entry of which ok holds, 0 if there is none. The order of
// entries does not depend on the map, so that a seed repeats its run.
func (w *world) choose(ok func(*modelNode) bool) ID {
	var ids []ID
	for _, id := range slices.Sorted(maps.Keys(w.m.nodes)) {
		if ok(w.m.nodes[id]) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0
	}
	return ids[w.pick(len(ids))]
}

func isDir(n *modelNode) bool      { return n.dir && n.linked }
func isUnlinked(n *modelNode) bool { return !n.linked }
func isMovable(n *modelNode) bool  { return n.linked && n.parent != 0 }
func isLeaf(n *modelNode) bool     { return isMovable(n) && len(n.children) == 0 }

// name returns one of a few short names, often taken, or one of 1 to 255 bytes, some of which look like hashes.
func (w *world) name() string {
	if w.pick(4) > 0 {
		return string(rune('a' + w.pick(20)))
	}
	p := make([]byte, 1+w.pick(255))
	hash := w.pick(2) == 0
	for i := range p {
		if hash && w.pick(20) > 0 {
			p[i] = "0123456789abcdefF"[w.pick(17)]
			continue
		}
		if p[i] = byte(1 + w.pick(255)); p[i] == '/' {
			p[i] = 0xff
		}
	}
	return string(p)
}

// step applies one operation to both sides and says which.
func (w *world) step() string {
	switch w.pick(8) {
	case 0, 1, 2:
		id := w.x.Alloc()
		dir := w.pick(3) == 0
		w.x.At(id).Fields().Mode = fileMode
		if dir {
			w.x.At(id).Fields().Mode = dirMode
		}
		if w.m.nodes[id] != nil {
			w.t.Fatalf("Alloc returned %d, which is in use", id)
		}
		w.m.nodes[id] = &modelNode{dir: dir}
		return w.link(id)
	case 3:
		return w.link(w.choose(isUnlinked))
	case 4:
		if id := w.choose(isLeaf); id != 0 {
			w.x.Unlink(id)
			w.m.unlink(id)
			return fmt.Sprint("unlink ", id)
		}
	case 5:
		if id := w.choose(isUnlinked); id != 0 {
			w.x.Free(id)
			delete(w.m.nodes, id)
			return fmt.Sprint("free ", id)
		}
	case 6, 7:
		return w.rename(w.choose(isMovable))
	}
	return "nothing"
}

func (w *world) link(id ID) string {
	parent, name := w.choose(isDir), w.name()
	if l := w.m.left; l.parent != 0 && w.pick(2) == 0 {
		parent, name = l.parent, l.name
	}
	if id == 0 || w.m.lookup(parent, name) != 0 {
		return "nothing"
	}
	w.x.Link(id, parent, name)
	w.m.link(id, parent, name)
	return fmt.Sprintf("link %d in %d as %q", id, parent, name)
}

func (w *world) rename(id ID) string {
	parent, name := w.choose(isDir), w.name()
	if l := w.m.left; l.parent != 0 && w.pick(2) == 0 {
		parent, name = l.parent, l.name // as when it is replaced
	}
	if id == 0 || w.m.within(parent, id) {
		return "nothing"
	}
	if there := w.m.lookup(parent, name); there != 0 && there != id {
		return "nothing"
	}
	w.x.Rename(id, parent, name)
	w.m.rename(id, parent, name)
	return fmt.Sprintf("rename %d into %d as %q", id, parent, name)
}

// compare fails unless both sides answer alike.
func (w *world) compare(did string) {
	w.t.Helper()
	check(w.t, w.x)
	count := 0
	for id, n := range w.m.nodes {
		if n.linked && id != Root {
			count++
		}
		path := w.m.path(id)
		if w.x.Linked(id) != n.linked || w.x.Parent(id) != n.parent || w.x.Name(id) != n.name ||
			w.x.Path(id) != path || w.x.Children(id) != len(n.children) {
			w.t.Fatalf("after %s: entry %d is %q, want %+v", did, id, w.x.Path(id), *n)
		}
		if n.linked && (w.x.Walk(path) != id || w.x.Lookup(n.parent, n.name) != w.m.lookup(n.parent, n.name)) {
			w.t.Fatalf("after %s: entry %d not found at %q", did, id, path)
		}
		if got := list(w.x, id); !slices.Equal(got, n.children) {
			w.t.Fatalf("after %s: children of %d: got %v, want %v", did, id, got, n.children)
		}
		var below []ID
		w.x.Descend(id, func(c ID, _ *Entry) bool { below = append(below, c); return true })
		if want := w.m.descend(id, nil); !slices.Equal(below, want) {
			w.t.Fatalf("after %s: below %d: got %v, want %v", did, id, below, want)
		}
	}
	if w.x.Len() != count {
		w.t.Fatalf("after %s: Len: got %d, want %d", did, w.x.Len(), count)
	}
	if name := w.name(); w.x.Lookup(Root, name) != w.m.lookup(Root, name) {
		w.t.Fatalf("after %s: Lookup(Root, %q) differs", did, name)
	}
}

// list returns all children of dir in one scan.
func list(x *Index, dir ID) (ids []ID) {
	x.ReadDir(dir, 0, 0, func(id ID, _ *Entry, _ uint64) bool { ids = append(ids, id); return true })
	return ids
}

// check fails if an invariant inside the index does not hold: each linked entry
// is in the one right bucket, siblings ascend and point back at each other.
func check(t testing.TB, x *Index) {
	t.Helper()
	inTable := 0
	for i := range x.table.n {
		for id := *x.table.at(i); id != 0; id = x.At(id).chain {
			e := x.At(id)
			if e.state < linked || e.hash != x.hash(e.parent, x.Name(id)) || x.table.bucket(e.hash) != x.table.at(i) {
				t.Fatalf("entry %d is in bucket %d by mistake: %+v", id, i, *e)
			}
			inTable++
		}
	}
	if inTable != x.linked {
		t.Fatalf("%d entries in the table, %d linked", inTable, x.linked)
	}
	for id := uint64(1); id < x.used; id++ {
		of := x.dirs[ID(id)]
		var prev ID
		var order uint64
		n := uint32(0)
		for c := of.first; c != 0; c = x.At(c).next {
			e := x.At(c)
			if e.prev != prev || e.order() <= order || e.parent != ID(id) {
				t.Fatalf("child %d of %d is out of place: %+v", c, id, *e)
			}
			prev, order = c, e.order()
			n++
		}
		if n != of.count || of.end != prev {
			t.Fatalf("entry %d has %d children ending in %d, says %d, %d", id, n, prev, of.count, of.end)
		}
	}
}

// TestModel: after any sequence of operations the index answers as the model
// does. To repeat a failure, set seeds to the one printed.
func TestModel(t *testing.T) {
	seeds := []uint64{1, 2, rand.Uint64()}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			w := &world{t: t, x: New(), m: newModel(), pick: r.IntN}
			for range 400 {
				w.compare(w.step())
			}
		})
	}
}

// FuzzModel is TestModel with choices taken from the input: operations, names
// and targets are all bytes of it.
func FuzzModel(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add([]byte("link, rename, unlink, free and link again"))
	f.Add(slices.Repeat([]byte{0, 0, 0, 1, 4, 0, 5, 0, 7, 1, 0, 200}, 20))
	f.Fuzz(func(t *testing.T, in []byte) {
		pick := func(n int) int {
			if len(in) == 0 {
				return 0
			}
			b := int(in[0])
			in = in[1:]
			return b % n
		}
		w := &world{t: t, x: New(), m: newModel(), pick: pick}
		for i := 0; i < 100 && len(in) > 0; i++ {
			did := w.step()
			left := in // comparing must not eat the input
			w.compare(did)
			in = left
		}
	})
}
