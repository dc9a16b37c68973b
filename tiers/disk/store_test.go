package disk

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestStoreVolatile shows that of a file which changes while it is stored one reading is
// kept, with its checksum: it loads. The file changes at each write of the device, and all
// the time by another writer.
func TestStoreVolatile(t *testing.T) {
	pool := poolOf(t, 64<<10, 0.75)
	for _, small := range []bool{false, true} { // staging smaller than a block of the other path
		r := newRig(t, 1, 64<<20, func(o *Options) {
			if small {
				o.Pool = pool
			}
		})
		for _, size := range []int{100, 60_000, largeBytes - 1, largeBytes, 3<<20 + 77} {
			b := stored{keyOf(fmt.Sprint("volatile", size)), 1, bytesOf(1, size)}
			tr := b.transfer(t)
			tr.Volatile = true
			var n atomic.Uint64
			change := func() {
				if _, err := tr.File.WriteAt(bytesOf(n.Add(1), 50), int64(size)-50); err != nil {
					t.Error(err)
				}
			}
			r.rule(func(c faultio.Call) faultio.Fault {
				if c.Kind == directio.Write {
					change()
				}
				return faultio.Fault{}
			})
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						change()
					}
				}
			})
			o := wait(t, "store", begin(r.Store, false, tr))[0]
			close(stop)
			wg.Wait()
			r.rule(nil)
			wantOutcome(t, o, driver.Stored, nil)
			loaded, data := r.load(t, b.key, int64(size))
			if loaded.Status != driver.Loaded || block.Sum(data) != o.Sum || !slices.Equal(data[:50], b.data[:50]) && size > 100 {
				t.Errorf("%d bytes: loaded as %v (%v), checksum %v, stored with %v", size, loaded.Status, loaded.Err, block.Sum(data), o.Sum)
			}
		}
	}
}

// TestStorePiecesShare shows that a block which goes through staging in pieces keeps to what
// one of several devices has of it.
func TestStorePiecesShare(t *testing.T) {
	pool := poolOf(t, 256<<10, 0.75)
	r := newRig(t, 2, 64<<20, func(o *Options) { o.Pool = pool })
	for i := range 4 {
		b := stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), 500_001)}
		tr := b.transfer(t)
		tr.Volatile = true
		wantOutcome(t, wait(t, "store", begin(r.Store, false, tr))[0], driver.Stored, nil)
		r.mustLoad(t, b)
	}
}

// TestStoreFull shows that a store for which the file system has no space is skipped, and
// that neither this nor an error of the source marks the slot as bad.
func TestStoreFull(t *testing.T) {
	for _, size := range []int{5000, 1 << 20} {
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
			r := newRig(t, 1, 32<<20, nil)
			r.rule(func(c faultio.Call) faultio.Fault {
				if c.Kind == directio.Write && c.Off > 0 {
					return faultio.Fault{Err: errno}
				}
				return faultio.Fault{}
			})
			b := stored{keyOf("full"), 1, bytesOf(1, size)}
			wantOutcome(t, r.store(t, b)[0], driver.Skipped, block.ErrNoSpace)
			r.rule(nil)
			r.mustStore(t, b)
			r.mustLoad(t, b)
			if s := r.Stats(); s.IOErrors != 0 || s.SkippedNoSpace != 1 || s.Detail.(*Detail).Devices[0].QuarantinedSlots != 0 {
				t.Errorf("%d errors, %d skipped, %+v", s.IOErrors, s.SkippedNoSpace, s.Detail.(*Detail).Devices[0])
			}
		}
	}
}

// TestSourceUnreadable shows that what is wrong with the file of a block, here one that is
// open for writing only or none at all, says nothing of the slot.
func TestSourceUnreadable(t *testing.T) {
	r := newRig(t, 1, 32<<20, nil)
	dir, err := os.Open(t.TempDir()) // to read it fails with EISDIR
	must(t, err)
	defer dir.Close()
	for _, size := range []int64{5000, 1 << 20} {
		tr := driver.Transfer{Key: keyOf("unreadable"), Size: size, File: dir, Attrs: driver.Attrs{Seq: 1}}
		if o := wait(t, "store", begin(r.Store, false, tr))[0]; o.Status != driver.Failed || o.Err == nil {
			t.Errorf("%d bytes: got %v (%v), want failed", size, o.Status, o.Err)
		}
	}
	if s := r.Stats(); s.Detail.(*Detail).Devices[0].QuarantinedSlots != 0 || s.State != "online" {
		t.Errorf("status: %+v", s)
	}
}

