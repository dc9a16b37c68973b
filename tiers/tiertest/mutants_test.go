package tiertest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// jobMethod is Store or Load of a mutant.
type jobMethod func(*Reference, *driver.Job)

// withDone returns a copy of job with another Done.
func withDone(job *driver.Job, done func(*driver.Result)) *driver.Job {
	inner := *job
	inner.Done = done
	return &inner
}

// withBlocks returns a copy of job whose blocks edit has changed. Its outcomes still have the right
// keys.
func withBlocks(job *driver.Job, edit func(tr *driver.Transfer)) *driver.Job {
	inner := withDone(job, func(res *driver.Result) {
		for i := range res.Outcomes {
			res.Outcomes[i].Key = job.Blocks[i].Key
		}
		job.Done(res)
	})
	inner.Blocks = slices.Clone(job.Blocks)
	for i := range inner.Blocks {
		edit(&inner.Blocks[i])
	}
	return inner
}

// loadedEach returns a Load that calls fn on the file of each block loaded.
func loadedEach(fn func(tr driver.Transfer)) jobMethod {
	return func(r *Reference, job *driver.Job) {
		r.Load(withDone(job, func(res *driver.Result) {
			for i, o := range res.Outcomes {
				if o.Status == driver.Loaded {
					fn(job.Blocks[i])
				}
			}
			job.Done(res)
		}))
	}
}

// editResult returns a method that changes each Result.
func editResult(method jobMethod, edit func(res *driver.Result)) jobMethod {
	return func(r *Reference, job *driver.Job) {
		method(r, withDone(job, func(res *driver.Result) {
			edit(res)
			job.Done(res)
		}))
	}
}

// rekeyed returns a bug that keeps each block under the name fn(name).
func rekeyed(fn func(block.Key) block.Key) mutantBug {
	all := func(keys []block.Key) []block.Key {
		keys = slices.Clone(keys)
		for i := range keys {
			keys[i] = fn(keys[i])
		}
		return keys
	}
	edit := func(tr *driver.Transfer) {
		tr.Key = fn(tr.Key)
	}
	return mutantBug{
		store: func(r *Reference, job *driver.Job) { r.Store(withBlocks(job, edit)) },
		load:  func(r *Reference, job *driver.Job) { r.Load(withBlocks(job, edit)) },
		lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			return r.Lookup(context.Background(), all(keys), out)
		},
		remove: func(r *Reference, keys []block.Key) int { return r.Remove(all(keys)) },
		touch:  func(r *Reference, keys []block.Key) { r.Touch(all(keys)) },
	}
}

// Messages of the suite for a mutant that hangs until the timeout.
const (
	noResult   = "no Result"
	fromWithin = "from within"
	notDone    = "not done within"
	notLost    = "Lost for a corrupt copy"
	notOffline = "Lost for an offline tier"
	notGone    = "eviction of a block with leave"
)

// mutantRow is one mutant, the case of the suite that must detect it, and a part of the message.
type mutantRow struct {
	name, wantCase, wantText string
	bug                      func() mutantBug
}

