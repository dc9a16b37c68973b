package policy

const (
	columnBits  = 12
	columnChunk = 1 << columnBits
)

// column is an array of T indexed by block number, in chunks, so that growing
// copies 8 bytes per 4096 elements and not the elements. T has no pointers.
type column[T any] struct {
	chunks []*[columnChunk]T
}

// at returns element i, which grow has made.
func (c *column[T]) at(i uint32) *T { return &c.chunks[i>>columnBits][i%columnChunk] }

// has reports whether element i exists.
func (c *column[T]) has(i uint32) bool {
	return int(i>>columnBits) < len(c.chunks) && c.chunks[i>>columnBits] != nil
}

// grow makes element i, and with it its chunk, if it does not exist. New
// elements are zero.
func (c *column[T]) grow(i uint32) *T {
	chunk := int(i >> columnBits)
	if chunk >= len(c.chunks) {
		c.chunks = append(c.chunks, make([]*[columnChunk]T, chunk+1-len(c.chunks))...)
	}
	if c.chunks[chunk] == nil {
		c.chunks[chunk] = new([columnChunk]T)
	}
	return c.at(i)
}
