// Package lease holds the blocks that peers may read one-sided: each is lent, registered, and given
// back when the peer releases it, when its connection ends, or by time.
package lease

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// Limits of leases. Each lease holds a file open and keeps a block from being evicted.
const (
	Max     = 2048 // of all peers
	MaxConn = 512  // on one connection
)

// PageBytes is the size of a page: memory is registered in whole pages.
const PageBytes = 4096

// lease is a block that a peer may read one-sided.
type lease struct {
	conn    any
	region  rdma.Region
	loan    rdma.Loan
	bytes   int64 // its part of Table.mu.bytes
	expires time.Time
}

// end gives the block back. It waits until nobody reads the block.
func (t *Table) end(l *lease) {
	// A region that fails to close cannot be read any more either.
	_ = l.region.Close()
	l.loan.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.bytes -= l.bytes
}

// Table holds all leases. It ends them without holding its lock. The zero Table is empty. Its methods
// may be called in parallel. A connection is any value that can be a key of a map.
type Table struct {
	abandoned sync.WaitGroup // goroutines of Abandon

	mu struct {
		sync.Mutex
		byID   map[uint64]*lease
		ofConn map[any]int
		held   int   // leases, and places for future ones
		bytes  int64 // registered with the fabric, or reserved for that
	}
}

// Place is room for a future lease of a connection. One of Cancel and Enter ends it.
type Place struct {
	t     *Table
	conn  any
	bytes int64 // of the fabric's memory, reserved by Bytes
}

// Reserve takes a place for a lease of a connection. It returns nil if there is none.
func (t *Table) Reserve(conn any) *Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.byID == nil {
		t.mu.byID, t.mu.ofConn = map[uint64]*lease{}, map[any]int{}
	}
	if t.mu.held >= Max || t.mu.ofConn[conn] >= MaxConn {
		return nil
	}
	t.mu.held++
	t.mu.ofConn[conn]++
	return &Place{t: t, conn: conn}
}

// Bytes reserves room for the memory of a lease over the fabric, of size bytes, more than 0. The room
// of all leases is at most limit bytes. It returns false if there is no room.
func (p *Place) Bytes(size, limit int64) bool {
	n := (size + PageBytes - 1) / PageBytes * PageBytes
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > limit-t.mu.bytes {
		return false
	}
	t.mu.bytes += n
	p.bytes = n
	return true
}

// Cancel gives the place back.
func (p *Place) Cancel() {
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.bytes -= p.bytes
	t.unreserveLocked(p.conn)
}

// Enter makes the place a lease of a loan, which is registered as region. It returns the number of
// the lease, which cannot be guessed. From now on the table closes both.
func (p *Place) Enter(region rdma.Region, loan rdma.Loan, expires time.Time) uint64 {
	t, l := p.t, &lease{conn: p.conn, region: region, loan: loan, bytes: p.bytes, expires: expires}
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		id := rand.Uint64()
		if id != 0 && t.mu.byID[id] == nil {
			t.mu.byID[id] = l
			return id
		}
	}
}

func (t *Table) unreserveLocked(c any) {
	t.mu.held--
	if t.mu.ofConn[c]--; t.mu.ofConn[c] <= 0 {
		delete(t.mu.ofConn, c)
	}
}

// take removes the leases for which fn returns true. The caller ends them.
func (t *Table) take(fn func(l *lease) bool) []*lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*lease
	for id, l := range t.mu.byID {
		if fn(l) {
			list = append(list, l)
			delete(t.mu.byID, id)
			t.unreserveLocked(l.conn)
		}
	}
	return list
}

// Release ends the lease of a connection with this number, if there is one.
func (t *Table) Release(conn any, id uint64) {
	if l := t.takeID(conn, id); l != nil {
		t.end(l)
	}
}

// takeID removes one lease of a connection. It returns nil if there is none.
func (t *Table) takeID(c any, id uint64) *lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.mu.byID[id]
	if l == nil || l.conn != c {
		return nil
	}
	delete(t.mu.byID, id)
	t.unreserveLocked(c)
	return l
}

// Abandon ends the leases of a closed connection.
func (t *Table) Abandon(c any) {
	list := t.take(func(l *lease) bool { return l.conn == c })
	if len(list) == 0 {
		return
	}
	// The goroutine that closes a connection does not wait for this. It ends when the regions
	// are closed, which cuts off their readers.
	t.abandoned.Go(func() { t.endAll(list) })
}

// Close ends all leases and waits until nobody reads their blocks.
func (t *Table) Close() {
	t.endAll(t.take(func(*lease) bool { return true }))
	t.abandoned.Wait()
}

// Expire ends the leases whose time is over, and returns their number.
func (t *Table) Expire(now time.Time) int {
	list := t.take(func(l *lease) bool { return now.After(l.expires) })
	t.endAll(list)
	return len(list)
}

// Held returns how many leases there are, places for future ones included, and how many bytes of the
// fabric's memory they have.
func (t *Table) Held() (leases int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.held, t.mu.bytes
}

func (t *Table) endAll(list []*lease) {
	for _, l := range list {
		t.end(l)
	}
}
