//go:build ofi && cgo

package fabric

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// tableSlots is how many words the table of a node has. It bounds the open regions. A process may
// have 65530 mappings by default, and each region takes one.
const tableSlots = 1 << 15

// table tells peers whether a region is still open. Each region has a slot with its token, which is
// random and never used again. Slot 0 has the number of the instance of this node.
type table struct {
	mem  []byte
	mems []memory // by rail

	mu struct {
		sync.Mutex
		free []uint32
		next uint32 // never used from here on
	}
}

func newTable() (*table, error) {
	p, err := unix.MmapPtr(-1, 0, nil, tableSlots*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	b := &table{mem: unsafe.Slice((*byte)(p), tableSlots*8)}
	b.mu.next = 1
	b.word(0).Store(randomWord())
	return b, nil
}

// randomWord returns a number that cannot be guessed, not 0.
func randomWord() uint64 {
	for {
		var b [8]byte
		rand.Read(b[:])
		if n := binary.NativeEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// word is the word of a slot as peers read it: in the byte order of this machine.
func (b *table) word(slot uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.mem[8*slot]))
}

// put finds a slot for a token.
func (b *table) put(token uint64) (uint32, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := b.mu.next
	if n := len(b.mu.free); n > 0 {
		slot, b.mu.free = b.mu.free[n-1], b.mu.free[:n-1]
	} else if b.mu.next++; slot >= tableSlots {
		b.mu.next = tableSlots
		return 0, fmt.Errorf("%w: %d regions are open", rdma.ErrBusy, tableSlots-1)
	}
	b.word(slot).Store(token)
	return slot, nil
}

// drop makes the token of a slot invalid.
func (b *table) drop(slot uint32) {
	b.word(slot).Store(0)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.free = append(b.mu.free, slot)
}

// close ends the registrations and unmaps.
func (b *table) close() error {
	var errs []error
	for _, m := range b.mems {
		errs = append(errs, m.close())
	}
	b.mems = nil
	return errors.Join(append(errs, unmap(b.mem))...)
}

// region implements rdma.Region.
type region struct {
	t      *Transport
	e      *entry // nil: a region of no bytes
	remote rdma.RemoteRegion
	slot   uint32
	once   sync.Once
}

// Register implements rdma.Transport.
func (t *Transport) Register(file *os.File, size int64) (rdma.Region, error) {
	if err := t.enter(); err != nil {
		return nil, fmt.Errorf("fabric: register: %w", err)
	}
	defer t.calls.Done()
	r := &region{t: t}
	key := regionKey{token: randomWord(), spots: make([]spot, len(t.rails))}
	if size != 0 {
		var err error
		if r.e, err = t.cache.acquire(file, size); err != nil {
			return nil, fmt.Errorf("fabric: register: %w", err)
		}
		for i, m := range r.e.mems {
			key.spots[i] = t.rails[i].spotOf(r.e.mem, m)
		}
	}
	var err error
	if r.slot, err = t.table.put(key.token); err != nil {
		if r.e != nil {
			t.cache.release(r.e)
		}
		return nil, fmt.Errorf("fabric: register: %w", err)
	}
	key.slot = r.slot
	r.remote = rdma.RemoteRegion{Key: key.encode(), Size: size}
	t.mu.Lock()
	t.mu.regions[r] = struct{}{}
	t.mu.Unlock()
	return r, nil
}

// Remote implements rdma.Region.
func (r *region) Remote() rdma.RemoteRegion { return r.remote }

// Close implements rdma.Region. It changes the region's word first: a peer that reads the bytes
// after that learns it from the word, however long they stay registered.
func (r *region) Close() error {
	r.once.Do(func() {
		r.t.table.drop(r.slot)
		if r.e != nil {
			r.t.cache.release(r.e)
		}
		r.t.mu.Lock()
		delete(r.t.mu.regions, r)
		r.t.mu.Unlock()
	})
	return nil
}
