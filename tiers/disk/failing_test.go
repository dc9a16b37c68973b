package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/recovery"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestCloseAbandoned shows that a device which is given up while its index is written does
// not leave an index without the blocks that were forgotten meanwhile: they are there at
// the next start.
func TestCloseAbandoned(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	blocks := r.fill(t, 30, 6000)
	must(t, r.sync(t))
	d := r.devices[0]
	d.port.Fail("given up")
	<-d.keeper.gone
	wantErr(t, "index of a device that is down", d.writeIndex(), block.ErrUnavailable)
	r.Tier.mu.Lock()
	r.Tier.mu.slots.MarkDirty(1) // as that of a block which was given up
	r.Tier.mu.Unlock()
	wantErr(t, "headers of a device that is down", d.headers.flush(), block.ErrUnavailable)
	r.rule(nil)
	next := &rig{opts: r.opts, fault: r.fault, dirs: []string{t.TempDir()}}
	copyDir(t, r.dirs[0], next.dirs[0])
	next.opts.Devices = []DeviceOptions{{Dir: next.dirs[0], CapacityBytes: 16 << 20}}
	next.open(t)
	for _, b := range blocks {
		next.mustLoad(t, b)
	}
}

// slowHost is an accountHost whose Lost says that it was called and then waits.
type slowHost struct {
	*accountHost
	called, gate chan struct{}
}

// Lost notes why, late.
func (h slowHost) Lost(key block.Key, err error) {
	select {
	case h.called <- struct{}{}:
	default:
	}
	<-h.gate
	h.accountHost.Lost(key, err)
}

// TestCloseFailing shows that Close waits for the end of a failure that it meets: the Host is
// told of all blocks before it returns, and the tables are there until then.
func TestCloseFailing(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	host := slowHost{newHost(), make(chan struct{}, 1), make(chan struct{})}
	r.SetHost(host)
	var blocks []stored
	for i := range 8 { // of several slabs
		blocks = append(blocks, stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), 4000<<i)})
	}
	r.mustStore(t, blocks...)
	d := r.devices[0]
	go d.port.Fail("given up")
	wait(t, "the first loss", host.called)
	done := make(chan error, 1)
	go func() { done <- r.Close(context.Background()) }()
	wait(t, "the end of the watchdog, which is nearly that of the device", d.port.Closing)
	select {
	case err := <-done:
		t.Fatalf("Close returned while the Host was being told: %v", err)
	case <-time.After(200 * time.Millisecond): // in which it would have returned
	}
	close(host.gate)
	if err := wait(t, "Close", done); err != nil && !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Close: %v", err)
	}
	for _, b := range blocks {
		if host.lossOf(b.key) == nil {
			t.Errorf("%v is gone and the Host does not know when Close returns", b.key)
		}
	}
}

// TestCloseMarking shows that Close leaves a device which failed in the middle of a mark as it is until the mark ends: its
// files stay open and its directory locked, so that the mark writes to nothing that others use.
func TestCloseMarking(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	r.fill(t, 1, 6000)
	must(t, r.checkpoint())
	d := r.devices[0]
	var slab *slotmap.Slab
	for s := range d.mu.space.All() {
		slab = s
	}
	d.marking.Lock() // as a mark that the kernel does not end
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.store(t, stored{keyOf("later"), 1, bytesOf(7, 6000)})
	}()
	eventually(t, "a write that waits for the mark", func() bool { return slab.Writes.Load() > 0 })
	d.port.Fail("given up")
	wait(t, "the store", ended)
	err := r.Close(context.Background())
	wantErr(t, "Close during a mark", err, block.ErrUnavailable)
	_, err = Open(context.Background(), r.opts)
	wantErr(t, "Open during a mark", err, recovery.ErrBusy)
	d.marking.Unlock()
	eventually(t, "the end of the device", func() bool {
		next, err := Open(context.Background(), r.opts)
		if err != nil {
			return false
		}
		must(t, next.Close(context.Background()))
		return true
	})
}

// deviceOf returns the number of the device that holds a block, and the block's slot.
func (r *rig) deviceOf(t *testing.T, key block.Key) (device int, id slotmap.SlotID) {
	t.Helper()
	path, _, _ := r.slotOf(t, key)
	r.Tier.mu.Lock()
	defer r.Tier.mu.Unlock()
	return slices.Index(r.dirs, filepath.Dir(path)), r.Tier.mu.slots.Find(key)
}

// storeOn stores new blocks until one lies on a device; with id not 0, in that slot of the
// tables.
func (r *rig) storeOn(t *testing.T, device int, id slotmap.SlotID, prefix string, size int) stored {
	t.Helper()
	for i := range 200 {
		b := stored{keyOf(fmt.Sprint(prefix, i)), 1, bytesOf(uint64(i), size)}
		r.mustStore(t, b)
		if d, at := r.deviceOf(t, b.key); d == device && (id == 0 || at == id) {
			return b
		}
	}
	t.Fatalf("no block on device %d", device)
	panic("unreachable")
}

