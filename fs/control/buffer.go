package control

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	// maxHeld bounds the request buffers of a mount, all descriptors together, in bytes beyond
	// freeHeld each. It has room for the largest request next to all spares.
	maxHeld = 64 << 20
	// freeHeld is what each descriptor may hold beyond maxHeld.
	freeHeld = 64 << 10
	// maxSpares bounds the part of maxHeld that descriptors keep for their next requests: idle
	// descriptors must not keep others from asking.
	maxSpares = maxHeld / 2
	// minBuffer is the smallest buffer for a request.
	minBuffer = 4 << 10
)

// requestMemory counts the buffers of the requests to one mount. The zero value is ready.
type requestMemory struct {
	used atomic.Int64 // bytes beyond freeHeld of each
}

// take counts n bytes more, and reports whether that many were left.
func (m *requestMemory) take(n int64) bool {
	for {
		used := m.used.Load()
		if n > 0 && used+n > maxHeld {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// give gives back n bytes that were taken.
func (m *requestMemory) give(n int64) { m.used.Add(-n) }

// requestBuffer holds the bytes of one descriptor's requests. Its owner guards it.
type requestBuffer struct {
	memory *requestMemory
	bytes  []byte
	held   int64 // taken from memory for bytes
}

// add appends data, and reports whether there was memory for it. While the buffer grows, the
// old and the new bytes both count, because both exist.
func (b *requestBuffer) add(data []byte) bool {
	if need := len(b.bytes) + len(data); need > cap(b.bytes) {
		size := bufferSize(need)
		held := max(int64(size)-freeHeld, 0)
		if !b.memory.take(held) {
			return false
		}
		b.bytes = append(make([]byte, 0, size), b.bytes...)
		b.memory.give(b.held)
		b.held = held
	}
	b.bytes = append(b.bytes, data...)
	return true
}

// bufferSize returns the size of a buffer for need bytes: a power of two, so that a request in
// many small writes is not copied at each.
func bufferSize(need int) int {
	return max(minBuffer, 1<<bits.Len(uint(need-1)))
}

// drop forgets the bytes and gives their memory back.
func (b *requestBuffer) drop() {
	b.memory.give(b.held)
	b.bytes, b.held = nil, 0
}

// empty prepares the buffer for the next request. It keeps its memory, unless that is large.
func (b *requestBuffer) empty() {
	if b.held > 0 && (cap(b.bytes) > maxSpare || b.memory.used.Load() > maxSpares) {
		b.drop()
	}
	b.bytes = b.bytes[:0]
}

// Answers to requests that are refused without being read.
var (
	refusedSize   = fmt.Sprintf("the request has more than %d bytes", maxRequest)
	refusedMemory = fmt.Sprintf("the requests on all descriptors together have more than the %d bytes that a mount has for them; try again", maxHeld)
)
