package rdmatest

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// newFile returns a file in memory with these bytes.
func newFile(tb testing.TB, content []byte) *os.File {
	fd, err := unix.MemfdCreate("rdmatest", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatalf("memfd: %v", err)
	}
	f := os.NewFile(uintptr(fd), "rdmatest")
	tb.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(content, 0); err != nil {
		tb.Fatalf("memfd: %v", err)
	}
	return f
}

// pattern returns n bytes that depend on seed, each part different from the others. The race
// detector leaves it out: it would look at each byte.
//
//go:norace
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	return b
}

// pieces are the buffers of holds.
var pieces = sync.Pool{New: func() any { return new([1 << 20]byte) }}

// holds reports whether f has these bytes at off. It reads them in pieces: the race detector makes
// a new large buffer dear.
func holds(tb testing.TB, f *os.File, off int64, content []byte) bool {
	b := pieces.Get().(*[1 << 20]byte)
	defer pieces.Put(b)
	for len(content) > 0 {
		n := min(len(b), len(content))
		if _, err := f.ReadAt(b[:n], off); err != nil {
			tb.Errorf("read %d bytes at %d of what was received: %v", n, off, err)
		}
		if !bytes.Equal(b[:n], content[:n]) {
			return false
		}
		off, content = off+int64(n), content[n:]
	}
	return true
}

// readFile returns n bytes of f at off.
func readFile(tb testing.TB, f *os.File, off int64, n int) []byte {
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil && n > 0 {
		tb.Errorf("read %d bytes at %d of what was received: %v", n, off, err)
	}
	return b
}

// seed is the seed of newHash. A hash of maphash is cheap also with the race detector.
var seed = maphash.MakeSeed()

func newHash() *maphash.Hash {
	h := &maphash.Hash{}
	h.SetSeed(seed)
	return h
}

func checksum(b []byte) uint64 { return maphash.Bytes(seed, b) }

// blockOf is the block of a source under a name.
type blockOf struct {
	header  []byte
	content []byte
	size    int64 // if not that of content
	err     error
	// gate, if not nil, makes Lend wait for it, as long as its context allows.
	gate chan struct{}
}

// source is a Source that counts what it lends.
type source struct {
	tb testing.TB
	mu struct {
		sync.Mutex
		blocks  map[string]blockOf
		files   map[string]*os.File
		lent    int
		back    int
		twice   int // Closes of a block that was back already
		ended   int // Lends whose context ended while they waited
		waiting int // Lends at a gate
	}
}

func newSource(tb testing.TB) *source {
	s := &source{tb: tb}
	s.mu.blocks = map[string]blockOf{}
	s.mu.files = map[string]*os.File{}
	return s
}

// put adds a block.
func (s *source) put(name string, b blockOf) {
	f := newFile(s.tb, b.content)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.blocks[name] = b
	s.mu.files[name] = f
}

// Lend implements rdma.Source.
func (s *source) Lend(ctx context.Context, name []byte) (rdma.Loan, error) {
	s.mu.Lock()
	b, ok := s.mu.blocks[string(name)]
	f := s.mu.files[string(name)]
	s.mu.Unlock()
	switch {
	case !ok:
		return rdma.Loan{}, fmt.Errorf("no %q: %w", name, rdma.ErrGone)
	case b.err != nil:
		return rdma.Loan{}, b.err
	}
	if b.gate != nil {
		s.count(&s.mu.waiting, 1)
		defer s.count(&s.mu.waiting, -1)
		select {
		case <-b.gate:
		case <-ctx.Done():
			s.count(&s.mu.ended, 1)
			return rdma.Loan{}, ctx.Err()
		}
	}
	s.count(&s.mu.lent, 1)
	size := int64(len(b.content))
	if b.size != 0 {
		size = b.size
	}
	closed := false
	return rdma.Loan{Header: b.header, File: f, Size: size, Close: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if closed {
			s.mu.twice++
		}
		closed = true
		s.mu.back++
	}}, nil
}

func (s *source) count(n *int, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n += by
}

func (s *source) get(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *n
}

// settle checks that all loans are back, once each.
func (s *source) settle(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.lent != s.mu.back || s.mu.twice > 0 {
		tb.Errorf("%d blocks lent, %d loans closed, %d of them more than once", s.mu.lent, s.mu.back, s.mu.twice)
	}
}
