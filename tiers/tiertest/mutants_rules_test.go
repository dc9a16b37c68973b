package tiertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// ruleMutants are mutants of what a tier keeps, reports and makes durable.
var ruleMutants = []mutantRow{
	// What is found.
	{"found without owner", "Find", "want {Seq", func() mutantBug {
		return finding(func(r *Reference, path string, l driver.Located, ok bool) (driver.Located, bool) {
			l.UID = 0
			return l, ok
		})
	}},
	{"found after removal", "Find", "want nothing", func() mutantBug {
		var seen sync.Map
		return finding(func(r *Reference, path string, l driver.Located, ok bool) (driver.Located, bool) {
			if was, has := seen.Load(path); !ok && has {
				return was.(driver.Located), true
			}
			if ok {
				seen.Store(path, l)
			}
			return l, ok
		})
	}},
	{"found in any version", "FindVersion", "it is another version", func() mutantBug {
		return mutantBug{load: func(r *Reference, job *driver.Job) {
			r.Load(withBlocks(job, func(tr *driver.Transfer) { tr.Attrs.Seq = 0 }))
		}}
	}},
	{"found while pending", "FindPending", "Lookup afterwards says pending", func() mutantBug {
		return finding(func(r *Reference, path string, l driver.Located, ok bool) (driver.Located, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			key, err := block.ParseKey(path)
			return l, ok || err == nil && r.mu.storing[key] != nil
		})
	}},
	{"found while asked", "FindAsked", "want nothing", func() mutantBug {
		return finding(func(r *Reference, path string, l driver.Located, ok bool) (driver.Located, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			key, err := block.ParseKey(path)
			return l, ok || err == nil && r.mu.held[key] != nil
		})
	}},

	// Attributes and versions.
	{"attributes forgotten", "Attributes", "with attributes", func() mutantBug {
		return listing(func(held *driver.Held) { held.Attrs = driver.Attrs{Seq: held.Attrs.Seq, Dirs: held.Attrs.Dirs} })
	}},
	{"version forgotten", "Enumerate", "with attributes", func() mutantBug {
		return listing(func(held *driver.Held) { held.Attrs.Seq = 1 << 20 })
	}},
	{"directories forgotten", "Attributes", "want all", func() mutantBug {
		return listing(func(held *driver.Held) { held.Attrs.Dirs = nil })
	}},
	{"directories lent out", "AttributesOwned", "want the first of", func() mutantBug {
		var dirs sync.Map
		return listing(func(held *driver.Held) {
			kept, _ := dirs.LoadOrStore(held.Key, held.Attrs.Dirs)
			held.Attrs.Dirs = kept.([]driver.DirAttrs)
		})
	}},
	{"other version skipped", "Versions", "want [stored]", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			r.Store(withBlocks(job, func(tr *driver.Transfer) { tr.Attrs.Seq = 1 }))
		}}
	}},
	{"version told by its bytes", "VersionsSameBytes", "want [stored]", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			r.Store(withBlocks(job, func(tr *driver.Transfer) { tr.Attrs.Seq = tr.Sum.Sum }))
		}}
	}},
	{"earlier store ends later", "VersionsUnderWay", "want [loaded]", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			if job.Blocks[0].Size < 1000 {
				r.Store(job)
				return
			}
			go func() { // ends when the later store has been done
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_, before := r.Jobs(OpStore)
				_ = r.AwaitDone(ctx, OpStore, before+1)
				r.Store(job)
			}()
		}}
	}},
	{"pending loads as absent", "LoadWhileStoring", "want loaded or", func() mutantBug {
		return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
			for i, o := range res.Outcomes {
				if errors.Is(o.Err, block.ErrPending) {
					res.Outcomes[i] = driver.Outcome{Key: o.Key, Status: driver.Absent}
				}
			}
		})}
	}},
	{"remove overtaken by a store", "RemoveWhileStoring", "want miss", func() mutantBug {
		return mutantBug{remove: func(r *Reference, keys []block.Key) int {
			r.mu.Lock()
			defer r.mu.Unlock()
			count := 0
			for _, key := range keys {
				if e := r.mu.held[key]; e != nil {
					r.mu.drop(e)
					count++
				}
			}
			return count
		}}
	}},
	{"removed store says it is held", "RemoveWhileStoring", "skipped with error <nil>", func() mutantBug {
		return mutantBug{store: editResult((*Reference).Store, forgetReason)}
	}},
	{"checksum not computed", "StoreUnknownSum", "stored with checksum", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			editResult((*Reference).Store, func(res *driver.Result) {
				for i := range res.Outcomes {
					if !job.Blocks[i].Sum.Valid {
						res.Outcomes[i].Sum = block.Checksum{}
					}
				}
			})(r, job)
		}}
	}},
	{"other version is corrupt", "LoadWrongSum", "want [absent]", mismatchIsCorrupt},
	{"other size is corrupt", "LoadWrongSize", "want [absent]", mismatchIsCorrupt},
	{"other version is dropped", "LoadWrongSum", "want [loaded]", func() mutantBug {
		return mutantBug{load: func(r *Reference, job *driver.Job) {
			r.Load(withDone(job, func(res *driver.Result) {
				for _, o := range res.Outcomes {
					if o.Status == driver.Absent {
						r.Remove([]block.Key{o.Key})
					}
				}
				job.Done(res)
			}))
		}}
	}},

	// Recorder.
	{"update does nothing", "UpdateAttributes", "with attributes", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, _ block.Key, _ *driver.Attrs) bool {
			return r.attrsOf(from) != nil
		}}
	}},
	{"update keeps what it is given", "UpdateAttributes", "want the first of", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			ok := r.Update(from, to, a)
			if kept := r.attrsOf(to); kept != nil {
				kept.Dirs = a.Dirs
			}
			return ok
		}}
	}},
	{"update forgets attributes", "UpdateName", "with attributes", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			if kept := r.attrsOf(from); from != to && kept != nil {
				a = kept
			}
			return r.Update(from, to, a)
		}}
	}},
	{"update leaves the old name", "UpdateName", "want miss", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			h := r.copyOf(from)
			ok := r.Update(from, to, a)
			if ok && from != to {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.mu.enter(h)
			}
			return ok
		}}
	}},
	{"update does not replace", "UpdateReplaces", "want hit", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			if from != to && r.copyOf(to) != nil {
				r.Remove([]block.Key{from, to})
				return true
			}
			return r.Update(from, to, a)
		}}
	}},
	{"update overtaken by a store", "UpdateWhileStoring", "renamed to its name", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			r.mu.Lock()
			c := r.mu.storing[to]
			delete(r.mu.storing, to)
			r.mu.Unlock()
			ok := r.Update(from, to, a)
			r.mu.Lock()
			defer r.mu.Unlock()
			if c != nil {
				r.mu.storing[to] = c
			}
			return ok
		}}
	}},
	{"update of nothing succeeds", "UpdateUnknown", "got true, want false", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			r.Update(from, to, a)
			return true
		}}
	}},
	{"update stays under the old name", "UpdateLongName", "want miss", func() mutantBug {
		return mutantBug{update: func(r *Reference, from, to block.Key, a *driver.Attrs) bool {
			return len(to.Path()) < 1000 && r.Update(from, to, a)
		}}
	}},
	{"wrong bytes under a new name", "UpdateWhileLoading", "wrong bytes", func() mutantBug {
		return mutantBug{load: loadedEach(func(tr driver.Transfer) {
			if tr.Key.Group == "" {
				_, _ = tr.File.WriteAt([]byte("xyz"), 0)
			}
		})}
	}},

	// Host.
	{"leave not asked", "HostAsked", "want hit", func() mutantBug {
		return mutantBug{host: func(*Reference, driver.Host) driver.Host { return nil }}
	}},
	{"veto ignored", "HostVeto", "want hit", func() mutantBug {
		return mutantBug{host: func(_ *Reference, host driver.Host) driver.Host {
			return mutantHost{Host: host, mayEvict: func(key block.Key) bool { return host.MayEvict(key) || true }}
		}}
	}},
	{"leave not used", "HostAsked", notGone, func() mutantBug {
		return mutantBug{host: func(_ *Reference, host driver.Host) driver.Host {
			var mu sync.Mutex
			n := 0
			return mutantHost{Host: host, mayEvict: func(key block.Key) bool {
				mu.Lock()
				defer mu.Unlock()
				n++
				return host.MayEvict(key) && n%2 == 0
			}}
		}}
	}},
	{"veto fails the store", "HostVetoAll", "want [stored skipped]", func() mutantBug {
		return mutantBug{store: editResult((*Reference).Store, func(res *driver.Result) {
			for i := range res.Outcomes {
				if errors.Is(res.Outcomes[i].Err, block.ErrNoSpace) {
					res.Outcomes[i].Status = driver.Failed
				}
			}
		})}
	}},
	{"copy that goes relied on", "HostStore", "want hit", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			r.mu.Lock()
			e := r.mu.held[job.Blocks[0].Key]
			leaving := e != nil && e.Value.(*heldBlock).leaving && len(job.Blocks) == 1
			r.mu.Unlock()
			if !leaving {
				r.Store(job)
				return
			}
			out := []driver.Outcome{{Key: job.Blocks[0].Key, Status: driver.Skipped}}
			go job.Done(&driver.Result{Job: job.ID, Outcomes: out}) // not from within Store
		}}
	}},
	{"lock held at the host", "HostCalls", noResult, func() mutantBug {
		var mu sync.Mutex
		return mutantBug{
			host: func(_ *Reference, host driver.Host) driver.Host {
				return mutantHost{Host: host, mayEvict: func(key block.Key) bool {
					mu.Lock()
					defer mu.Unlock()
					return host.MayEvict(key)
				}}
			},
			touch: func(r *Reference, keys []block.Key) {
				mu.Lock()
				defer mu.Unlock()
				r.Touch(keys)
			},
		}
	}},
	{"removal reported as loss", "HostQuiet", "want neither", func() mutantBug {
		var hosts sync.Map
		return mutantBug{
			host: func(r *Reference, host driver.Host) driver.Host {
				hosts.Store(r, host)
				return host
			},
			remove: func(r *Reference, keys []block.Key) int {
				if host, ok := hosts.Load(r); ok {
					for _, key := range keys {
						host.(driver.Host).Lost(key, block.ErrUnavailable)
					}
				}
				return r.Remove(keys)
			},
		}
	}},
	{"evicted unasked, rarely", "HostParallel", "gave no leave", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			if all := r.oldestFirst(); len(all) >= 8 {
				r.Remove([]block.Key{all[0].key})
			}
			r.Store(job)
		}}
	}},
	{"offline is a miss", "Offline", "Lookup while offline", func() mutantBug {
		return mutantBug{lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			err := r.Lookup(context.Background(), keys, out)
			if errors.Is(err, block.ErrUnavailable) {
				return nil
			}
			return err
		}}
	}},
	{"offline not told", "Offline", notOffline, func() mutantBug {
		return mutantBug{host: func(_ *Reference, host driver.Host) driver.Host {
			return mutantHost{Host: host, lost: func(block.Key, error) {}}
		}}
	}},
	{"lock held at lost", "Corrupt", noResult, func() mutantBug {
		var mu sync.Mutex
		return mutantBug{
			host: func(_ *Reference, host driver.Host) driver.Host {
				return mutantHost{Host: host, lost: func(key block.Key, err error) {
					mu.Lock()
					defer mu.Unlock()
					host.Lost(key, err)
				}}
			},
			lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
				mu.Lock()
				defer mu.Unlock()
				return r.Lookup(context.Background(), keys, out)
			},
		}
	}},
	{"corrupt copy kept", "Corrupt", "want miss", func() mutantBug {
		return mutantBug{load: func(r *Reference, job *driver.Job) {
			r.Load(withDone(job, func(res *driver.Result) {
				for _, o := range res.Outcomes {
					if errors.Is(o.Err, block.ErrCorrupt) {
						r.mu.Lock()
						r.mu.enter(&heldBlock{key: o.Key})
						r.mu.Unlock()
					}
				}
				job.Done(res)
			}))
		}}
	}},
	{"corrupt copy loaded", "Corrupt", "got loaded", func() mutantBug {
		return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
			for i, o := range res.Outcomes {
				if errors.Is(o.Err, block.ErrCorrupt) {
					res.Outcomes[i] = driver.Outcome{Key: o.Key, Status: driver.Loaded}
				}
			}
		})}
	}},

	// Sync.
	{"sync done twice", "Sync", "done called 2 times", func() mutantBug {
		return mutantBug{sync: func(r *Reference, done func(error)) {
			r.Sync(func(err error) {
				done(err)
				done(err)
			})
		}}
	}},
	{"sync done inside", "Sync", fromWithin, func() mutantBug {
		return mutantBug{sync: func(_ *Reference, done func(error)) { done(nil) }}
	}},
	{"one sync at a time", "SyncParallel", notDone, func() mutantBug {
		var busy atomic.Bool
		return mutantBug{sync: func(r *Reference, done func(error)) {
			if busy.CompareAndSwap(false, true) {
				r.Sync(func(err error) {
					busy.Store(false)
					done(err)
				})
			}
		}}
	}},
	{"lock held during sync", "SyncCalls", notDone, func() mutantBug {
		var mu sync.Mutex
		return mutantBug{
			sync: func(r *Reference, done func(error)) {
				r.Sync(func(err error) {
					mu.Lock()
					defer mu.Unlock()
					done(err)
				})
			},
			touch: func(r *Reference, keys []block.Key) {
				mu.Lock()
				defer mu.Unlock()
				r.Touch(keys)
			},
		}
	}},
	{"sync after close succeeds", "SyncClose", "want closed", func() mutantBug {
		return mutantBug{sync: func(r *Reference, done func(error)) {
			r.Sync(func(error) { done(nil) })
		}}
	}},
	{"sync makes nothing durable", "Crash", "want hit", func() mutantBug {
		return mutantBug{sync: func(_ *Reference, done func(error)) { go done(nil) }}
	}},
	{"reopen forgets what was not synced", "Reopen", "want hit", func() mutantBug {
		return mutantBug{close: closeUnsynced}
	}},
	{"reopen forgets updates", "ReopenUpdated", "want miss", func() mutantBug {
		return mutantBug{close: closeUnsynced}
	}},

	{"budget without a reason", "Budget", "skipped with error <nil>", func() mutantBug {
		return mutantBug{store: editResult((*Reference).Store, forgetReason)}
	}},
	{"force ignored", "Budget", "want [stored]", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			job.Force = false
			r.Store(job)
		}}
	}},
}

