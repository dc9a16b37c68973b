package catalog

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// chunkItems is how many items of a list are allocated at once.
const chunkItems = 256

// list numbers items. An item stays where it is in memory until its number is freed. Its owner
// guards it, but at may be called without a lock for an item that is not freed meanwhile.
type list[T any] struct {
	chunks atomic.Pointer[[]atomic.Pointer[chunk[T]]]
	made   uint32   // chunks that have ever been
	live   int      // chunks in memory
	open   []uint32 // chunks with room; the last one is filled first
}

// chunk is a part of a list.
type chunk[T any] struct {
	used  [chunkItems / 64]uint64 // one bit an item
	count int
	items [chunkItems]T
}

// at returns an item that has a number.
func (l *list[T]) at(n uint32) *T { return &l.chunk(n / chunkItems).items[n%chunkItems] }

// chunk returns a chunk, nil if there is none.
func (l *list[T]) chunk(i uint32) *chunk[T] {
	chunks := l.chunks.Load()
	if chunks == nil || i >= uint32(len(*chunks)) {
		return nil
	}
	return (*chunks)[i].Load()
}

// find returns the item of any number, nil if there is none.
func (l *list[T]) find(n uint32) *T {
	c := l.chunk(n / chunkItems)
	if c == nil || c.used[n%chunkItems/64]>>(n%64)&1 == 0 {
		return nil
	}
	return &c.items[n%chunkItems]
}

// add returns the number of a new item, which is zero. ok is false if all numbers below most, a
// multiple of chunkItems, are taken.
func (l *list[T]) add(most uint32) (n uint32, ok bool) {
	if len(l.open) == 0 {
		if l.made*chunkItems >= most {
			return 0, false
		}
		l.extend()
	}
	i := l.open[len(l.open)-1]
	c := l.chunk(i)
	if c == nil {
		c = new(chunk[T])
		(*l.chunks.Load())[i].Store(c)
		l.live++
	}
	word := 0
	for c.used[word] == ^uint64(0) {
		word++
	}
	bit := bits.TrailingZeros64(^c.used[word])
	c.used[word] |= 1 << bit
	if c.count++; c.count == chunkItems {
		l.open = l.open[:len(l.open)-1]
	}
	return i*chunkItems + uint32(word*64+bit), true
}

// extend makes room for another chunk.
func (l *list[T]) extend() {
	old := l.chunks.Load()
	if old == nil || int(l.made) == len(*old) {
		chunks := make([]atomic.Pointer[chunk[T]], max(4, 2*l.made))
		for i := range l.made {
			chunks[i].Store((*old)[i].Load())
		}
		l.chunks.Store(&chunks)
	}
	l.open = append(l.open, l.made)
	l.made++
}

// free gives back a number.
func (l *list[T]) free(n uint32) {
	c := l.chunk(n / chunkItems)
	var zero T
	c.items[n%chunkItems] = zero
	c.used[n%chunkItems/64] &^= 1 << (n % 64)
	if c.count--; c.count == chunkItems-1 {
		l.open = append(l.open, n/chunkItems)
	} else if c.count == 0 && len(l.open) > 1 {
		(*l.chunks.Load())[n/chunkItems].Store(nil)
		l.live--
	}
}

// bytes returns the memory of the list.
func (l *list[T]) bytes() int64 {
	n := int64(l.live)*int64(unsafe.Sizeof(chunk[T]{})) + 4*int64(cap(l.open))
	if chunks := l.chunks.Load(); chunks != nil {
		n += 8 * int64(len(*chunks))
	}
	return n
}