// TestLateLoad shows that a read which a failed device answers late, with an error, does no
// harm to the block of another device that has the same place in the tables by then.
func TestLateLoad(t *testing.T) {
	for _, size := range []int{300_000, 5 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { lateLoad(t, size) })
	}
}

func lateLoad(t *testing.T, size int) {
	r := newRig(t, 2, 64<<20, nil)
	host := r.watch()
	old := r.storeOn(t, 0, 0, "old", size)
	_, id := r.deviceOf(t, old.key)
	r.engine(0).SetRule(faultio.From(directio.Read, 1, faultio.Fault{Stuck: true, Err: syscall.EIO}))
	t.Cleanup(r.engine(0).Release)
	c := begin(r.Load, false, driver.Transfer{Key: old.key, Size: int64(size), File: memFile(t, make([]byte, size))})
	eventually(t, "the read", func() bool { return r.engine(0).StuckOps() > 0 })
	d := r.devices[0]
	r.Tier.mu.Lock()
	ended := r.Tier.mu.ended
	r.Tier.mu.Unlock()
	d.port.Fail("given up")
	if o := wait(t, "load", c)[0]; !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("got %v (%v), want %v", o.Status, o.Err, block.ErrUnavailable)
	}
	eventually(t, "the end of the job, which frees the slot", func() bool {
		r.Tier.mu.Lock()
		defer r.Tier.mu.Unlock()
		return r.Tier.mu.ended > ended
	})
	young := r.storeOn(t, 1, id, "young", size)
	r.engine(0).Release()
	eventually(t, "the end of the late load", func() bool {
		d.queue.mu.Lock()
		defer d.queue.mu.Unlock()
		return len(d.queue.mu.all) == 0
	})
	must(t, host.lossOf(young.key))
	r.mustLoad(t, young)
}

// TestPieceFails shows that of a block which comes in pieces one that fails fails the block, counts as one error whatever
// the others do, and that pieces which come in any order make the right bytes.
func TestPieceFails(t *testing.T) {
	r := newRig(t, 1, 64<<20, nil)
	b := stored{keyOf("pieces"), 1, bytesOf(1, 10<<20+77)}
	r.mustStore(t, b)
	_, data, _ := r.slotOf(t, b.key)
	r.rule(func(c faultio.Call) faultio.Fault {
		return faultio.Fault{Delay: time.Duration(3-(c.Off-data)>>20%loadPieces) * 5 * time.Millisecond} // the last of four comes first
	})
	r.mustLoad(t, b)
	r.rule(func(c faultio.Call) faultio.Fault {
		if c.Kind == directio.Read && c.Off >= data+4<<20 {
			return faultio.Fault{Err: syscall.EIO}
		}
		return faultio.Fault{}
	})
	o, _ := r.load(t, b.key, int64(len(b.data)))
	wantOutcome(t, o, driver.Failed, block.ErrUnavailable)
	if s := r.Stats(); s.State != "online" || s.IOErrors != 1 {
		t.Errorf("%s with %d errors, want online with 1", s.State, s.IOErrors)
	}
}

// TestSmallBesideLarge shows that a small block is loaded while all workers wait for large ones.
func TestSmallBesideLarge(t *testing.T) {
	pool := poolOf(t, 64<<20, 0.9) // as by default
	r := newRig(t, 1, 64<<20, func(o *Options) { o.Pool = pool })
	large, small := stored{keyOf("large"), 1, bytesOf(1, 5<<20)}, stored{keyOf("small"), 1, bytesOf(2, 64<<10)}
	r.mustStore(t, large, small)
	_, data, _ := r.slotOf(t, small.key)
	r.rule(func(c faultio.Call) faultio.Fault {
		return faultio.Fault{Stuck: c.Kind == directio.Read && c.Off != data}
	})
	t.Cleanup(r.engine(0).Release)
	var loads []<-chan []driver.Outcome
	for range loadWorkers + 4 {
		loads = append(loads, begin(r.Load, false, driver.Transfer{Key: large.key, Size: 5 << 20, File: memFile(t, nil)}))
	}
	eventually(t, "all workers wait", func() bool { return r.engine(0).StuckOps() >= loadWorkers*loadPieces })
	r.mustLoad(t, small)
	r.rule(nil)
	r.engine(0).Release()
	for _, c := range loads {
		wantOutcome(t, wait(t, "load", c)[0], driver.Loaded, nil)
	}
}

