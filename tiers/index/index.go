package index

import (
	"hash/maphash"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Index is the table of entries. The zero value is not usable; call New.
//
// No method may run in parallel with one that changes the index.
type Index struct {
	entries []*entries
	used    uint64 // slots handed out at least once, in ascending order; slot 0 is none
	free    ID     // first of the free entries below used
	table   table
	dirs    map[ID]children // of directories that have some
	expires map[ID]int64    // of files that expire
	due     expiries
	names   names
	seed    maphash.Seed
	linked  int    // entries with a name, so without Root
	order   uint64 // cookie given last: below 2^48, which is 90 years of 100,000 a second
	left    place
}

// New returns an index that holds Root, a directory with mode 0755 and all
// other fields zero.
func New() *Index {
	x := &Index{used: 1, seed: maphash.MakeSeed(), dirs: map[ID]children{}, expires: map[ID]int64{}}
	x.table.init()
	root := x.At(x.Alloc())
	root.state = linked
	root.f.Mode = syscall.S_IFDIR | 0o755
	return x
}

// Len returns the number of linked entries, Root not counted.
func (x *Index) Len() int { return x.linked }

// Bytes returns the memory that the index holds, in bytes, free slots included.
func (x *Index) Bytes() int64 {
	const pointer = int64(unsafe.Sizeof(uintptr(0)))
	n := int64(unsafe.Sizeof(*x))
	n += int64(len(x.entries)) * int64(unsafe.Sizeof(entries{}))
	n += int64(cap(x.entries)) * pointer
	n += int64(len(x.dirs)) * int64(unsafe.Sizeof(ID(0))+unsafe.Sizeof(children{}))
	n += int64(len(x.expires)+cap(x.due)) * int64(unsafe.Sizeof(expiry{}))
	return n + x.table.bytes() + x.names.bytes()
}

// At returns the entry of id. The pointer is valid until Free(id). At panics if
// id is free.
func (x *Index) At(id ID) *Entry {
	if uint64(id) >= x.used {
		bug("use of free", id)
	}
	e := &x.entries[id>>entryBits][id%entryChunk]
	if e.state == free {
		bug("use of free", id)
	}
	return e
}

// Alloc returns a new, unlinked entry with all Fields zero.
func (x *Index) Alloc() ID {
	id := x.free
	if id != 0 {
		e := &x.entries[id>>entryBits][id%entryChunk]
		x.free = e.chain
		*e = Entry{state: unlinked}
		return id
	}
	if x.used > 1<<32-1 {
		bug("no ID left after", ID(x.used-1))
	}
	id = ID(x.used)
	if int(id>>entryBits) == len(x.entries) {
		x.entries = append(x.entries, new(entries))
	}
	x.used++
	x.entries[id>>entryBits][id%entryChunk].state = unlinked
	return id
}

// Free gives an unlinked entry back; Alloc may return its ID again. It panics
// if id is linked.
func (x *Index) Free(id ID) {
	e := x.At(id)
	if e.state != unlinked {
		bug("free of linked", id)
	}
	delete(x.expires, id)
	e.state = free
	e.chain = x.free
	x.free = id
}

// Lookup returns the child of parent called name, or 0. It does not allocate.
func (x *Index) Lookup(parent ID, name string) ID {
	if len(name) == 0 || len(name) > maxName {
		return 0
	}
	return x.find(x.hash(parent, name), parent, name)
}

// find returns the child of parent called name, or 0. h is the hash of both.
func (x *Index) find(h uint32, parent ID, name string) ID {
	id := *x.table.bucket(h)
	for id != 0 {
		e := x.At(id)
		// Comparing the hash first spares the miss on the name's memory.
		if e.hash == h && e.parent == parent && isName(x.names.at(e.name, e.nameLen), e.state.groups(), name) {
			return id
		}
		id = e.chain
	}
	return 0
}

// Walk returns the entry at path, or 0. Components are separated by single
// slashes; the empty path is Root. Empty components match nothing, and "." and
// ".." are ordinary names, so that an entry has one path. Walk does not
// allocate.
func (x *Index) Walk(path string) ID {
	id := Root
	for more := path != ""; more && id != 0; {
		var name string
		name, path, more = strings.Cut(path, "/")
		id = x.Lookup(id, name)
	}
	return id
}

// hash mixes parent and name into 32 bits of which all are good.
func (x *Index) hash(parent ID, name string) uint32 {
	h := maphash.String(x.seed, name) ^ uint64(parent)*0x9e3779b97f4a7c15
	h *= 0xd6e8feb86659fd93
	return uint32(h >> 32)
}

// Hash returns the hash of an entry's parent and name, and 0 for an entry without a name.
func (x *Index) Hash(id ID) uint32 { return x.At(id).hash }

// HashOf returns the Hash that a child of parent called name has, or would have.
func (x *Index) HashOf(parent ID, name string) uint32 { return x.hash(parent, name) }

// bug panics: the caller broke a rule of this package.
func bug(what string, id ID) {
	panic("index: " + what + " entry " + strconv.FormatUint(uint64(id), 10))
}
