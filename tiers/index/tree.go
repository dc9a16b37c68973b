package index

// Link gives the unlinked entry id a name of 1 to 255 bytes in the linked
// directory parent, as its last child. The caller has checked that parent has
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

// Rename moves id, with everything below it, to the given name in parent. It becomes the last child
// there and gets a new cookie, even if parent and name stay the same. The rules of Link apply.
// parent must not be id or below it.
func (x *Index) Rename(id, parent ID, name string) {
	if x.Within(parent, id) {
		bug("rename into itself of", id)
	}
	e := x.At(id)
	x.detach(id, e)
	x.attach(id, e, parent, name)
}

func (x *Index) attach(id ID, e *Entry, parent ID, name string) {
	dir := x.At(parent)
	if dir.state < linked || !dir.isDir() {
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

	x.order++
	e.setOrder(x.order)
	of := x.dirs[parent]
	e.prev, e.next = of.end, 0
	if of.end != 0 {
		x.At(of.end).next = id
	} else {
		of.first = id
	}
	of.end = id
	of.count++
	x.dirs[parent] = of
}

func (x *Index) detach(id ID, e *Entry) {
	if e.state < linked || id == Root {
		bug("unlink of the nameless", id)
	}
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