// TestLateHeader shows that a header which a failed device answers late does no harm to the
// block of another device that has the same place in the tables by then: what is changed
// of that one is written.
func TestLateHeader(t *testing.T) {
	r := newRig(t, 2, 64<<20, nil)
	old := r.storeOn(t, 0, 0, "old", 6000)
	_, id := r.deviceOf(t, old.key)
	r.engine(0).SetRule(faultio.From(directio.Write, 1, faultio.Fault{Stuck: true, Err: syscall.EIO}))
	t.Cleanup(r.engine(0).Release)
	r.Update(old.key, old.key, &driver.Attrs{Seq: 2, Mode: 0o600})
	eventually(t, "the header", func() bool { return r.engine(0).StuckOps() > 0 })
	d := r.devices[0]
	d.port.Fail("given up")
	young := r.storeOn(t, 1, id, "young", 6000)
	r.engine(0).Release()
	wait(t, "the keeper's end", d.keeper.gone)
	if !r.Update(young.key, young.key, &driver.Attrs{Seq: 7, Mode: 0o612}) {
		t.Fatal("Update: not held")
	}
	must(t, r.sync(t))
	next := &rig{opts: r.opts, fault: r.fault, dirs: []string{t.TempDir()}}
	copyDir(t, r.dirs[1], next.dirs[0])
	next.opts.Devices = []DeviceOptions{{Dir: next.dirs[0], CapacityBytes: 64 << 20}}
	next.open(t)
	_ = next.Blocks(func(h *driver.Held) bool {
		if h.Key == young.key && (h.Attrs.Seq != 7 || h.Attrs.Mode != 0o612) {
			t.Errorf("after a crash: %+v, want what was written before Sync", h.Attrs)
		}
		return true
	})
	next.mustLoad(t, young)
}

// TestRefusedHeader shows that a header which the device does not write leaves the device
// online, however often it is tried, and counts as one error; Sync fails until it is
// written, and its neighbours are written meanwhile.
func TestRefusedHeader(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	blocks := r.fill(t, 20, 5000)
	_, _, bad := r.slotOf(t, blocks[5].key)
	r.rule(func(c faultio.Call) faultio.Fault {
		if c.Kind == directio.Write && c.Off <= bad && bad < c.Off+int64(c.Bytes) {
			return faultio.Fault{Err: syscall.EIO}
		}
		return faultio.Fault{}
	})
	for _, b := range blocks[:10] {
		r.Remove([]block.Key{b.key})
	}
	for range 3 * port.MaxErrors {
		if err := r.sync(t); !errors.Is(err, block.ErrUnavailable) {
			t.Fatalf("Sync with a header that is not written: got %v, want %v", err, block.ErrUnavailable)
		}
	}
	if s := r.Stats(); s.State != "online" || s.IOErrors != 1 {
		t.Errorf("%s (%s) with %d errors, want online with 1", s.State, s.Reason, s.IOErrors)
	}
	for i := range 9 {
		b := stored{keyOf(fmt.Sprint("new", i)), 1, bytesOf(uint64(100+i), 5000)}
		r.mustStore(t, b)
		r.mustLoad(t, b)
	}
	r.rule(nil)
	must(t, r.sync(t))
	next := r.crash(t)
	for i, b := range blocks {
		if p := next.presence(t, b.key); (p == driver.Hit) != (i >= 10) {
			t.Errorf("block %d: %v", i, p)
		}
	}
}

// TestSyncFails shows that a sync which failed once is not followed by one that succeeds: what the kernel could not write it has
// forgotten by then, and what a sync would make durable in a directory that somebody has deleted nobody finds. The device goes
// offline.
func TestSyncFails(t *testing.T) {
	for how, fail := range map[string]func(r *rig) error{
		"once": func(r *rig) error {
			var syncs atomic.Int64
			r.rule(func(c faultio.Call) faultio.Fault {
				if c.Kind == directio.Sync && syncs.Add(1) == 1 {
					return faultio.Fault{Err: syscall.EIO}
				}
				return faultio.Fault{}
			})
			return nil
		},
		"deleted": func(r *rig) error { return os.RemoveAll(r.dirs[0]) },
	} {
		r := newRig(t, 1, 16<<20, func(o *Options) { o.SyncInterval = time.Hour })
		host := r.watch()
		b := stored{keyOf("a"), 1, bytesOf(1, 5000)}
		r.mustStore(t, b)
		must(t, errors.Join(r.sync(t), fail(r)))
		r.mustStore(t, stored{keyOf("b"), 1, bytesOf(1, 5000)})
		for range 2 {
			if err := r.sync(t); !errors.Is(err, block.ErrUnavailable) {
				t.Errorf("%s: Sync: got %v, want %v", how, err, block.ErrUnavailable)
			}
		}
		eventually(t, "device offline", func() bool { return r.Stats().State == "offline" })
		eventually(t, "block lost", func() bool { return host.lossOf(b.key) != nil })
		if err := r.Close(context.Background()); err != nil && !errors.Is(err, block.ErrUnavailable) {
			t.Errorf("%s: Close: %v", how, err)
		}
	}
}