// TestDestinationFails shows that a block whose file cannot be written, whole or in pieces, is not lost by that: only
// this load fails.
func TestDestinationFails(t *testing.T) {
	r := newRig(t, 1, 32<<20, nil)
	host := r.watch()
	// Nothing is mapped at its start, and so a write fails with EIO.
	mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer mem.Close()
	for _, size := range []int{1 << 20, 8 << 20} {
		b := stored{keyOf(fmt.Sprint("kept", size)), 1, bytesOf(1, size)}
		r.mustStore(t, b)
		tr := driver.Transfer{Key: b.key, Size: int64(size), File: mem}
		wantOutcome(t, wait(t, "load", begin(r.Load, false, tr))[0], driver.Failed, syscall.EIO)
		must(t, host.lossOf(b.key))
		r.mustLoad(t, b)
	}
}

// TestStoreWhileAsked shows that a block which is stored while the Host is asked about it
// is there afterwards, for the copy that is asked about goes (A22).
func TestStoreWhileAsked(t *testing.T) {
	r := newRig(t, 1, 12*minSlabBytes, nil)
	host := newHost()
	var asked atomic.Pointer[block.Key]
	again := make(chan (<-chan []driver.Outcome), 1)
	blocks := numbered(40, 4096)
	host.veto = func(key block.Key) bool {
		if asked.CompareAndSwap(nil, &key) {
			i := slices.IndexFunc(blocks, func(b stored) bool { return b.key == key })
			again <- begin(r.Store, false, blocks[i].transfer(t))
		}
		return false
	}
	r.SetHost(host)
	for _, b := range blocks {
		r.mustStore(t, b)
		if asked.Load() != nil {
			break
		}
	}
	o := wait(t, "the store", wait(t, "a victim", again))[0]
	wantOutcome(t, o, driver.Stored, nil)
	if p := r.presence(t, *asked.Load()); p != driver.Hit {
		t.Errorf("the block that was stored while the Host was asked: %v, want hit", p)
	}
}

// headersOnly returns a rule that does fault to the nth header, from 1, that is written to a
// table, and counts them.
func headersOnly(count *atomic.Int64, n int64, fault faultio.Fault) faultio.Rule {
	return func(c faultio.Call) faultio.Fault {
		if c.Kind == directio.Write && c.Bytes == format.PageBytes && c.Off > 0 && count.Add(1) == n {
			return fault
		}
		return faultio.Fault{}
	}
}

// TestRemoveBeforeHeader shows that the header of a block which was removed while its data
// were written is not written any more: after a crash it would bring the block back.
func TestRemoveBeforeHeader(t *testing.T) {
	for _, size := range []int{50_000, 1 << 20} {
		r := newRig(t, 1, 16<<20, nil)
		b := stored{keyOf("removed"), 5, bytesOf(1, size)}
		r.mustStore(t, stored{keyOf("first"), 1, bytesOf(2, size)}) // so that the slab is there
		var headers atomic.Int64
		r.rule(faultio.First(func(c faultio.Call) faultio.Fault {
			return faultio.Fault{Stuck: c.Kind == directio.Write && c.Bytes > format.PageBytes}
		}, headersOnly(&headers, 0, faultio.Fault{})))
		c := begin(r.Store, false, b.transfer(t))
		eventually(t, "the write", func() bool { return r.engine(0).StuckOps() > 0 })
		r.Remove([]block.Key{b.key})
		r.engine(0).Release()
		wantOutcome(t, wait(t, "store", c)[0], driver.Skipped, block.ErrNotFound)
		must(t, r.sync(t))
		if n := headers.Load(); n != 0 {
			t.Errorf("%d bytes: %d headers written, want none", size, n)
		}
	}
}

