package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// blocks are the blocks of one size in one place.
type blocks struct {
	dir         string
	size, count int

	buffers [][]byte // of threads, with random bytes; they stay for all passes
}

// operation is something that is done to a block. buf has its size.
type operation struct {
	name     string
	anySize  bool // the size does not matter
	rewrites bool // it writes: see maxRewrites
	do       func(b *blocks, i int, buf []byte) error
}

var operations = []operation{
	{name: "write", rewrites: true, do: (*blocks).write},
	{name: "read", do: (*blocks).read},
	{name: "exists", anySize: true, do: (*blocks).exists},
}

func (b *blocks) name(i int) string { return filepath.Join(b.dir, fmt.Sprintf("%016x", i)) }

// write writes block i as engines do: under a temporary name, which is then renamed.
func (b *blocks) write(i int, buf []byte) error {
	name := b.name(i)
	tmp := name + ".tmp"
	fd, err := unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: tmp, Err: err}
	}
	binary.NativeEndian.PutUint64(buf, uint64(i))
	n, err := unix.Write(fd, buf)
	if err == nil && n != b.size {
		err = fmt.Errorf("%d bytes of %d", n, b.size)
	}
	if err = errors.Join(err, unix.Close(fd)); err == nil {
		err = unix.Rename(tmp, name)
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// read reads block i whole, and compares its number.
func (b *blocks) read(i int, buf []byte) error {
	name := b.name(i)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	n, err := unix.Pread(fd, buf, 0)
	if err == nil && (n != b.size || binary.NativeEndian.Uint64(buf) != uint64(i)) {
		err = fmt.Errorf("%d bytes of %d, or wrong ones", n, b.size)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return &os.PathError{Op: "read", Path: name, Err: err}
	}
	return nil
}

// exists asks whether block i is there.
func (b *blocks) exists(i int, _ []byte) error {
	if err := unix.Access(b.name(i), unix.F_OK); err != nil {
		return &os.PathError{Op: "access", Path: b.name(i), Err: err}
	}
	return nil
}

// fill writes all blocks twice and reads them: the first time touches fresh memory, which measures the machine.
func (b *blocks) fill(ctx context.Context) error {
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return err
	}
	src := rand.NewChaCha8([32]byte{})
	for range threads[len(threads)-1] {
		buf := make([]byte, b.size)
		src.Read(buf)
		b.buffers = append(b.buffers, buf)
	}
	for _, do := range []func(int, []byte) error{b.write, b.write, b.read} {
		for i := range b.count {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := do(i, b.buffers[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// pass does an operation for about that long with so many threads, and returns the rate a second.
func (b *blocks) pass(ctx context.Context, op *operation, threads int, each time.Duration) (float64, error) {
	counts, errs := make([]int, threads), make([]error, threads)
	var wg sync.WaitGroup
	began := time.Now()
	for t := range threads {
		wg.Go(func() { // ends after each
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			most := b.count / threads * maxRewrites
			for n := 0; errs[t] == nil && (n == 0 || time.Since(began) < each) && !(op.rewrites && n >= most); n++ {
				if errs[t] = ctx.Err(); errs[t] == nil {
					errs[t] = op.do(b, (n*threads+t)%b.count, b.buffers[t])
				}
				counts[t]++
			}
		})
	}
	wg.Wait()
	all := 0
	for _, n := range counts {
		all += n
	}
	return float64(all) / time.Since(began).Seconds(), errors.Join(errs...)
}

// remove removes the blocks: the next size needs the room.
func (b *blocks) remove() error { return os.RemoveAll(b.dir) }
