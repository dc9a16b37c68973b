package rdmatest

import (
	"context"
	"errors"
	"hash"
	"os"
	"sync"

	"github.com/kvfs/kvfs/rdma"
)

// register registers content and returns the file too.
func (e *env) register(content []byte) (rdma.Region, *os.File) {
	f := newFile(e, content)
	r, err := e.holder.Register(f, int64(len(content)))
	if err != nil {
		e.Fatalf("register: %v", err)
	}
	if r.Remote().Size != int64(len(content)) || len(r.Remote().Key) > rdma.MaxKey {
		e.Errorf("remote region %+v of %d bytes", r.Remote(), len(content))
	}
	return r, f
}

// read reads a range of r to a new file at off 4096.
func (e *env) read(ctx context.Context, r rdma.RemoteRegion, off, n int64) (*os.File, hash.Hash64, error) {
	f := newFile(e, nil)
	h := newHash()
	var err error
	if hung := e.within(func() error {
		err = e.peer.Read(ctx, r, off, n, rdma.Dest{File: f, Off: 4096, Hash: h})
		return nil
	}); hung != nil {
		e.Fatalf("Read does not return")
	}
	return f, h, err
}

func checkReadRanges(e *env) {
	const size = 3<<20 + 17
	content := pattern(1, size)
	region, _ := e.register(content)
	for _, c := range []struct{ off, n int64 }{
		{0, size}, {0, 0}, {0, 1}, {size, 0}, {size - 1, 1}, {4096, 4096}, {1, 1 << 20}, {12345, 2<<20 + 1},
	} {
		f, h, err := e.read(e.ctx, region.Remote(), c.off, c.n)
		if err != nil {
			e.Errorf("read %d bytes at %d: %v", c.n, c.off, err)
			continue
		}
		want := content[c.off : c.off+c.n]
		if !holds(e, f, 4096, want) || h.Sum64() != checksum(want) {
			e.Errorf("read %d bytes at %d: wrong bytes or hash", c.n, c.off)
		}
		if info, _ := f.Stat(); c.n > 0 && info.Size() != 4096+c.n {
			e.Errorf("read %d bytes at %d: file of %d bytes", c.n, c.off, info.Size())
		}
	}
	for _, c := range []struct{ off, n int64 }{{-1, 1}, {0, -1}, {0, size + 1}, {size, 1}, {1 << 62, 1 << 62}} {
		if _, _, err := e.read(e.ctx, region.Remote(), c.off, c.n); err == nil {
			e.Errorf("read %d bytes at %d of %d: no error", c.n, c.off, size)
		}
	}
	if err := region.Close(); err != nil {
		e.Errorf("close region: %v", err)
	}
}

func checkReadGone(e *env) {
	a, _ := e.register(pattern(1, 10000))
	b, _ := e.register(pattern(2, 10000))
	if string(a.Remote().Key) == string(b.Remote().Key) {
		e.Errorf("two regions with one key")
	}
	a.Close()
	if _, _, err := e.read(e.ctx, a.Remote(), 0, 100); !errors.Is(err, rdma.ErrGone) {
		e.Errorf("read of a closed region: %v", err)
	}
	forged := b.Remote()
	forged.Key = append([]byte{}, forged.Key...)
	forged.Key[0] ^= 1
	for _, key := range [][]byte{forged.Key, nil, []byte("x"), make([]byte, rdma.MaxKey)} {
		forged.Key = key
		if _, _, err := e.read(e.ctx, forged, 0, 100); err == nil {
			e.Errorf("read with key %x: no error", key)
		}
	}
	if _, _, err := e.read(e.ctx, b.Remote(), 0, 100); err != nil {
		e.Errorf("read: %v", err)
	}
	if err := b.Close(); err != nil {
		e.Errorf("close region: %v", err)
	}
	if _, err := e.holder.Register(newFile(e, make([]byte, 10)), 11); err == nil {
		e.Errorf("register 11 bytes of a file of 10: no error")
	}
}

// checkRegionClose shows that Close does not change what was read whole, and that the key of one
// region does not open another one later.
func checkRegionClose(e *env) {
	var keys [][]byte
	for i := range 20 {
		content := pattern(uint64(i), 200_000)
		region, file := e.register(content)
		f, _, err := e.read(e.ctx, region.Remote(), 0, int64(len(content)))
		if err := region.Close(); err != nil {
			e.Errorf("close region: %v", err)
		}
		file.WriteAt(make([]byte, len(content)), 0)
		if err != nil || !holds(e, f, 4096, content) {
			e.Errorf("region %d: wrong bytes (%v)", i, err)
		}
		keys = append(keys, region.Remote().Key)
	}
	for _, key := range keys {
		if _, _, err := e.read(e.ctx, rdma.RemoteRegion{Key: key, Size: 100}, 0, 100); !errors.Is(err, rdma.ErrGone) {
			e.Errorf("read of a closed region: %v", err)
		}
	}
}

// checkRegionCloseDuringRead closes a region during reads and overwrites the file at once: no
// reader may get a byte of the new content without an error.
func checkRegionCloseDuringRead(e *env) {
	const size, readers = 24 << 20, 4
	content := pattern(1, size)
	for range 3 {
		region, file := e.register(content)
		started := make(chan struct{})
		var once sync.Once
		var wg sync.WaitGroup
		for range readers {
			f := newFile(e, nil)
			wg.Go(func() {
				h := &signalHash{Hash64: newHash(), f: func() { once.Do(func() { close(started) }) }}
				err := e.peer.Read(e.ctx, region.Remote(), 0, size, rdma.Dest{File: f, Hash: h})
				once.Do(func() { close(started) })
				if err == nil && !holds(e, f, 0, content) {
					e.Errorf("read bytes from after the region was closed")
				}
				if err != nil && !errors.Is(err, rdma.ErrUnavailable) && !errors.Is(err, rdma.ErrGone) {
					e.Errorf("read cut by closing the region: %v", err)
				}
			})
		}
		<-started
		if err := e.within(region.Close); err != nil {
			e.Fatalf("close region: %v", err)
		}
		file.WriteAt(make([]byte, size), 0)
		if err := e.within(func() error { wg.Wait(); return nil }); err != nil {
			e.Fatalf("reads of a closed region do not return")
		}
	}
}

// signalHash calls f when it is written to.
type signalHash struct {
	hash.Hash64
	f func()
}

// Write implements hash.Hash.
func (s *signalHash) Write(p []byte) (int, error) {
	s.f()
	return s.Hash64.Write(p)
}
