package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// readTo reads n bytes at off of r to the destination of w, and stores the result in w.
func (e *env) readTo(ctx context.Context, p rdma.Peer, r rdma.RemoteRegion, off, n int64, w *want) {
	w.size = n
	if w.name == "" {
		w.name = fmt.Sprintf("read of %d bytes at %d", n, off)
	}
	dst := w.dest(e)
	done := make(chan error, 1)
	go func() { done <- p.Read(ctx, r, off, n, dst) }() // ends with Read; if that hangs, the test has failed anyway
	select {
	case w.err = <-done:
	case <-time.After(patience):
		e.Errorf("%s does not return", w.name)
		w.err = errHangs
	}
}

// errHangs stands for the result of a call that does not return.
var errHangs = errors.New("does not return")

// refused reports whether err is one of the ways in which a read may be refused.
func refused(err error) bool {
	return errors.Is(err, rdma.ErrGone) || errors.Is(err, rdma.ErrProtocol) || errors.Is(err, rdma.ErrUnavailable)
}

// recovers shows that p can read r after an event that may have cost its connection.
func (e *env) recovers(p rdma.Peer, r rdma.RemoteRegion, content []byte) {
	e.Helper()
	var w *want
	e.await("reads to work again", func() bool {
		if w != nil {
			w.file.Close()
		}
		w = &want{}
		e.readTo(e.ctx, p, r, 0, int64(len(content)), w)
		return !errors.Is(w.err, rdma.ErrUnavailable)
	})
	w.holds(e, content)
}

// closeRegion closes r, which must return.
func (e *env) closeRegion(r rdma.Region) {
	e.Helper()
	if err := e.within(r.Close); err != nil {
		e.Errorf("close region: %v", err)
	}
}

// checkReadSizes reads into the middle of files, and checks the bytes around.
func checkReadSizes(e *env) {
	sizes := []int{0, 1, 4095, 4096, 4097, 64 << 10, 256<<10 - 1, 1 << 20, 16<<20 + 1}
	if m := e.holder.Caps().MaxMessage; m > 1 && m <= large {
		sizes = append(sizes, int(m)-1, int(m), int(m)+1, 2*int(m)+17)
	}
	for i, n := range sizes {
		content := pattern(uint64(i), n)
		region, _ := e.register(content)
		for _, off := range []int64{0, 1, 8192, 12345} {
			w := &want{off: off}
			e.readTo(e.ctx, e.peer, region.Remote(), 0, int64(n), w)
			w.holds(e, content)
			w.file.Close()
		}
		e.closeRegion(region)
	}
}

