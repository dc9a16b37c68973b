package index

// ReadDir calls fn for the children of dir whose cookie is greater than after,
// in ascending order of cookies, until fn returns false. A cookie is at least 1;
// 0 starts from the first child. fn must not change the index.
//
// To resume, pass the last cookie seen as after and its entry as hint. hint may be 0 or any other
// ID, even a free one. If hint still has that cookie, the scan resumes at once. Otherwise it
// searches for its place from the nearer end of the directory, in time linear in the children
// between. The children may change between two calls. A child that stays, under any name, is seen
// exactly once, and so is a name that is replaced. Any other child that is linked or renamed into dir
// meanwhile is seen later in the scan.
func (x *Index) ReadDir(dir ID, after uint64, hint ID, fn func(id ID, e *Entry, cookie uint64) bool) {
	for id := x.resume(dir, after, hint); id != 0; {
		e := x.At(id)
		if !fn(id, e, e.order()) {
			return
		}
		id = e.next
	}
}

// Last returns the cookie of the last child of dir, 0 if there is none.
func (x *Index) Last(dir ID) uint64 {
	if of := x.dirs[dir]; of.count > 0 {
		return x.At(of.end).order()
	}
	return 0
}

// resume returns the first child of dir with a cookie greater than after.
func (x *Index) resume(dir ID, after uint64, hint ID) ID {
	of := x.dirs[dir]
	if after == 0 || of.count == 0 {
		return of.first
	}
	if hint != 0 && uint64(hint) < x.used {
		e := &x.entries[hint>>entryBits][hint%entryChunk]
		// An equal cookie proves that this is the entry, or has its place. But dir may have lost it.
		if e.state >= linked && e.order() == after && e.parent == dir {
			return e.next
		}
	}
	first, end := x.At(of.first).order(), x.At(of.end).order()
	switch {
	case after < first:
		return of.first
	case after >= end:
		return 0
	case after-first < end-after:
		return x.searchUp(of.first, after)
	}
	return x.searchDown(of.end, after)
}

// searchUp returns the first sibling, from id on, with a cookie greater than after. There must be
// one.
func (x *Index) searchUp(id ID, after uint64) ID {
	for {
		e := x.At(id)
		if e.order() > after {
			return id
		}
		id = e.next
	}
}

// searchDown returns the first sibling with a cookie greater than after. It starts at id, which has
// one, and goes down. A sibling with a lower cookie must exist.
func (x *Index) searchDown(id ID, after uint64) ID {
	for {
		prev := x.At(id).prev
		if x.At(prev).order() <= after {
			return id
		}
		id = prev
	}
}

// Descend calls fn for everything below dir, each directory before what it
// contains, siblings in ascending order of cookies, until fn returns false. fn
// must not change the index. Descend keeps no stack: any depth will do.
func (x *Index) Descend(dir ID, fn func(id ID, e *Entry) bool) {
	id := x.dirs[dir].first
	for id != 0 {
		e := x.At(id)
		if !fn(id, e) {
			return
		}
		if e.IsDir() && x.Children(id) > 0 {
			id = x.dirs[id].first
			continue
		}
		for e.next == 0 && e.parent != dir {
			e = x.At(e.parent)
		}
		id = e.next
	}
}