// TestSyncAwaitsHeader shows that Sync waits for a header which the kernel has while the
// block is removed, or renamed, until it is replaced: otherwise the block would be back
// after a crash, or have its old name.
func TestSyncAwaitsHeader(t *testing.T) {
	for _, rename := range []bool{false, true} {
		r := newRig(t, 1, 16<<20, func(o *Options) { o.SyncInterval, o.SyncBytes = time.Hour, 1<<30 }) // only what is below syncs
		b, to := stored{keyOf("removed"), 5, bytesOf(1, 50_000)}, keyOf("to")
		r.mustStore(t, stored{keyOf("first"), 1, bytesOf(2, 50_000)})
		must(t, r.sync(t))
		before := r.Stats().Detail.(*Detail).Syncs
		var headers atomic.Int64
		r.rule(headersOnly(&headers, 1, faultio.Fault{Stuck: true}))
		c := begin(r.Store, false, b.transfer(t))
		eventually(t, "the header", func() bool { return r.engine(0).StuckOps() > 0 })
		if rename {
			r.Update(b.key, to, &driver.Attrs{Seq: 5, Mode: 0o600})
		} else {
			r.Remove([]block.Key{b.key})
		}
		synced := make(chan error, 2)
		for range 2 {
			r.Sync(func(err error) { synced <- err })
		}
		d, rounds := r.devices[0], 0
		eventually(t, "a whole round of the keeper", func() bool {
			select {
			case d.keeper.wake <- struct{}{}: // it has begun the round that the last kick asked for
				rounds++
			default:
			}
			return rounds == 3
		})
		for n := range uint64(2) { // unasked; when the second has begun, the first has ended all calls that did not wait
			d.syncer.Wrote(r.opts.SyncBytes)
			eventually(t, "a sync", func() bool { return r.Stats().Detail.(*Detail).Syncs > before+n })
		}
		if len(synced) > 0 {
			t.Error("Sync did not wait for the header")
		}
		r.engine(0).Release()
		for range 2 {
			must(t, wait(t, "Sync", synced))
		}
		next := r.crash(t)
		wait(t, "store", c)
		if p := next.presence(t, b.key); p != driver.Miss {
			t.Errorf("after a crash: %v, want miss", p)
		}
		if rename {
			next.mustLoad(t, stored{to, 5, b.data})
		}
	}
}

// TestSharedAbandoned shows that a store which shares the outcome of one that was given up
// is told why, though it is the worker who ends it.
func TestSharedAbandoned(t *testing.T) {
	for _, c := range []struct {
		name  string
		store func(d *device, f *flight)
	}{
		{"staged", func(d *device, f *flight) { d.storeStaged([]*flight{f}) }}, {"mapped", (*device).storeMapped}, {"pieces", (*device).storePieces},
	} {
		r := newRig(t, 1, 16<<20, nil)
		d := r.devices[0]
		b := stored{keyOf("shared"), 1, bytesOf(1, 1<<20)}
		first := make(chan []driver.Outcome, 1)
		in := &driver.Job{ID: 1, Blocks: []driver.Transfer{b.transfer(t)}, Done: func(res *driver.Result) { first <- res.Outcomes }}
		j := r.newJob(in, "store")
		f := r.planStores(j, in)[0].flights[0]
		second := begin(r.Store, false, b.transfer(t))
		if n, err := d.keeper.allocate([]*flight{f}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if !j.enter(0) { // as whoever gives it up
			t.Fatal("the block is in use")
		}
		c.store(d, f)
		wantOutcome(t, wait(t, "second", second)[0], driver.Failed, block.ErrUnavailable)
		j.finish(0, j.failed(0, block.ErrUnavailable))
		j.submit(nil)
		wait(t, "first", first)
		if n := r.Stats().Detail.(*Detail).Devices[0].QuarantinedSlots; n != 0 {
			t.Errorf("%s: %d slots marked as bad", c.name, n)
		}
	}
}
