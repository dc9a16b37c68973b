package index

// Link gives the unlinked entry id a name of 1 to 255 bytes in the linked
// directory parent, as its last child, or in the place and with the cookie of
// an entry that has just lost this name. The caller has checked that parent has
// no child of that name, and that the name contains no slash. Link keeps no
// reference to name.
func (x *Index) Link(id, parent ID, name string) {
	e := x.At(id)
	if e.state != unlinked {
		bug("second name for", id)
	}
	x.attach(id, e, parent, name)
}

// Unlink takes the name of id away. The entry stays, unlinked, until Free. A
// directory must have no children. The caller does not unlink Root.
func (x *Index) Unlink(id ID) {
	e := x.At(id)
	if x.Children(id) != 0 {
		bug("unlink of the directory with children that is", id)
	}
	x.detach(id, e)
}

// Rename moves id, with everything below it, to the given name in parent. It takes the place of an entry
// that had this name until now, as Link does. Else it keeps its place and cookie within its directory, and
// becomes the last child of another one. The rules of Link apply. parent must not be id or below it.
func (x *Index) Rename(id, parent ID, name string) {
	if x.Within(parent, id) {
		bug("rename into itself of", id)
	}
	e, target := x.At(id), x.left
	x.detach(id, e)
	switch {
	case target.of != x.hash(parent, name) || target.parent != parent:
		x.left.of = x.hash(parent, name) // if it stays in its directory
	case target.after == id:
		target.after = x.left.after
		x.left = target
	default:
		x.left = target
	}
	x.attach(id, e, parent, name)
}

// place is where an entry was among its siblings that was detached last.
type place struct {
	parent ID
	of     uint32 // hash of the name
	after  ID     // the sibling before; 0: it was the first
	order  uint64 // its cookie; 0: there is no such entry
}

func (x *Index) attach(id ID, e *Entry, parent ID, name string) {
	dir := x.At(parent)
	if dir.state < linked || !dir.IsDir() {
		bug("child of what is not a linked directory:", parent)
	}
	if len(name) == 0 || len(name) > maxName {
		bug("name of no or over 255 bytes for", id)
	}
	h := x.hash(parent, name)
	if x.find(h, parent, name) != 0 { // cheap: the caller has just looked here
		bug("taken name for", id)
	}
	e.parent = parent
	e.hash = h
	var groups uint8
	e.name, e.nameLen, groups = x.names.put(name)
	e.state = linked + state(groups)
	x.insert(id, e)
	x.linked++

	of := x.dirs[parent]
	if at := x.left; at.order != 0 && at.parent == parent && at.of == h {
		e.setOrder(at.order)
		e.prev = at.after
	} else {
		x.order++
		e.setOrder(x.order)
		e.prev = of.end
	}
	x.left = place{}
	if e.prev != 0 {
		before := x.At(e.prev)
		e.next, before.next = before.next, id
	} else {
		e.next, of.first = of.first, id
	}
	if e.next != 0 {
		x.At(e.next).prev = id
	} else {
		of.end = id
	}
	of.count++
	x.dirs[parent] = of
}

func (x *Index) detach(id ID, e *Entry) {
	if e.state < linked || id == Root {
		bug("unlink of the nameless", id)
	}
	x.left = place{e.parent, e.hash, e.prev, e.order()}
	of := x.dirs[e.parent]
	if e.prev != 0 {
		x.At(e.prev).next = e.next
	} else {
		of.first = e.next
	}
	if e.next != 0 {
		x.At(e.next).prev = e.prev
	} else {
		of.end = e.prev
	}
	if of.count--; of.count > 0 {
		x.dirs[e.parent] = of
	} else {
		delete(x.dirs, e.parent)
	}

	x.remove(id, e)
	x.linked--
	x.names.drop(e.name, e.nameLen)
	e.state = unlinked
	e.parent, e.prev, e.next = 0, 0, 0
	e.name, e.nameLen, e.hash = 0, 0, 0
	e.setOrder(0)
}