// checkReadPieces reads pieces of one region, with common pages, to one file at a time.
func checkReadPieces(e *env) {
	const pieces, length = 64, 50_001
	content := pattern(3, pieces*length)
	region, _ := e.register(content)
	f := newFile(e, nil)
	other := e.connect(e.holder)
	var wg sync.WaitGroup
	for i := range pieces {
		wg.Go(func() {
			off := int64(i * length)
			dst := rdma.Dest{File: f, Off: off}
			if err := []rdma.Peer{e.peer, other}[i%2].Read(e.ctx, region.Remote(), off, length, dst); err != nil {
				e.Errorf("read of piece %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if !holds(e, f, 0, content) {
		e.Errorf("wrong bytes of %d pieces", pieces)
	}
	if info, err := f.Stat(); err != nil || info.Size() != int64(len(content)) {
		e.Errorf("file of %d bytes, want %d (%v)", info.Size(), len(content), err)
	}
	e.closeRegion(region)
}

// checkReadMany has many regions and many reads at a time.
func checkReadMany(e *env) {
	const count, workers, rounds = 200, 32, 4
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	var regions []rdma.Region
	var contents [][]byte
	for i := range count {
		contents = append(contents, pattern(uint64(i), 1+i*503))
		region, _ := e.register(contents[i])
		regions = append(regions, region)
	}
	other := e.connect(e.holder)
	var wg sync.WaitGroup
	for worker := range workers {
		rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			for range rounds {
				i := rnd.IntN(count)
				off := rnd.IntN(len(contents[i]))
				n := rnd.IntN(len(contents[i]) - off + 1)
				w := &want{off: int64(rnd.IntN(10_000))}
				e.readTo(e.ctx, []rdma.Peer{e.peer, other}[rnd.IntN(2)], regions[i].Remote(), int64(off), int64(n), w)
				w.holds(e, contents[i][off:off+n])
				w.file.Close()
			}
		})
	}
	wg.Wait()
	for _, r := range regions {
		e.closeRegion(r)
	}
}

// checkRegionsOfOneFile registers a file twice: the registrations are independent.
func checkRegionsOfOneFile(e *env) {
	content := pattern(1, 300_000)
	a, f := e.register(content)
	b, err := e.holder.Register(f, 200_000)
	if err != nil {
		e.Fatalf("register a file that is registered: %v", err)
	}
	beside, _ := e.register(pattern(2, 1000))
	e.recovers(e.peer, a.Remote(), content)
	e.recovers(e.peer, b.Remote(), content[:200_000])
	e.closeRegion(a)
	e.recovers(e.peer, b.Remote(), content[:200_000])
	e.recovers(e.peer, beside.Remote(), pattern(2, 1000))
	again, err := e.holder.Register(f, int64(len(content)))
	if err != nil {
		e.Fatalf("register a file again: %v", err)
	}
	e.closeRegion(b)
	e.recovers(e.peer, again.Remote(), content)
	e.closeRegion(again)
	e.recovers(e.peer, beside.Remote(), pattern(2, 1000))
	e.closeRegion(beside)
}

// checkReadBadKeys reads with keys that were never given out.
func checkReadBadKeys(e *env) {
	content := pattern(1, 50_000)
	region, _ := e.register(content)
	other, _ := e.register(pattern(2, 50_000))
	good := region.Remote()
	if bytes.Equal(good.Key, other.Remote().Key) {
		e.Errorf("two regions with one key")
	}
	rnd := pattern(5, rdma.MaxKey+1)
	keys := [][]byte{nil, good.Key[:1], good.Key[:len(good.Key)/2], good.Key[:len(good.Key)-1], append(bytes.Clone(good.Key), 0)}
	for _, n := range []int{1, 4, 7, 8, 16, 24, 32, 64, 255, 256, rdma.MaxKey, rdma.MaxKey + 1} {
		keys = append(keys, rnd[:n], make([]byte, n), bytes.Repeat([]byte{0xff}, n))
	}
	if len(good.Key) <= len(rnd) {
		keys = append(keys, rnd[:len(good.Key)])
	}
	for _, key := range keys {
		w := &want{name: fmt.Sprintf("read with key %x", key)}
		e.readTo(e.ctx, e.peer, rdma.RemoteRegion{Key: key, Size: good.Size}, 0, 100, w)
		if w.err == nil {
			e.Errorf("%s: no error", w.name)
		}
		w.file.Close()
	}
	e.recovers(e.peer, good, content)
	e.nearlyRight(good, content)
	e.recovers(e.peer, other.Remote(), pattern(2, 50_000))
	e.closeRegion(region)
	e.closeRegion(other)
	if _, err := e.holder.Register(newFile(e, make([]byte, 10)), 11); err == nil {
		e.Errorf("register 11 bytes of a file of 10: no error")
	}
}

// nearlyRight reads with keys that differ in one bit from a good one. If a part of a key is an
// address, that may get other bytes of the region, but nothing else.
func (e *env) nearlyRight(good rdma.RemoteRegion, content []byte) {
	const most = 16
	for i := 0; i < len(good.Key); i += max(1, len(good.Key)/most) {
		key := bytes.Clone(good.Key)
		key[i] ^= 1 << (i % 8)
		w := &want{name: fmt.Sprintf("read with byte %d of a key changed", i)}
		e.readTo(e.ctx, e.peer, rdma.RemoteRegion{Key: key, Size: good.Size}, 0, 100, w)
		if w.err == nil && !bytes.Contains(content, readFile(e, w.file, 0, 100)) {
			e.Errorf("%s: bytes from elsewhere", w.name)
		}
		w.file.Close()
	}
}

// checkReadStaleKeys shows that the key of a closed region never opens a later one.
func checkReadStaleKeys(e *env) {
	const rounds, size = 40, 100_000
	var stale [][]byte
	for i := range rounds {
		content := pattern(uint64(i), size)
		region, _ := e.register(content)
		for _, key := range stale[max(0, len(stale)-4):] {
			w := &want{name: "read with the key of a closed region"}
			e.readTo(e.ctx, e.peer, rdma.RemoteRegion{Key: key, Size: size}, 0, size, w)
			if !refused(w.err) {
				e.Errorf("%s: %v", w.name, w.err)
			}
			w.file.Close()
		}
		e.recovers(e.peer, region.Remote(), content)
		stale = append(stale, region.Remote().Key)
		e.closeRegion(region)
	}
	for _, key := range stale {
		w := &want{name: "read of a closed region"}
		e.readTo(e.ctx, e.peer, rdma.RemoteRegion{Key: key, Size: size}, 0, 100, w)
		w.fails(e, rdma.ErrGone)
		w.file.Close()
	}
}

// checkReadSizeLies reads with a RemoteRegion whose size is not that of the region, and beyond the size.
func checkReadSizeLies(e *env) {
	const size = 100_003
	content := pattern(1, size)
	region, _ := e.register(content)
	for _, c := range []struct{ size, off, n int64 }{
		{size + 1, 0, size + 1}, {size + 1, size, 1}, {size + 4096, 0, size + 4096}, {size + 1<<20, 4096, size},
		{size + 1<<20, size + 1<<19, 100}, {1 << 62, 1 << 61, 100}, {1 << 62, 1<<62 - 1, 1},
		{100, 0, 101}, {100, 100, 1}, {-1, 0, 1}, {0, 0, 1},
		{size, -1, 1}, {size, 0, -1}, {size, 0, size + 1}, {size, size, 1}, {size, 1 << 62, 1 << 62},
	} {
		w := &want{name: fmt.Sprintf("read of %d bytes at %d, size told as %d", c.n, c.off, c.size)}
		e.readTo(e.ctx, e.peer, rdma.RemoteRegion{Key: region.Remote().Key, Size: c.size}, c.off, c.n, w)
		if w.err == nil {
			e.Errorf("%s: no error", w.name)
		}
		w.file.Close()
	}
	e.recovers(e.peer, region.Remote(), content)
	e.closeRegion(region)
}

// checkReadUnwritable reads to files that cannot take the bytes: an error that is not the peer's, and the
// next read works at once.
func checkReadUnwritable(e *env) {
	content := pattern(1, 3<<20)
	region, _ := e.register(content)
	closed := newFile(e, nil)
	closed.Close()
	files := map[string]*os.File{"read-only": e.readOnly(), "closed": closed, "that may not grow": e.sealed()}
	if f := e.onFullDisk(); f != nil {
		files["on a full file system"] = f
	}
	for name, f := range files {
		err := e.within(func() error {
			return e.peer.Read(e.ctx, region.Remote(), 0, int64(len(content)), rdma.Dest{File: f})
		})
		if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rdma.ErrProtocol) || errors.Is(err, rdma.ErrUnavailable) {
			e.Errorf("read to a file %s: %v, want an error that is not the peer's", name, err)
		}
		w := &want{}
		e.readTo(e.ctx, e.peer, region.Remote(), 0, int64(len(content)), w)
		w.holds(e, content)
		w.file.Close()
	}
	e.closeRegion(region)
}

// readOnly returns a file that is open for reading alone.
func (e *env) readOnly() *os.File {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", newFile(e, nil).Fd()))
	if err != nil {
		e.Fatalf("open read-only: %v", err)
	}
	e.Cleanup(func() { f.Close() })
	return f
}

// sealed returns a file that stays empty.
func (e *env) sealed() *os.File {
	fd, err := unix.MemfdCreate("rdmatest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		e.Fatalf("memfd: %v", err)
	}
	f := os.NewFile(uintptr(fd), "rdmatest")
	e.Cleanup(func() { f.Close() })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err != nil {
		e.Fatalf("seal: %v", err)
	}
	return f
}

// onFullDisk returns a file without a name on a tmpfs of 1 MiB, or nil if mounting is not allowed.
func (e *env) onFullDisk() *os.File {
	dir, err := os.MkdirTemp("", "rdmatest")
	if err != nil {
		e.Fatalf("directory: %v", err)
	}
	defer os.Remove(dir)
	if err := unix.Mount("rdmatest", dir, "tmpfs", 0, "size=1m"); err != nil {
		return nil
	}
	f, err := os.Create(dir + "/f")
	if err := errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
		e.Fatalf("small tmpfs: %v", err)
	}
	e.Cleanup(func() { f.Close() })
	return f
}

