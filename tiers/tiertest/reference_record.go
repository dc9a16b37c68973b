package tiertest

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// SetHost sets the Host. The tier asks it before evictions, and reports lost blocks to it.
func (r *Reference) SetHost(host driver.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.host = host
}

// tell reports a lost block to the Host, if there is one.
func (r *Reference) tell(host driver.Host, key block.Key, err error) {
	if host != nil {
		host.Lost(key, &block.Error{Op: "keep", Tier: r.opts.Name, Key: key, Err: err})
	}
}

// KeepsUser implements driver.UserKeeper.
func (r *Reference) KeepsUser() {}

// Update gives a block another name and other attributes; see driver.Recorder. A
// name that is too long loses the block.
func (r *Reference) Update(from, to block.Key, a *driver.Attrs) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.mu.held[from]
	if e == nil || r.mu.closed {
		return false
	}
	if from != to {
		r.mu.cancel(to)
		if old := r.mu.held[to]; old != nil {
			r.mu.drop(old)
		}
	}
	if len(to.Path()) > r.opts.MaxKeyBytes {
		r.mu.drop(e)
		return false
	}
	moved := *e.Value.(*heldBlock)
	moved.key, moved.attrs, moved.leaving = to, cloneAttrs(a), false
	e.Value = &moved
	delete(r.mu.held, from)
	r.mu.held[to] = e
	return true
}

// Sync calls done from a worker; see driver.Syncer and Reopen.
func (r *Reference) Sync(done func(error)) { r.submit(&refJob{op: OpSync, synced: done}) }

// sync makes the held blocks durable.
func (r *Reference) sync(*refJob) []driver.Outcome {
	f, _ := r.opts.Faults.next(OpSync, block.Key{})
	if err := r.fault(f); err != nil {
		return []driver.Outcome{r.failed(OpSync, block.Key{}, err)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.durable = r.mu.oldestFirst()
	return []driver.Outcome{{Status: driver.Stored}}
}

// Reopen opens a tier with the same options and with the blocks that outlived this one. If this
// tier is closed, these are all that it held; otherwise those of its last Sync, as after a power
// cut. The caller must close the new one.
func (r *Reference) Reopen() *Reference {
	r.mu.Lock()
	durable := r.mu.durable
	r.mu.Unlock()
	next := OpenReference(r.opts)
	next.mu.Lock()
	defer next.mu.Unlock()
	for _, h := range durable {
		copied := *h
		copied.leaving = false
		next.mu.enter(&copied)
	}
	return next
}

// Finding is a Reference that is a driver.Finder instead of a driver.Enumerator.
type Finding struct {
	*Reference
	Blocks struct{} // hides Reference.Blocks
}

// Find returns what the tier has at a path; see driver.Finder. A directory has the attributes that were kept with the
// latest block below it, and its time.
func (f Finding) Find(path string) (driver.Located, bool) { return f.find(path) }

func (r *Reference) find(path string) (l driver.Located, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, e := range r.mu.held {
		h := e.Value.(*heldBlock)
		at := key.Path()
		switch a := &h.attrs; {
		case h.leaving:
		case at == path:
			return driver.Located{
				Seq: a.Seq, Size: h.size, Mode: unix.S_IFREG | a.Mode, UID: a.UID, GID: a.GID, Mtime: a.Mtime, Expires: a.Expires,
			}, true
		case strings.HasPrefix(at, path+"/") && a.Seq > l.Seq:
			d := driver.DirAttrs{Mode: 0o755}
			if depth := strings.Count(path, "/"); depth < len(a.Dirs) {
				d = a.Dirs[depth]
			}
			l, ok = driver.Located{Seq: a.Seq, Mode: unix.S_IFDIR | d.Mode, UID: d.UID, GID: d.GID, Mtime: a.Mtime}, true
		}
	}
	return l, ok
}
