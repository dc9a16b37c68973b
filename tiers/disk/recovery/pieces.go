package recovery

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// The reading of whole directories. These limit how many pieces, and of what size, are with the
// kernel or a core at a time.
const (
	pieceBytes   = 4 << 20
	pieceBuffers = 6
	pieceReaders = 4
)

// piece is a part of a file that one read covers.
type piece struct {
	f   *os.File
	off int64  // a multiple of format.PageBytes
	n   int    // bytes wanted, a multiple of format.PageBytes, at most pieceBytes
	buf []byte // the bytes read, shorter if the file ends before

	slab  *Slab  // the slab of the piece, or nil
	first uint32 // slot of the first page of a table, or of the data
	state []pageState
	err   error // of the read

	blocks []checkEntry // blocks in the piece, slot by slot
	part   bool         // the piece holds only a part of blocks[0], which begins at from
	from   int64

	done chan struct{}
	mem  []byte
}

// readPieces reads the pieces that next returns, until it returns nil. It runs check on each piece
// on one of several goroutines, and then use on the caller's, in order. It returns the first error
// of next or use, or of ctx, but only when no read is under way any more. A device that never
// answers therefore blocks it for ever.
func readPieces(ctx context.Context, next func() (*piece, error), check func(*piece), use func(*piece) error) (err error) {
	mem, err := mapMemory(pieceBytes * pieceBuffers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	jobs := make(chan *piece, pieceBuffers)
	var wg sync.WaitGroup
	for range pieceReaders {
		wg.Go(func() { // ends when jobs is closed, below
			for p := range jobs {
				p.buf, p.err = readFull(p.f, p.mem[:p.n], p.off)
				if p.err == nil {
					check(p)
				}
				close(p.done)
			}
		})
	}
	defer wg.Wait()
	defer close(jobs)

	var free [][]byte
	for b := mem; len(b) > 0; b = b[pieceBytes:] {
		free = append(free, b[:pieceBytes:pieceBytes])
	}
	var queue []*piece
	for more := true; ; {
		for more && len(free) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			p, err := next()
			if err != nil {
				return err
			}
			if p == nil {
				more = false
				break
			}
			p.mem, free = free[len(free)-1], free[:len(free)-1]
			p.done = make(chan struct{})
			jobs <- p // never blocks: it has as many places as there are buffers
			queue = append(queue, p)
		}
		if len(queue) == 0 {
			return nil
		}
		p := queue[0]
		queue = queue[1:]
		<-p.done
		if err := use(p); err != nil {
			return err
		}
		free = append(free, p.mem)
	}
}

// mapMemory returns zeroed memory that O_DIRECT accepts.
func mapMemory(bytes int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return mem, nil
}

// readFull reads until buf is full or the file ends. It returns the bytes read, in whole pages.
func readFull(f *os.File, buf []byte, off int64) ([]byte, error) {
	n := 0
	for n < len(buf) {
		m, err := unix.Pread(int(f.Fd()), buf[n:], off+int64(n))
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: f.Name(), Err: err}
		}
		n += m
		if m == 0 || m%format.PageBytes != 0 { // an unaligned end of an O_DIRECT read is the end of the file
			break
		}
	}
	return buf[:n-n%format.PageBytes], nil
}

// writeFull writes all of buf.
func writeFull(f *os.File, buf []byte, off int64) error {
	for len(buf) > 0 {
		n, err := unix.Pwrite(int(f.Fd()), buf, off)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &os.PathError{Op: "write", Path: f.Name(), Err: err}
		}
		buf, off = buf[n:], off+int64(n)
	}
	return nil
}

// openDirect is openFile with O_DIRECT, or without it if the file system has none. These files are
// read and written once, so the page cache would not help.
func (d *Dir) openDirect(name string, flags int) (*os.File, error) {
	f, err := d.openFile(name, flags|unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) {
		return d.openFile(name, flags)
	}
	return f, err
}

// Join returns the path of a file of the directory.
func (d *Dir) Join(name string) string { return filepath.Join(d.path, name) }
