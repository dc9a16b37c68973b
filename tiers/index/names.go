package index

import (
	"encoding/binary"
	"unsafe"
)

const (
	maxName     = 255 // bytes; NAME_MAX of Linux
	nameStep    = 16  // bytes between size classes: 8 wasted a name on average
	nameClasses = (maxName + nameStep) / nameStep
	nameBits    = 10 // slots a chunk: 16 KiB in the smallest class, 256 in the largest
	nameChunk   = 1 << nameBits
)

// names is the arena of names. A name is stored in a slot of its size class;
// the entry keeps the slot's number, and the class follows from the length.
type names [nameClasses]class

// class holds the slots of one size.
type class struct {
	chunks [][]byte
	used   uint32 // slots handed out at least once, in ascending order
	free   uint32 // 1 + the first free slot below used; 0: none
}

// classOf returns the class of names of n bytes, and its slot size in bytes.
func classOf(n uint8) (class, size int) {
	class = (int(n) - 1) / nameStep
	return class, (class + 1) * nameStep
}

// at returns the n bytes of the name in slot ref. They are valid until drop.
func (a *names) at(ref uint32, n uint8) []byte {
	if n == 0 {
		return nil
	}
	c, size := classOf(n)
	i := int(ref%nameChunk) * size
	return a[c].chunks[ref>>nameBits][i : i+int(n)]
}

// put stores a name of 1 to 255 bytes and returns its slot.
func (a *names) put(name string) uint32 {
	n := uint8(len(name))
	ref := a.take(n)
	copy(a.at(ref, n), name)
	return ref
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