// listing returns a bug that changes the list of blocks.
func listing(edit func(held *driver.Held)) mutantBug {
	return mutantBug{blocks: func(r *Reference, fn func(*driver.Held) bool) error {
		return r.Blocks(func(held *driver.Held) bool {
			edit(held)
			return fn(held)
		})
	}}
}

// finding changes what is found.
func finding(edit func(r *Reference, path string, l driver.Located, ok bool) (driver.Located, bool)) mutantBug {
	return mutantBug{find: func(r *Reference, path string) (driver.Located, bool) {
		l, ok := r.find(path)
		return edit(r, path, l, ok)
	}}
}

// mismatchIsCorrupt reports another version of a block as a bad copy.
func mismatchIsCorrupt() mutantBug {
	return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
		for i, o := range res.Outcomes {
			if o.Status == driver.Absent {
				err := &block.Error{Op: "load", Key: o.Key, Err: block.ErrCorrupt}
				res.Outcomes[i] = driver.Outcome{Key: o.Key, Err: err}
			}
		}
	})}
}

// mutantHost is a Host with a bug. A nil function leaves the method as it is.
type mutantHost struct {
	driver.Host
	mayEvict func(key block.Key) bool
	lost     func(key block.Key, err error)
}

func (m mutantHost) MayEvict(key block.Key) bool {
	if m.mayEvict != nil {
		return m.mayEvict(key)
	}
	return m.Host.MayEvict(key)
}

func (m mutantHost) Lost(key block.Key, err error) {
	if m.lost != nil {
		m.lost(key, err)
		return
	}
	m.Host.Lost(key, err)
}

// closeUnsynced leaves behind only the synced blocks.
func closeUnsynced(r *Reference, ctx context.Context) error {
	r.mu.Lock()
	synced := r.mu.durable
	r.mu.Unlock()
	err := r.Close(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.durable = synced
	return err
}

// copyOf returns the tier's own record of a block, or nil.
func (r *Reference) copyOf(key block.Key) *heldBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.held[key]; e != nil {
		return e.Value.(*heldBlock)
	}
	return nil
}

// attrsOf returns the tier's own attributes of a block, or nil.
func (r *Reference) attrsOf(key block.Key) *driver.Attrs {
	if h := r.copyOf(key); h != nil {
		return &h.attrs
	}
	return nil
}
