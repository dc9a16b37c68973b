package tcp

import (
	"fmt"
	"sync"

	"github.com/kvfs/kvfs/rdma"
)

// chunkSize is how many bytes are received, hashed and written at a time. A chunk fits the cache of
// a core. It is a multiple of the page, so the kernel has nothing to zero.
const chunkSize = 256 << 10

// maxDiscard bounds the bytes that are received and dropped. Beyond it a new connection is cheaper.
const maxDiscard = 1 << 20

// chunks keeps the buffers of calls and answers that have ended.
type chunks struct{ pool sync.Pool }

func (c *chunks) get() []byte {
	if b, ok := c.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, chunkSize)
}

func (c *chunks) put(b []byte) { c.pool.Put(&b) }

// inbox is a buffer of received bytes that are not consumed yet.
type inbox struct {
	buf  []byte
	r, w int // buf[r:w] is filled
}

func (i *inbox) len() int      { return i.w - i.r }
func (i *inbox) bytes() []byte { return i.buf[i.r:i.w] }
func (i *inbox) use(n int)     { i.r += n }

// room makes room for n bytes in all, at most the whole buffer. It moves the bytes to the front if
// it must.
func (i *inbox) room(n int) {
	if i.r == i.w || i.r+n > len(i.buf) {
		i.w = copy(i.buf, i.bytes())
		i.r = 0
	}
}

// need receives until there are n bytes or more; n is at most a chunk.
func (c *conn) need(n int) error {
	if c.in.len() >= n {
		return nil
	}
	c.in.room(n)
	for c.in.len() < n {
		if err := c.armRead(c.stall); err != nil {
			return err
		}
		m, err := c.Conn.Read(c.in.buf[c.in.w:])
		c.in.w += m
		c.heard = c.heard || m > 0
		if err != nil && c.in.len() < n {
			return noEOF(err)
		}
	}
	return nil
}

// receive moves size bytes to dst. refused: dst did not take them, and left bytes are still to
// come. err: the connection broke.
func (c *conn) receive(dst rdma.Dest, size int64) (left int64, refused, err error) {
	left = size
	at := dst.Off
	for left > 0 {
		n := int(min(left, chunkSize))
		if err := c.need(n); err != nil {
			return left, nil, err
		}
		b := c.in.bytes()[:n]
		if dst.Hash != nil {
			dst.Hash.Write(b)
		}
		if _, err := dst.File.WriteAt(b, at); err != nil {
			return left, fmt.Errorf("tcp: write the received bytes: %w", err), nil
		}
		c.in.use(n)
		at += int64(n)
		left -= int64(n)
	}
	return 0, nil, nil
}

// discard receives n bytes and drops them.
func (c *conn) discard(n int64) error {
	for n > 0 {
		if err := c.need(1); err != nil {
			return err
		}
		m := min(n, int64(c.in.len()))
		c.in.use(int(m))
		n -= m
	}
	return nil
}
