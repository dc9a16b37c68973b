package index

import "unsafe"

const (
	bucketBits  = 12
	bucketChunk = 1 << bucketBits
)

// table is a linear hash table of chains of entries; see the package comment.
// The caller walks and edits the chains.
//
// INVARIANT: low is a power of two, low <= n < 2*low, and
// len(chunks)*bucketChunk >= n.
type table struct {
	chunks []*[bucketChunk]ID
	n      uint32 // buckets in use
	low    uint32 // bits below it choose the bucket, one more if that bucket exists
}

func (t *table) init() {
	t.chunks = []*[bucketChunk]ID{new([bucketChunk]ID)}
	t.n, t.low = bucketChunk, bucketChunk
}

// bucket returns the head of the chain for hash h.
func (t *table) bucket(h uint32) *ID {
	i := h & (2*t.low - 1)
	if i >= t.n {
		i = h & (t.low - 1)
	}
	return t.at(i)
}

func (t *table) at(i uint32) *ID { return &t.chunks[i>>bucketBits][i%bucketChunk] }

func (t *table) bytes() int64 {
	return int64(len(t.chunks))*bucketChunk*int64(unsafe.Sizeof(ID(0))) +
		int64(cap(t.chunks))*int64(unsafe.Sizeof(uintptr(0)))
}

// insert puts a linked entry into the table. The table grows by a bucket if it has as many entries
// as buckets.
func (x *Index) insert(id ID, e *Entry) {
	if uint64(x.linked) >= uint64(x.table.n) {
		x.split()
	}
	head := x.table.bucket(e.hash)
	e.chain = *head
	*head = id
}

// Reserve makes the table large enough for n entries, at 4 bytes each. This saves most of the work
// of growing before many entries are linked.
func (x *Index) Reserve(n int) {
	for uint64(x.table.n) < uint64(min(n, 1<<30)) {
		x.split()
	}
}

// remove takes a linked entry out of the table.
func (x *Index) remove(id ID, e *Entry) {
	link := x.table.bucket(e.hash)
	for *link != id {
		link = &x.At(*link).chain
	}
	*link = e.chain
	e.chain = 0
}

// split adds bucket n and moves its entries there from the bucket that held them so far.
func (x *Index) split() {
	t := &x.table
	if t.n == 1<<31 { // 2*low would overflow; longer chains from here on
		return
	}
	if int(t.n>>bucketBits) == len(t.chunks) {
		t.chunks = append(t.chunks, new([bucketChunk]ID))
	}
	from, to := t.at(t.n-t.low), t.at(t.n)
	for *from != 0 {
		id := *from
		e := x.At(id)
		if e.hash&(2*t.low-1) != t.n {
			from = &e.chain
			continue
		}
		*from = e.chain
		e.chain = *to
		*to = id
	}
	t.n++
	if t.n == 2*t.low {
		t.low = t.n
	}
}
