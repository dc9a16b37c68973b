//go:build ofi && cgo

package fabric

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

const (
	// pieceSize is how many bytes are read, hashed and written at a time through a buffer. A piece
	// stays in the cache of a core until it is written.
	pieceSize = 512 << 10
	// ringPieces is how many pieces a read has: the others come while one is written.
	ringPieces = 4
	ringSize   = ringPieces * pieceSize
	// maxRings bounds the reads that have buffers; others read to the mapping.
	maxRings = 32
	// idleRings is how many buffers are kept for later reads.
	idleRings = 8
)

// rings has the buffers of reads over sockets. They are mapped, because the library keeps their
// addresses. The buffers used last are used first, because the cache still has them.
type rings struct {
	// stuck: an endpoint did not close, and may write to a buffer at any time. No buffer is used
	// again.
	stuck atomic.Bool

	mu struct {
		sync.Mutex
		idle [][]byte
		used int
	}
}

// take returns a buffer, or nil if all are in use.
func (r *rings) take() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.used == maxRings || r.stuck.Load() {
		return nil
	}
	if n := len(r.mu.idle); n > 0 {
		p := r.mu.idle[n-1]
		r.mu.idle = r.mu.idle[:n-1]
		r.mu.used++
		return p
	}
	p, err := unix.MmapPtr(-1, 0, nil, ringSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil
	}
	r.mu.used++
	return unsafe.Slice((*byte)(p), ringSize)
}

// give takes back a buffer that take returned.
func (r *rings) give(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.used--
	switch {
	case r.stuck.Load():
	case len(r.mu.idle) < idleRings:
		r.mu.idle = append(r.mu.idle, p)
	default:
		unmap(p)
	}
}

// close frees the buffers; all have been given back.
func (r *rings) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.idle {
		if !r.stuck.Load() {
			unmap(p)
		}
	}
	r.mu.idle = nil
}

// sink takes the messages of a read with a buffer. Each message goes to its piece of the ring, and
// from there to the file, in order. The reader owns all fields without another comment.
type sink struct {
	pieces []*message
	taken  int // of pieces; the others are in the ring, or have no room in it yet
	dst    rdma.Dest
	at     int64 // offset of the next piece
}

// newSink makes the messages that read n bytes at an address of the peer's memory.
func newSink(ring []byte, n int64, dst rdma.Dest, at, key uint64) *sink {
	s := &sink{dst: dst, at: dst.Off}
	for off := int64(0); off < n; off += pieceSize {
		i := len(s.pieces)
		p := ring[i%ringPieces*pieceSize:][:min(pieceSize, n-off)]
		s.pieces = append(s.pieces, &message{p: p, at: at + uint64(off), key: key, to: s, number: i})
	}
	return s
}

// hasRoom reports whether the piece of that number may begin.
func (s *sink) hasRoom(number int) bool { return number < s.taken+ringPieces }

// write writes the next piece to the file. Its message is over.
func (s *sink) write() error {
	p := s.pieces[s.taken].p
	if s.dst.Hash != nil {
		s.dst.Hash.Write(p)
	}
	if _, err := s.dst.File.WriteAt(p, s.at); err != nil {
		return err
	}
	s.at += int64(len(p))
	s.taken++
	return nil
}

// populate maps the pages of p, which the file has, all at once. Mapping them one by one, at the
// first write, costs several times as much; that happens if the kernel lacks the call.
func populate(p []byte) {
	unix.Madvise(p, unix.MADV_POPULATE_WRITE)
}
