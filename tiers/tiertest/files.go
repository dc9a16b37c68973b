package tiertest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Files is the smallest driver.Primary: anonymous files. No later process adopts them.
type Files struct {
	Free atomic.Int64 // bytes that FreeBytes returns; 0: more than anybody needs

	mu      sync.Mutex
	last    driver.BlobID
	files   map[driver.BlobID]*os.File
	records map[driver.BlobID]driver.Record
}

var _ driver.Primary = (*Files)(nil)

// Create implements driver.Primary.
func (f *Files) Create() (driver.BlobID, *os.File, error) {
	fd, err := unix.MemfdCreate("kvfs-test", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, nil, os.NewSyscallError("memfd_create", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files == nil {
		f.files, f.records = map[driver.BlobID]*os.File{}, map[driver.BlobID]driver.Record{}
	}
	f.last++
	f.files[f.last] = os.NewFile(uintptr(fd), "memfd")
	file, err := f.openLocked(f.last)
	return f.last, file, err
}

// Open implements driver.Primary.
func (f *Files) Open(b driver.BlobID) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.openLocked(b)
}

func (f *Files) openLocked(b driver.BlobID) (*os.File, error) {
	if f.files[b] == nil {
		return nil, fmt.Errorf("file %d: %w", b, block.ErrNotFound)
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.files[b].Fd()), os.O_RDWR, 0)
}

// Commit implements driver.Primary.
func (f *Files) Commit(b driver.BlobID, _ *os.File, r *driver.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files[b] != nil {
		f.records[b] = *r
	}
	return nil
}

// Uncommit implements driver.Primary.
func (f *Files) Uncommit(b driver.BlobID, _ *os.File) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.records, b)
	return nil
}

// Remove implements driver.Primary.
func (f *Files) Remove(b driver.BlobID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files[b] == nil {
		return fmt.Errorf("file %d: %w", b, block.ErrNotFound)
	}
	delete(f.records, b)
	file := f.files[b]
	delete(f.files, b)
	return file.Close()
}

// Adopt implements driver.Primary.
func (f *Files) Adopt(func(driver.BlobID, *driver.Record, bool) bool) error { return nil }

// FreeBytes implements driver.Primary.
func (f *Files) FreeBytes() (int64, error) {
	if n := f.Free.Load(); n != 0 {
		return n, nil
	}
	return math.MaxInt64 / 2, nil
}

// Close implements driver.Primary.
func (f *Files) Close(bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.files {
		file.Close()
	}
	f.files, f.records = nil, nil
	return nil
}

// Records returns the records that files have.
func (f *Files) Records() map[driver.BlobID]driver.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.records)
}

// Len returns how many files there are.
func (f *Files) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.files)
}
