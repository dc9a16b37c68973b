package tcp

import (
	"net"
	"sync"
)

// recordsBytes is more than a chunk takes in records of TLS: 16 KiB each, and 22 bytes around it.
const recordsBytes = chunkSize + 4<<10

// recordBuffers keeps buffers of recordsBytes that no batch uses.
var recordBuffers = sync.Pool{New: func() any { return new([recordsBytes]byte) }}

// batch is the connection below TLS. crypto/tls makes a system call for each record that it sends or receives. A batch sends
// the records of a chunk at once, and, if it is the reader's, receives as many as there are. It has buffers only while it has
// bytes in them or waits for those of a block. The owner of the link alone uses it.
type batch struct {
	*net.TCPConn
	reader  bool
	in, out *[recordsBytes]byte // nil: empty
	r, w    int                 // in[r:w] has come and was not read
	sending int                 // out[:sending] is to be sent
	gathers bool                // Write waits for send
}

// Read implements net.Conn.
func (b *batch) Read(p []byte) (int, error) {
	if !b.reader {
		return b.TCPConn.Read(p)
	}
	if b.in == nil {
		b.in = recordBuffers.Get().(*[recordsBytes]byte)
		n, err := b.TCPConn.Read(b.in[:])
		b.r, b.w = 0, n
		if n == 0 {
			b.drained()
			return 0, err
		}
	}
	n := copy(p, b.in[b.r:b.w])
	if b.r += n; b.r == b.w {
		b.drained()
	}
	return n, nil
}

func (b *batch) drained() {
	recordBuffers.Put(b.in)
	b.in = nil
}

// Write implements net.Conn.
func (b *batch) Write(p []byte) (int, error) {
	if !b.gathers {
		return b.TCPConn.Write(p)
	}
	for rest := p; len(rest) > 0; {
		if b.out == nil {
			b.out = recordBuffers.Get().(*[recordsBytes]byte)
		}
		n := copy(b.out[b.sending:], rest)
		b.sending, rest = b.sending+n, rest[n:]
		if b.sending == len(b.out) {
			if err := b.send(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// send sends what was written.
func (b *batch) send() error {
	if b.out == nil {
		return nil
	}
	_, err := b.TCPConn.Write(b.out[:b.sending])
	recordBuffers.Put(b.out)
	b.out, b.sending = nil, 0
	return err
}
