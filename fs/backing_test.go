package fs

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// fakeRegistrar is the kernel's table of backing files. It complains about an
// id that is given back twice.
type fakeRegistrar struct {
	t    *testing.T
	fail syscall.Errno // of register, if not 0

	mu struct {
		sync.Mutex
		next       int32
		registered map[int32]bool
		total      int
	}
}

func newFakeRegistrar(t *testing.T) *fakeRegistrar {
	r := &fakeRegistrar{t: t}
	r.mu.registered = map[int32]bool{}
	return r
}

func (r *fakeRegistrar) Register(fd int) (int32, syscall.Errno) {
	if r.fail != 0 {
		return 0, r.fail
	}
	if fd < 0 {
		r.t.Errorf("registers descriptor %d", fd)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.next++
	r.mu.total++
	r.mu.registered[r.mu.next] = true
	return r.mu.next, 0
}

func (r *fakeRegistrar) Unregister(id int32) syscall.Errno {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.registered[id] {
		r.t.Errorf("id %d is not registered, or unregistered twice", id)
		return syscall.EBADF
	}
	delete(r.mu.registered, id)
	return 0
}

// live returns how many files are registered now.
func (r *fakeRegistrar) live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.registered)
}

func (r *fakeRegistrar) has(id int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.registered[id]
}

// newTestBackings returns a table over a fake kernel; every blob is one and the
// same file.
func newTestBackings(t *testing.T) (*backings, *fakeRegistrar, *os.File) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "blob")
	file, err := os.Create(name)
	must(t, err)
	t.Cleanup(func() { file.Close() })
	reg := newFakeRegistrar(t)
	open := func(driver.BlobID) (*os.File, error) { return os.Open(name) }
	return newBackings(reg, 1, open, zap.NewNop()), reg, file
}

// acquireID acquires a blob or fails the test.
func acquireID(t *testing.T, b *backings, blob driver.BlobID, file *os.File) int32 {
	t.Helper()
	id, err := b.acquire(blob, file)
	must(t, err)
	return id
}

// TestBackingsDrop shows that a dropped blob goes at once if it is idle, with its
// last handle if it is in use, and exactly once.
func TestBackingsDrop(t *testing.T) {
	b, reg, _ := newTestBackings(t)
	idle := acquireID(t, b, 1, nil)
	b.release(1)
	b.drop(1)
	if reg.has(idle) {
		t.Error("idle: still registered after drop")
	}

	used := acquireID(t, b, 2, nil)
	acquireID(t, b, 2, nil)
	b.drop(2)
	b.drop(2)
	if !reg.has(used) {
		t.Error("in use: gone with drop")
	}
	if got := acquireID(t, b, 2, nil); got != used {
		t.Errorf("in use: got id %d, want %d", got, used)
	}
	b.release(2)
	b.release(2)
	if !reg.has(used) {
		t.Error("in use: gone before the last handle")
	}
	b.release(2)
	if reg.has(used) {
		t.Error("still registered after the last handle")
	}

	b.drop(3)    // never registered
	b.release(3) // likewise
	if b.len() != 0 || reg.live() != 0 {
		t.Errorf("left: table of %d, %d registered", b.len(), reg.live())
	}
}

// TestBackingsErrors shows that a failed open or registration leaves nothing
// behind and can be tried again.
func TestBackingsErrors(t *testing.T) {
	b, reg, file := newTestBackings(t)
	whole := b.open
	b.open = func(driver.BlobID) (*os.File, error) { return nil, block.ErrNotFound }
	if _, err := b.acquire(1, nil); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("open fails: got %v", err)
	}
	b.open = whole
	reg.fail = syscall.EPERM
	if _, err := b.acquire(1, file); !errors.Is(err, syscall.EPERM) {
		t.Errorf("registration fails: got %v", err)
	}
	reg.fail = 0
	if b.len() != 0 {
		t.Errorf("table of %d after failures", b.len())
	}
	acquireID(t, b, 1, nil)
}

// TestBackingsIdleBound shows that the files kept for the next open are bounded,
// that the one unused for longest goes first, and that those in use do not
// count.
func TestBackingsIdleBound(t *testing.T) {
	b, reg, file := newTestBackings(t)
	const inUse = 3
	for blob := driver.BlobID(1); blob <= inUse; blob++ {
		acquireID(t, b, blob, file)
	}
	first, last := driver.BlobID(inUse+1), driver.BlobID(inUse+maxIdleBackings)
	for blob := first; blob <= last; blob++ {
		acquireID(t, b, blob, file)
		b.release(blob)
	}
	acquireID(t, b, first, file) // used again: now the last to go
	b.release(first)
	if want := inUse + maxIdleBackings; b.len() != want || reg.mu.total != want {
		t.Fatalf("table of %d, %d registered in all, want %d", b.len(), reg.mu.total, want)
	}
	for blob := last + 1; blob <= last+10; blob++ {
		acquireID(t, b, blob, file)
		b.release(blob)
	}
	if want := inUse + maxIdleBackings; b.len() != want || reg.live() != want {
		t.Errorf("table of %d, %d registered, want %d", b.len(), reg.live(), want)
	}
	for blob, want := range map[driver.BlobID]bool{1: true, inUse: true, first: true, first + 1: false, first + 10: false, first + 11: true, last + 10: true} {
		if got := b.mu.table[blob] != nil; got != want {
			t.Errorf("blob %d: kept is %v, want %v", blob, got, want)
		}
	}
	if got := b.mu.idle.Len(); got != maxIdleBackings {
		t.Errorf("%d idle, want %d", got, maxIdleBackings)
	}
}

// TestBackingsParallel opens, closes and drops few blobs from many goroutines.
// While a handle is open all that open the blob have its id, and at the end
// nothing is registered that the table does not know.
func TestBackingsParallel(t *testing.T) {
	b, reg, file := newTestBackings(t)
	const blobs, openers, rounds = 4, 16, 2000
	var wg sync.WaitGroup
	for g := range openers {
		rnd := rand.New(rand.NewPCG(1, uint64(g)))
		wg.Go(func() {
			for range rounds {
				blob := driver.BlobID(rnd.IntN(blobs) + 1)
				given := file
				if rnd.IntN(2) == 0 {
					given = nil
				}
				id, err := b.acquire(blob, given)
				if err != nil {
					t.Error(err)
					return
				}
				if again, err := b.acquire(blob, given); err != nil || again != id {
					t.Errorf("blob %d: ids %d and %d at one time, %v", blob, id, again, err)
				}
				b.release(blob)
				if !reg.has(id) {
					t.Errorf("blob %d: id %d went while it was in use", blob, id)
				}
				if rnd.IntN(8) == 0 {
					b.drop(blob)
				}
				b.release(blob)
			}
		})
	}
	wg.Wait()
	if b.len() != reg.live() {
		t.Errorf("table of %d, %d registered", b.len(), reg.live())
	}
	for blob := driver.BlobID(1); blob <= blobs; blob++ {
		if e := b.mu.table[blob]; e != nil && (e.refs != 0 || e.idle == nil || e.dropped) {
			t.Errorf("blob %d: left with %+v", blob, *e)
		}
		b.drop(blob)
	}
	if b.len() != 0 || reg.live() != 0 || b.mu.idle.Len() != 0 {
		t.Errorf("after drop: table of %d, %d registered, %d idle", b.len(), reg.live(), b.mu.idle.Len())
	}
}