// mutants are tiers that each break one sentence of the contract, with the case that must detect it
// and a part of the message.
var mutants = []mutantRow{
	// Completion.
	{"no result if all are skipped", "StorePresent", noResult, func() mutantBug { // A32
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			r.Store(withDone(job, func(res *driver.Result) {
				for _, o := range res.Outcomes {
					if o.Status != driver.Skipped {
						job.Done(res)
						return
					}
				}
			}))
		}}
	}},
	{"no result for an empty job", "Empty", noResult, func() mutantBug { // C18
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			if len(job.Blocks) > 0 {
				r.Store(job)
			}
		}}
	}},
	{"no result after close", "AfterClose", noResult, func() mutantBug {
		return mutantBug{load: func(r *Reference, job *driver.Job) {
			if r.Stats().State == "online" {
				r.Load(job)
			}
		}}
	}},
	{"close loses the queue", "CloseCancelled", noResult, func() mutantBug {
		var lost sync.Map
		return mutantBug{
			store: func(r *Reference, job *driver.Job) {
				r.Store(withDone(job, func(res *driver.Result) {
					if _, ok := lost.Load(r); !ok {
						job.Done(res)
					}
				}))
			},
			close: func(r *Reference, ctx context.Context) error {
				lost.Store(r, true)
				return r.Close(ctx)
			},
		}
	}},
	{"done twice", "RoundTrip", "called 2 times", func() mutantBug {
		return mutantBug{load: func(r *Reference, job *driver.Job) {
			r.Load(withDone(job, func(res *driver.Result) {
				job.Done(res)
				job.Done(res)
			}))
		}}
	}},
	{"done inside load of nothing", "Empty", fromWithin, func() mutantBug {
		return mutantBug{load: func(r *Reference, job *driver.Job) {
			if len(job.Blocks) == 0 {
				job.Done(&driver.Result{Job: job.ID})
				return
			}
			r.Load(job)
		}}
	}},
	{"outcomes in reverse", "MixedBatch", "outcome 0 is for", func() mutantBug {
		return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
			slices.Reverse(res.Outcomes)
		})}
	}},
	{"error without a kind", "StoreShortSource", "known kind", func() mutantBug {
		return mutantBug{store: editResult((*Reference).Store, func(res *driver.Result) {
			for i := range res.Outcomes {
				if res.Outcomes[i].Err != nil {
					res.Outcomes[i].Err = errors.New("short read")
				}
			}
		})}
	}},
	{"checksum not reported", "LoadUnknownSum", "checksum", func() mutantBug {
		return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
			for i := range res.Outcomes {
				res.Outcomes[i].Sum = block.Checksum{}
			}
		})}
	}},
	{"lock held during done", "CallsFromDone", noResult, func() mutantBug {
		var mu sync.Mutex
		return mutantBug{
			store: func(r *Reference, job *driver.Job) {
				r.Store(withDone(job, func(res *driver.Result) {
					mu.Lock()
					defer mu.Unlock()
					job.Done(res)
				}))
			},
			lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
				mu.Lock()
				defer mu.Unlock()
				return r.Lookup(context.Background(), keys, out)
			},
		}
	}},

	// Bytes and files.
	{"wrong byte", "RoundTrip", "wrong bytes", func() mutantBug {
		return mutantBug{load: loadedEach(func(tr driver.Transfer) {
			_, _ = tr.File.WriteAt([]byte("xyz"), tr.Size/2)
		})}
	}},
	{"wrong byte, rarely", "ParallelRandom", "wrong bytes", func() mutantBug {
		var mu sync.Mutex
		n := 0
		return mutantBug{load: loadedEach(func(tr driver.Transfer) {
			mu.Lock()
			defer mu.Unlock()
			if n++; n%100 == 0 {
				_, _ = tr.File.WriteAt([]byte("xyz"), tr.Size/2)
			}
		})}
	}},
	{"file longer than the block", "RoundTrip", "wrong bytes", func() mutantBug {
		return mutantBug{load: loadedEach(func(tr driver.Transfer) {
			_ = tr.File.Truncate((tr.Size + 4095) &^ 4095)
		})}
	}},
	{"file kept", "SourceReused", "want [loaded]", func() mutantBug {
		var files sync.Map // reads the source only when a Load asks for it
		return mutantBug{
			store: func(r *Reference, job *driver.Job) {
				for _, tr := range job.Blocks {
					files.Store(tr.Key, tr.File)
				}
				r.Store(job)
			},
			load: func(r *Reference, job *driver.Job) {
				r.Load(withDone(job, func(res *driver.Result) {
					for i, o := range res.Outcomes {
						f, _ := files.Load(o.Key)
						if f == nil || o.Status != driver.Loaded {
							continue
						}
						if _, err := f.(*os.File).ReadAt(make([]byte, job.Blocks[i].Size), 0); err != nil {
							err = &block.Error{Op: "load", Key: o.Key, Err: block.ErrUnavailable}
							res.Outcomes[i] = driver.Outcome{Key: o.Key, Err: err}
						}
					}
					job.Done(res)
				}))
			},
		}
	}},
	{"checksum of the store ignored", "StoreWrongSum", "disagree with the checksum", func() mutantBug {
		forget := func(tr *driver.Transfer) { tr.Sum = block.Checksum{} }
		return mutantBug{
			store: func(r *Reference, job *driver.Job) { r.Store(withBlocks(job, forget)) },
			load:  func(r *Reference, job *driver.Job) { r.Load(withBlocks(job, forget)) },
		}
	}},
	{"wrong byte, if the checksum is unknown", "LoadUnknownSum", "wrong bytes", func() mutantBug {
		return mutantBug{load: loadedEach(func(tr driver.Transfer) {
			if !tr.Sum.Valid {
				_, _ = tr.File.WriteAt([]byte("xyz"), tr.Size/2)
			}
		})}
	}},
	{"checksum of the load ignored", "LoadWrongSum", "another checksum", func() mutantBug {
		forget := func(tr *driver.Transfer) { tr.Sum = block.Checksum{} }
		return mutantBug{load: func(r *Reference, job *driver.Job) { r.Load(withBlocks(job, forget)) }}
	}},
	{"size of the load ignored", "LoadWrongSize", "asks for", func() mutantBug {
		var sizes sync.Map
		return mutantBug{
			store: func(r *Reference, job *driver.Job) {
				for _, tr := range job.Blocks {
					sizes.Store(tr.Key, tr.Size)
				}
				r.Store(job)
			},
			load: func(r *Reference, job *driver.Job) {
				r.Load(withBlocks(job, func(tr *driver.Transfer) {
					if size, ok := sizes.Load(tr.Key); ok {
						tr.Size = size.(int64)
					}
				}))
			},
		}
	}},
	{"short source padded", "StoreShortSource", "ends half way", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			r.Store(withBlocks(job, func(tr *driver.Transfer) {
				if info, err := tr.File.Stat(); err == nil && info.Size() < tr.Size {
					_ = tr.File.Truncate(tr.Size)
					tr.Sum = block.Checksum{}
				}
			}))
		}}
	}},
	{"old bytes after remove", "RemoveThenStore", "wrong bytes", func() mutantBug {
		var cache sync.Map // of loaded bytes, which Remove forgets to clear
		return mutantBug{load: loadedEach(func(tr driver.Transfer) {
			data := make([]byte, tr.Size)
			_, _ = tr.File.ReadAt(data, 0)
			old, _ := cache.LoadOrStore(tr.Key, data)
			_, _ = tr.File.WriteAt(old.([]byte), 0)
		})}
	}},

	// Names.
	{"group forgotten", "Groups", "only \"a/bc\" is stored", func() mutantBug { // C20
		// Without the checksum, which would notice by itself.
		bug := rekeyed(func(k block.Key) block.Key { return block.Key{Hash: k.Hash} })
		load := bug.load
		bug.load = func(r *Reference, job *driver.Job) {
			load(r, withBlocks(job, func(tr *driver.Transfer) { tr.Sum = block.Checksum{} }))
		}
		return bug
	}},
	{"only the last component", "Keys", "want [stored]", func() mutantBug {
		return rekeyed(func(k block.Key) block.Key {
			return block.Key{Group: k.Group, Hash: k.Hash[strings.LastIndexByte(string(k.Hash), '/')+1:]}
		})
	}},
	{"invalid UTF-8 replaced", "Keys", "want [stored]", func() mutantBug {
		return rekeyed(func(k block.Key) block.Key {
			return block.Key{Group: k.Group, Hash: block.Hash(strings.ToValidUTF8(string(k.Hash), "?"))}
		})
	}},
	{"long names cut", "LongKeys", "want stored or ErrNameTooLong", func() mutantBug {
		return rekeyed(func(k block.Key) block.Key {
			return block.Key{Group: k.Group, Hash: k.Hash[:min(len(k.Hash), block.MaxName)]}
		})
	}},

	// Presence.
	{"lengths not compared", "LookupLength", "want invalid argument", func() mutantBug { // A5
		return mutantBug{lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			n := min(len(keys), len(out))
			return r.Lookup(context.Background(), keys[:n], out[:n])
		}}
	}},
	{"answers left over", "LookupLength", "want miss", func() mutantBug {
		return mutantBug{lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			if len(keys) != len(out) {
				return &block.Error{Op: "lookup", Err: block.ErrInvalid}
			}
			return r.Lookup(context.Background(), keys, out)
		}}
	}},
	{"misses not written", "Absent", "want miss", func() mutantBug {
		return mutantBug{lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			before := slices.Clone(out)
			err := r.Lookup(context.Background(), keys, out)
			for i := range out {
				if err == nil && out[i] == driver.Miss {
					out[i] = before[i]
				}
			}
			return err
		}}
	}},
	{"look-up after close", "AfterClose", "want closed", func() mutantBug {
		return mutantBug{lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			if err := r.Lookup(context.Background(), keys, out); !errors.Is(err, block.ErrClosed) {
				return err
			}
			return nil
		}}
	}},
	{"pending is a miss", "PendingWhileStoring", "want pending or hit", func() mutantBug { // A15
		return mutantBug{lookup: func(r *Reference, keys []block.Key, out []driver.Presence) error {
			err := r.Lookup(context.Background(), keys, out)
			for i := range out {
				if out[i] == driver.Pending {
					out[i] = driver.Miss
				}
			}
			return err
		}}
	}},
	{"absent block fails", "Absent", "want [absent]", func() mutantBug {
		return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
			for i, o := range res.Outcomes {
				if o.Status == driver.Absent {
					err := &block.Error{Op: "load", Key: o.Key, Err: block.ErrNotFound}
					res.Outcomes[i] = driver.Outcome{Key: o.Key, Err: err}
				}
			}
		})}
	}},
	{"batch ends at the first absent block", "MixedBatch", "want [loaded]", func() mutantBug {
		return mutantBug{load: editResult((*Reference).Load, func(res *driver.Result) {
			first := slices.IndexFunc(res.Outcomes, func(o driver.Outcome) bool {
				return o.Status == driver.Absent
			})
			for i, o := range res.Outcomes {
				if first >= 0 && i > first {
					res.Outcomes[i] = driver.Outcome{Key: o.Key, Status: driver.Absent}
				}
			}
		})}
	}},
	{"remove does nothing", "Remove", "removed before", func() mutantBug {
		return mutantBug{remove: func(_ *Reference, keys []block.Key) int { return len(keys) }}
	}},
	{"remove counts keys", "Remove", "want 3", func() mutantBug {
		return mutantBug{remove: func(r *Reference, keys []block.Key) int {
			r.Remove(keys)
			return len(keys)
		}}
	}},
	{"enumerator leaves one out", "Enumerate", "did not list", func() mutantBug {
		return mutantBug{blocks: func(r *Reference, fn func(*driver.Held) bool) error {
			first := true
			return r.Blocks(func(held *driver.Held) bool {
				skip := first
				first = false
				return skip || fn(held)
			})
		}}
	}},

	// Capacity.
	{"own batch evicted", "BatchOverCapacity", "evicted by its own batch", func() mutantBug { // A31
		return mutantBug{store: oneByOne}
	}},
	{"own batch evicted, if held", "BatchProtectsHeld", "want [skipped]", func() mutantBug {
		return mutantBug{store: oneByOne}
	}},
	{"held block skipped with a reason", "StorePresent", "want none: the tier holds it", func() mutantBug {
		return mutantBug{store: editResult((*Reference).Store, func(res *driver.Result) {
			for i, o := range res.Outcomes {
				if o.Status == driver.Skipped {
					res.Outcomes[i].Err = &block.Error{Op: "store", Key: o.Key, Err: block.ErrNoSpace}
				}
			}
		})}
	}},
	{"no room is an error", "BatchOverCapacity", "want [stored skipped]", func() mutantBug {
		return mutantBug{store: editResult((*Reference).Store, func(res *driver.Result) {
			for i, o := range res.Outcomes {
				if o.Status == driver.Skipped && o.Err != nil {
					res.Outcomes[i].Status = driver.Failed
				}
			}
		})}
	}},
	{"nothing evicted", "Turnover", "want [stored]", func() mutantBug {
		return mutantBug{store: func(r *Reference, job *driver.Job) {
			if s := r.Stats(); s.UsedBytes == s.CapacityBytes {
				go job.Done(skipAll(job, block.ErrNoSpace))
				return
			}
			r.Store(job)
		}}
	}},
	{"touch forgotten", "LRUTouch", "least recently used", func() mutantBug { // A28
		return mutantBug{touch: func(*Reference, []block.Key) {}}
	}},
	{"touch wrong way round", "LRUTouch", "least recently used", func() mutantBug {
		return mutantBug{touch: func(r *Reference, keys []block.Key) {
			var others []block.Key
			for _, h := range r.oldestFirst() {
				if !slices.Contains(keys, h.key) {
					others = append(others, h.key)
				}
			}
			r.Touch(others)
		}}
	}},
}

// skipAll returns a Result that has no block stored.
func skipAll(job *driver.Job, reason error) *driver.Result {
	res := &driver.Result{Job: job.ID}
	for _, tr := range job.Blocks {
		err := &block.Error{Op: "store", Key: tr.Key, Err: reason}
		res.Outcomes = append(res.Outcomes, driver.Outcome{Key: tr.Key, Status: driver.Skipped, Err: err})
	}
	return res
}

// forgetReason makes every skipped block look held.
func forgetReason(res *driver.Result) {
	for i, o := range res.Outcomes {
		if o.Status == driver.Skipped {
			res.Outcomes[i].Err = nil
		}
	}
}

// oneByOne stores each block of a job in a separate job, so that nothing of the batch is protected.
func oneByOne(r *Reference, job *driver.Job) {
	go func() {
		res := &driver.Result{Job: job.ID}
		for i := range job.Blocks {
			one := make(chan driver.Outcome, 1)
			r.Store(&driver.Job{Blocks: job.Blocks[i : i+1], Done: func(res *driver.Result) {
				one <- res.Outcomes[0]
			}})
			res.Outcomes = append(res.Outcomes, <-one)
		}
		job.Done(res)
	}()
}
