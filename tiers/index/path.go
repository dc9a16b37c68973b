package index

import "slices"

// Linked reports whether id has a place in the tree; Root has.
func (x *Index) Linked(id ID) bool { return x.At(id).state >= linked }

// Parent returns the directory of id, 0 for Root and for unlinked entries.
func (x *Index) Parent(id ID) ID { return x.At(id).parent }

// Children returns the number of children of id, 0 for a file.
func (x *Index) Children(id ID) int { return int(x.dirs[id].count) }

// Within reports whether id is dir or below it.
func (x *Index) Within(id, dir ID) bool {
	for id != 0 && id != dir {
		id = x.At(id).parent
	}
	return id != 0
}

// Name returns the name of id in its directory, "" for Root and for unlinked
// entries.
func (x *Index) Name(id ID) string {
	var buf [maxName]byte
	return string(x.names.append(buf[:0], x.At(id)))
}

// Path returns the path of id from Root, as Walk takes it: "" for Root, and
// also for unlinked entries.
func (x *Index) Path(id ID) string { return string(x.AppendPath(nil, id)) }

// AppendPath appends Path(id) to dst and returns the longer slice.
func (x *Index) AppendPath(dst []byte, id ID) []byte {
	n := 0
	for e := x.At(id); e.parent != 0; e = x.At(e.parent) {
		n += len("/") + e.length()
	}
	if n == 0 {
		return dst
	}
	n-- // no slash before the first component
	dst = slices.Grow(dst, n)
	path := dst[len(dst) : len(dst)+n]
	for e := x.At(id); e.parent != 0; e = x.At(e.parent) {
		n -= e.length()
		x.names.append(path[n:n], e)
		if n > 0 {
			n--
			path[n] = '/'
		}
	}
	return dst[:len(dst)+len(path)]
}
