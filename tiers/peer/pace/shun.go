package pace

import (
	"sync"
	"sync/atomic"
	"time"
)

const maxShunned = 4096

// Copy is a version of a block at a peer, or the peer.
type Copy struct {
	Hash, Seq uint64 // of the path, and the version; zero: the peer itself
	Peer      string
}

// Shunned has copies, or peers, that are not asked for a while. Its methods may be called in parallel; its lock is a leaf.
type Shunned struct {
	count atomic.Int64
	mu    struct {
		sync.Mutex
		until map[Copy]time.Time
	}
}

// NewShunned returns an empty Shunned.
func NewShunned() *Shunned {
	x := &Shunned{}
	x.mu.until = make(map[Copy]time.Time)
	return x
}

// Any reports whether there are any.
func (x *Shunned) Any() bool { return x.count.Load() > 0 }

// Add enters a copy until a time. Beyond 4,096 others go before theirs.
func (x *Shunned) Add(k Copy, until time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for old := range x.mu.until {
		if len(x.mu.until) < maxShunned {
			break
		}
		delete(x.mu.until, old)
	}
	x.mu.until[k] = until
	x.count.Store(int64(len(x.mu.until)))
}

// Drop takes a copy out.
func (x *Shunned) Drop(k Copy) {
	if !x.Any() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.mu.until, k)
	x.count.Store(int64(len(x.mu.until)))
}

// Has reports whether a copy is not to be asked.
func (x *Shunned) Has(k Copy, now time.Time) bool {
	if !x.Any() {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	until, ok := x.mu.until[k]
	if ok && !until.After(now) {
		delete(x.mu.until, k)
		x.count.Store(int64(len(x.mu.until)))
		return false
	}
	return ok
}
