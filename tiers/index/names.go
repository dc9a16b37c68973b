package index

import (
	"encoding/binary"
	"unsafe"
)

const (
	maxName     = 255 // bytes; NAME_MAX of Linux
	nameStep    = 4   // bytes between size classes: a free slot holds a number of 4 bytes
	nameClasses = (maxName + nameStep) / nameStep
	nameBits    = 9 // slots a chunk: 2 KiB in the smallest class, 128 in the largest
	nameChunk   = 1 << nameBits
	digits      = 16 // lower-case hexadecimal ones in a group, which is stored as half as many bytes
)

// names is the arena of names. A name is stored in a slot of its size class. The entry keeps the slot's number, the
// bytes in it, which give the class, and how many groups of digits they begin with.
type names [nameClasses]class

// class holds the slots of one size.
type class struct {
	chunks [][]byte
	used   uint32 // slots handed out at least once, in ascending order
	free   uint32 // 1 + the first free slot below used; 0: none
}

// classOf returns the class of names of n bytes, and its slot size in bytes.
func classOf(n uint8) (class, size int) {
	class = int((n - 1) / nameStep)
	return class, (class + 1) * nameStep
}

// at returns the n bytes in slot ref. They are valid until drop.
func (a *names) at(ref uint32, n uint8) []byte {
	if n == 0 {
		return nil
	}
	c, size := classOf(n)
	i := int(ref%nameChunk) * size
	return a[c].chunks[ref>>nameBits][i : i+int(n)]
}

// put stores a name of 1 to 255 bytes and returns its slot, the bytes there, and how many groups they begin with.
func (a *names) put(name string) (ref uint32, n, groups uint8) {
	var buf [maxName]byte
	text := unsafe.Slice(unsafe.StringData(name), len(name))
	for ; len(text) >= digits; text = text[digits:] {
		first, second := binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[digits/2:])
		group := valuesOf(first) | valuesOf(second)<<4
		if a, b := digitsOf(group); a != first || b != second {
			break
		}
		binary.LittleEndian.PutUint64(buf[n:], group)
		n, groups = n+digits/2, groups+1
	}
	n += uint8(copy(buf[n:], text))
	ref = a.take(n)
	copy(a.at(ref, n), buf[:n])
	return ref, n, groups
}

const ones = 0x0101010101010101 // times x is x in each byte

// valuesOf returns the values of eight digits, and any values below 16 of other bytes.
func valuesOf(text uint64) uint64 { return (text&(0xf*ones) + text>>6&ones*9) & (0xf * ones) }

// digitsOf returns the two times eight digits of a group.
func digitsOf(group uint64) (first, second uint64) {
	first, second = group&(0xf*ones), group>>4&(0xf*ones)
	first += '0'*ones + (first+6*ones)>>4&ones*('a'-'0'-10)
	second += '0'*ones + (second+6*ones)>>4&ones*('a'-'0'-10)
	return first, second
}

// isName reports whether stored bytes, which begin with groups, are those of a name.
func isName(stored []byte, groups int, name string) bool {
	packed := groups * digits / 2
	if len(name) != len(stored)+packed || string(stored[packed:]) != name[2*packed:] {
		return false
	}
	from, to := unsafe.Pointer(unsafe.SliceData(stored)), unsafe.Pointer(unsafe.StringData(name))
	var diff uint64 // without branches and checks of bounds: each look-up does this
	for i := 0; i < packed; i += digits / 2 {
		first, second := digitsOf(*(*uint64)(unsafe.Add(from, i)))
		text := (*[2]uint64)(unsafe.Add(to, 2*i))
		diff |= first ^ text[0] | second ^ text[1]
	}
	return diff == 0
}

// append appends the name of an entry to dst.
func (a *names) append(dst []byte, e *Entry) []byte {
	stored := a.at(e.name, e.nameLen)
	for range e.state.groups() {
		first, second := digitsOf(binary.LittleEndian.Uint64(stored))
		dst = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, first), second)
		stored = stored[digits/2:]
	}
	return append(dst, stored...)
}

func (a *names) take(n uint8) uint32 {
	i, size := classOf(n)
	c := &a[i]
	if c.free != 0 {
		ref := c.free - 1
		c.free = binary.NativeEndian.Uint32(a.slot(ref, n))
		return ref
	}
	if int(c.used>>nameBits) == len(c.chunks) {
		c.chunks = append(c.chunks, make([]byte, nameChunk*size))
	}
	c.used++
	return c.used - 1
}

// drop frees the slot of a name of n bytes. The slot itself holds the link to
// the next free one.
func (a *names) drop(ref uint32, n uint8) {
	i, _ := classOf(n)
	c := &a[i]
	binary.NativeEndian.PutUint32(a.slot(ref, n), c.free)
	c.free = ref + 1
}

// slot returns the whole slot that holds a name of n bytes.
func (a *names) slot(ref uint32, n uint8) []byte {
	c, size := classOf(n)
	i := int(ref%nameChunk) * size
	return a[c].chunks[ref>>nameBits][i : i+size]
}

func (a *names) bytes() int64 {
	var n int64
	for i := range a {
		c := &a[i]
		n += int64(len(c.chunks)) * nameChunk * int64(i+1) * nameStep
		n += int64(cap(c.chunks)) * int64(unsafe.Sizeof([]byte(nil)))
	}
	return n
}