// checkReadChurn reads regions while they are closed and their files are written anew and
// registered again, as memory is reused. A successful read has the bytes of the region of its key.
func checkReadChurn(e *env) {
	const files, readers, rounds, size = 4, 6, 40, 200_000
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	var mu sync.Mutex
	now := make([]version, files)
	var churn sync.WaitGroup
	stop := make(chan struct{})
	turns := make(chan struct{}, files) // one after each read: what comes and goes does not crowd out the readers
	for i := range files {
		v, f := e.newVersion(uint64(i), size)
		now[i] = v
		churn.Go(func() { // ends with stop
			for seed := uint64(files + i); ; seed += files {
				select {
				case <-stop:
					e.closeRegion(v.region)
					return
				case <-turns:
				}
				e.closeRegion(v.region)
				next, err := e.renew(f, seed, size)
				if err != nil {
					e.Errorf("register anew: %v", err)
					return
				}
				v = next
				mu.Lock()
				now[i] = v
				mu.Unlock()
			}
		})
	}
	var wg sync.WaitGroup
	for reader := range readers {
		rnd := rand.New(rand.NewPCG(seed, uint64(reader)))
		wg.Go(func() {
			for range rounds {
				mu.Lock()
				v := now[rnd.IntN(files)]
				mu.Unlock()
				w := &want{name: "read of what comes and goes"}
				e.readTo(e.ctx, e.peer, v.region.Remote(), 0, size, w)
				switch {
				case w.err == nil:
					w.holds(e, v.content)
				case !refused(w.err):
					e.Errorf("%s: %v", w.name, w.err)
				}
				w.file.Close()
				select {
				case turns <- struct{}{}:
				default:
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	churn.Wait()
}

// checkReadHeldUp delays a reader after its first bytes until the region is closed and its file is
// written anew. The read fails, or has the bytes of the region.
func checkReadHeldUp(e *env) {
	for _, size := range []int{20_000, 300_000, 2 << 20} {
		v, f := e.newVersion(1, size)
		arrived, renewed := make(chan struct{}), make(chan struct{})
		closed := make(chan struct{})
		go func() { // ends with Close
			defer close(closed)
			<-arrived
			gone := make(chan struct{})
			go func() { // ends with Close
				defer close(gone)
				e.closeRegion(v.region)
			}()
			select {
			case <-gone:
				if _, err := f.WriteAt(pattern(2, size), 0); err != nil {
					e.Errorf("write anew: %v", err)
				}
			case <-time.After(time.Second): // it waits for the reader, as it may
			}
			close(renewed)
			<-gone
		}()
		w := &want{name: fmt.Sprintf("read of %d bytes, held up", size)}
		w.arrived = sync.OnceFunc(func() { close(arrived); <-renewed })
		e.readTo(e.ctx, e.peer, v.region.Remote(), 0, int64(size), w)
		w.arrived() // if no byte has arrived
		<-closed
		switch {
		case w.err == nil:
			w.holds(e, v.content)
		case !refused(w.err):
			e.Errorf("%s: %v", w.name, w.err)
		}
		w.file.Close()
		next, _ := e.register(pattern(3, 1000))
		e.recovers(e.peer, next.Remote(), pattern(3, 1000))
		e.closeRegion(next)
	}
}

// version is the content of a file for a while.
type version struct {
	region  rdma.Region
	content []byte
}

func (e *env) newVersion(seed uint64, size int) (version, *os.File) {
	content := pattern(seed, size)
	region, f := e.register(content)
	return version{region, content}, f
}

// renew writes f anew and registers it.
func (e *env) renew(f *os.File, seed uint64, size int) (version, error) {
	content := pattern(seed, size)
	if _, err := f.WriteAt(content, 0); err != nil {
		return version{}, err
	}
	region, err := e.holder.Register(f, int64(size))
	return version{region, content}, err
}
