package fs

import (
	"os"
	"sync"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
)

// A file handle number carries its kind in the low two bits. A block that the kernel reads
// itself (the hot path) needs no object: its number is the blob.
const (
	fhBlob    = 0 // passthrough read: blob << 2
	fhHandle  = 1 // entry of handleTable
	fhControl = 2 // control file: entry of handleTable
	fhBits    = 2
	fhMask    = 1<<fhBits - 1
)

// handle is one open file or directory that passes through the daemon or is open for writing.
type handle struct {
	id    index.ID
	write *openfile.Handle // open for writing
	file  *os.File         // reads without passthrough
	// passthrough: blob is registered for this handle.
	passthrough bool
	blob        driver.BlobID

	there   bool   // for writing a file that was there: see Flush
	counted bool   // it holds one of Options.Descriptors
	done    func() // removes the file of the probe
	dir     *dirHandle
	control *control.Handle
}

// handleTable maps numbers to handles.
type handleTable struct {
	mu struct {
		sync.RWMutex // every data request of the fallback path reads
		next         uint64
		table        map[uint64]*handle
	}
}

func (t *handleTable) init() { t.mu.table = map[uint64]*handle{} }

// add returns the file handle number of h.
func (t *handleTable) add(h *handle, kind uint64) uint64 {
	t.mu.Lock()
	t.mu.next++
	n := t.mu.next<<fhBits | kind
	t.mu.table[n] = h
	t.mu.Unlock()
	return n
}

// get returns the handle with a number, or nil.
func (t *handleTable) get(fh uint64) *handle {
	t.mu.RLock()
	h := t.mu.table[fh]
	t.mu.RUnlock()
	return h
}

// take returns the handle and forgets it.
func (t *handleTable) take(fh uint64) *handle {
	t.mu.Lock()
	h := t.mu.table[fh]
	delete(t.mu.table, fh)
	t.mu.Unlock()
	return h
}

// takeAll returns all handles, and forgets them.
func (t *handleTable) takeAll() map[uint64]*handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.mu.table
	t.mu.table = map[uint64]*handle{}
	return all
}
