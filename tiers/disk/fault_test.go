package disk

import (
	"bytes"
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

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/driver"
)

// sizes cover what takes other paths: nothing, less than a page, a page, around the
// limit between whole blocks and pieces, unaligned ends, more than a piece, more than a
// load has under way, and more than a slab.
var sizes = []int{0, 1, 4095, 4096, 4097, 65536, largeBytes - 1, largeBytes, largeBytes + 1, 1 << 20, 1<<20 + 5000, 4<<20 - 1, 5<<20 + 1}

// TestBlockSizes stores and loads blocks of all sizes, in one job and one by one,
// over both engines, with and without a checksum given, before and after a restart.
func TestBlockSizes(t *testing.T) {
	for _, engine := range engines(t) {
		t.Run(engine, func(t *testing.T) {
			r := newRig(t, 1, 64<<20, func(o *Options) {
				o.DirectIO.Engine = engine
				o.SlabBytes = 4 << 20
			})
			var all []stored
			for i, size := range sizes {
				all = append(all, stored{keyOf(fmt.Sprint("s", i)), 1, bytesOf(uint64(i), size)})
			}
			r.mustStore(t, all...)
			for i, size := range sizes {
				b := stored{keyOf(fmt.Sprint("t", i)), 1, bytesOf(uint64(i+100), size)}
				tr := b.transfer(t)
				tr.Sum = block.Sum(b.data)
				o := wait(t, "store", begin(r.Store, false, tr))[0]
				if o.Status != driver.Stored || o.Sum != tr.Sum || o.Bytes != int64(size) {
					t.Fatalf("store of %d bytes: %+v", size, o)
				}
				all = append(all, b)
			}
			for range 2 {
				for _, b := range all {
					r.mustLoad(t, b)
				}
				r.reopen(t)
			}
		})
	}
}

// TestLittleStaging shows that blocks move where the staging budget is smaller than the batch, and smaller than one
// block, into files that are open for writing only.
func TestLittleStaging(t *testing.T) {
	pool := poolOf(t, 64<<10, 0.75)
	r := newRig(t, 1, 32<<20, func(o *Options) { o.Pool = pool })
	var blocks []stored
	for i, size := range []int{300_001, 20_000, 20_000, 20_000, 1 << 20} {
		blocks = append(blocks, stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), size)})
	}
	r.mustStore(t, blocks...)
	var transfers []driver.Transfer
	var files []*os.File
	for _, b := range blocks {
		f := memFile(t, make([]byte, len(b.data)))
		w, err := os.OpenFile(fmt.Sprint("/proc/self/fd/", f.Fd()), os.O_WRONLY, 0)
		must(t, err)
		defer w.Close()
		files = append(files, f)
		transfers = append(transfers, driver.Transfer{Key: b.key, Size: int64(len(b.data)), File: w})
	}
	for i, o := range wait(t, "load", begin(r.Load, false, transfers...)) {
		got := make([]byte, len(blocks[i].data))
		if _, err := files[i].ReadAt(got, 0); err != nil || o.Status != driver.Loaded || !bytes.Equal(got, blocks[i].data) {
			t.Errorf("block %d: %v (%v), right bytes: %v (%v)", i, o.Status, o.Err, bytes.Equal(got, blocks[i].data), err)
		}
	}
}

// TestFlippedData flips bits of data on disk: Load drops the copy and says so, once
// with a small block and once with one that comes in pieces; the slot can be used
// again.
func TestFlippedData(t *testing.T) {
	for i, size := range []int{10_000, 10_000, largeBytes} {
		edit := plainEngines
		if i == 0 {
			edit = nil
		}
		r := newRig(t, 1, 32<<20, edit)
		host := r.watch()
		b := stored{keyOf("flipped"), 1, bytesOf(1, size)}
		beside := stored{keyOf("beside"), 1, bytesOf(2, size)}
		r.mustStore(t, b, beside)
		path, data, _ := r.slotOf(t, b.key)
		flip(t, path, data+int64(size)-1)
		o, _ := r.load(t, b.key, int64(size))
		wantOutcome(t, o, driver.Failed, block.ErrCorrupt)
		wantErr(t, "Host was told", host.lossOf(b.key), block.ErrCorrupt)
		if p := r.presence(t, b.key); p != driver.Miss {
			t.Errorf("got %v, want miss", p)
		}
		if n := r.Stats().Corrupt; n != 1 {
			t.Errorf("Corrupt: got %d, want 1", n)
		}
		r.mustLoad(t, beside)
		b.seq = 2
		r.mustStore(t, b)
		r.mustLoad(t, b)
	}
}

// TestFlippedOnce shows that a block that reads bad once and well the second time is
// loaded and kept.
func TestFlippedOnce(t *testing.T) {
	for _, size := range []int{10_000, 1 << 20} {
		r := newRig(t, 1, 32<<20, nil)
		b := stored{keyOf("once"), 1, bytesOf(1, size)}
		r.mustStore(t, b)
		var reads atomic.Int64
		r.rule(func(c faultio.Call) faultio.Fault {
			return faultio.Fault{Flip: c.Kind == directio.Read && reads.Add(1) == 1, FlipBit: 12345}
		})
		r.mustLoad(t, b)
		if reads.Load() < 2 {
			t.Errorf("%d reads, want another one", reads.Load())
		}
	}
}

// TestDeviceFails shows that a device with too many errors goes offline alone: its
// blocks are reported lost, new ones go to the other device.
func TestDeviceFails(t *testing.T) {
	r := newRig(t, 2, 16<<20, nil)
	host := r.watch()
	blocks := r.fill(t, 100, 9000)
	on := func(b stored) int {
		path, _, _ := r.slotOf(t, b.key)
		return slices.Index(r.dirs, filepath.Dir(path))
	}
	var first, second []stored
	for _, b := range blocks {
		if on(b) == 0 {
			first = append(first, b)
		} else {
			second = append(second, b)
		}
	}
	if len(first) < 15 || len(second) < 15 {
		t.Fatalf("%d and %d blocks on the devices", len(first), len(second))
	}
	r.engine(0).SetRule(func(faultio.Call) faultio.Fault { return faultio.Fault{Err: syscall.EIO} })
	for _, b := range first {
		if o, _ := r.load(t, b.key, 9000); o.Status == driver.Loaded {
			t.Fatalf("loaded from a device that fails")
		}
	}
	eventually(t, "device offline", func() bool { return r.Stats().State == "degraded" })
	for _, b := range first {
		eventually(t, "block lost", func() bool { return host.lossOf(b.key) != nil })
	}
	for _, b := range second {
		r.mustLoad(t, b)
	}
	for i := range first {
		first[i].seq = 2
	}
	r.mustStore(t, first...)
	for _, b := range first {
		r.mustLoad(t, b)
	}
	eventually(t, "all losses told", r.devices[0].lostDone.Load) // Sync fails until then
	must(t, r.sync(t))
	s := r.Stats()
	if s.Reason == "" || s.IOErrors < port.MaxErrors || s.Detail.(*Detail).Devices[0].State != "offline" {
		t.Errorf("status: %q, %d errors, %+v", s.Reason, s.IOErrors, s.Detail.(*Detail).Devices[0])
	}
	r.engine(1).SetRule(func(faultio.Call) faultio.Fault { return faultio.Fault{Err: syscall.EIO} })
	for _, b := range second {
		r.load(t, b.key, 9000)
	}
	eventually(t, "tier offline", func() bool { return r.Stats().State == "offline" })
	wantErr(t, "Lookup", r.Lookup(context.Background(), []block.Key{keyOf("x")}, make([]driver.Presence, 1)), block.ErrUnavailable)
	if o := r.store(t, stored{keyOf("new"), 1, bytesOf(1, 10)})[0]; !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("store: got %v (%v), want %v", o.Status, o.Err, block.ErrUnavailable)
	}
}

// TestReadError shows that one block that cannot be read, by a load or by the scrubber, is lost alone and counts as one
// error, though it is read again; and that its slot is not used again.
func TestReadError(t *testing.T) {
	for _, scrub := range []int64{0, 1 << 20} {
		r := newRig(t, 1, 16<<20, func(o *Options) { o.ScrubBytesPerSecond = scrub })
		host := r.watch()
		var bad atomic.Int64
		r.rule(func(c faultio.Call) faultio.Fault {
			if at := bad.Load(); c.Kind == directio.Read && c.Off <= at && at < c.Off+int64(c.Bytes) {
				return faultio.Fault{Err: syscall.EIO}
			}
			return faultio.Fault{}
		})
		a, b := stored{keyOf("a"), 1, bytesOf(1, 5000)}, stored{keyOf("b"), 1, bytesOf(2, 5000)}
		r.mustStore(t, a, b)
		_, at, _ := r.slotOf(t, a.key)
		bad.Store(at)
		if scrub == 0 {
			if o, _ := r.load(t, a.key, 5000); o.Status != driver.Failed || !errors.Is(o.Err, block.ErrUnavailable) {
				t.Errorf("got %v (%v), want %v", o.Status, o.Err, block.ErrUnavailable)
			}
		}
		eventually(t, "block lost", func() bool { return host.lossOf(a.key) != nil })
		wantErr(t, "Host was told", host.lossOf(a.key), block.ErrUnavailable)
		r.mustLoad(t, b)
		a.seq = 2
		r.mustStore(t, a)
		if _, again, _ := r.slotOf(t, a.key); again == at {
			t.Error("the bad slot was used again")
		}
		r.mustLoad(t, a)
		if s := r.Stats(); s.State != "online" || s.IOErrors != 1 || s.Detail.(*Detail).Devices[0].QuarantinedSlots != 1 {
			t.Errorf("scrubbing at %d: %+v", scrub, s)
		}
	}
}

// overdue is an engine whose stuck operations have been so for a day: a device that is only
// slow does not count as stuck.
type overdue struct{ *faultio.Engine }

// Stuck tells of stuck operations only.
func (e overdue) Stuck() time.Duration {
	if e.StuckOps() == 0 {
		return 0
	}
	return 24 * time.Hour
}

// TestStuck shows that jobs on a device that does not answer fail in time, that the
// other device serves on, and that Close does not hang.
func TestStuck(t *testing.T) {
	for _, kind := range []directio.Kind{directio.Read, directio.Write} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			// Less staging than the stuck operations could take.
			pool := poolOf(t, 128<<10, 0.9)
			r := newRigOf(t, 2, 16<<20, func(o *Options) {
				o.StuckTimeout = time.Hour
				o.Pool = pool
			}, func(e *faultio.Engine) directio.Engine { return overdue{e} })
			r.watch()
			blocks := r.fill(t, 30, 6000)
			r.engine(0).SetRule(func(c faultio.Call) faultio.Fault { return faultio.Fault{Stuck: c.Kind == kind} })
			t.Cleanup(r.engine(0).Release)
			var pending []<-chan []driver.Outcome
			for i, b := range blocks {
				f := memFile(t, make([]byte, 6000))
				pending = append(pending, begin(r.Load, false, driver.Transfer{Key: b.key, Size: 6000, File: f}))
				n := stored{keyOf(fmt.Sprint("new", i)), 1, bytesOf(uint64(i), 6000)}
				pending = append(pending, begin(r.Store, false, n.transfer(t)))
			}
			failed := 0
			for _, c := range pending {
				o := wait(t, "job on a stuck device", c)[0]
				if o.Status == driver.Failed {
					failed++
					if !errors.Is(o.Err, block.ErrUnavailable) {
						t.Errorf("got %v, want %v", o.Err, block.ErrUnavailable)
					}
				}
			}
			if failed == 0 {
				t.Error("no job met the stuck device")
			}
			eventually(t, "device offline", func() bool { return r.Stats().State == "degraded" })
			late := stored{keyOf("late"), 1, bytesOf(9, 6000)}
			r.mustStore(t, late)
			r.mustLoad(t, late)
			done := make(chan error, 1)
			go func() { done <- r.Close(context.Background()) }()
			wantErr(t, "Close", wait(t, "Close", done), block.ErrUnavailable)
		})
	}
}

// TestCloseStuck shows that Close gives up with its context on a device that does not
// answer, before anybody has found it stuck.
func TestCloseStuck(t *testing.T) {
	r := newRig(t, 1, 16<<20, func(o *Options) { o.StuckTimeout = time.Hour })
	r.engine(0).SetRule(func(c faultio.Call) faultio.Fault { return faultio.Fault{Stuck: true} })
	t.Cleanup(r.engine(0).Release)
	b := stored{keyOf("a"), 1, bytesOf(1, 1<<20)}
	c := begin(r.Store, false, b.transfer(t))
	eventually(t, "the write", func() bool { return r.engine(0).StuckOps() > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Close(ctx) }()
	if err := wait(t, "Close", done); err == nil {
		t.Error("Close: got success")
	}
	if o := wait(t, "store", c)[0]; !errors.Is(o.Err, block.ErrClosed) {
		t.Errorf("store: got %v (%v), want %v", o.Status, o.Err, block.ErrClosed)
	}
}

// TestFileSystemFull shows that a device whose file system is full goes on within what
// it has: it evicts, and is online.
func TestFileSystemFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		must(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	r := &rig{dirs: []string{dir}, fault: map[string]*faultio.Engine{}}
	r.opts = Options{
		Policy: "lru", AllowTmpfs: true, SlabBytes: 512 << 10,
		Devices: []DeviceOptions{{Dir: dir, CapacityBytes: 64 << 20}},
	}
	r.open(t)
	for i := range 40 {
		b := stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), 200_000)}
		r.mustStore(t, b)
		r.mustLoad(t, b)
	}
	s := r.Stats()
	d := s.Detail.(*Detail).Devices[0]
	if s.State != "online" || s.Evicted == 0 || d.Reason == "" || d.SlabFileBytes > 3<<20 {
		t.Errorf("got %s %q, %d evicted, %d bytes in slabs", s.State, d.Reason, s.Evicted, d.SlabFileBytes)
	}
	t.Log(d.Reason)
}

// TestOpenFails shows that Open reports all that is wrong, and each device that cannot be
// opened, and leaves the others unlocked (H3).
func TestOpenFails(t *testing.T) {
	_, err := Open(context.Background(), Options{Policy: "best", SyncBytes: -1, Devices: []DeviceOptions{{Dir: "", CapacityBytes: 1}}})
	joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 || !errors.Is(err, block.ErrInvalid) {
		t.Errorf("got %v, want four violations", err)
	}
	good := t.TempDir()
	devices := []DeviceOptions{{good, 1 << 20}, {filepath.Join(good, "no", "such"), 1 << 20}, {"/proc", 1 << 20}}
	if _, err := Open(context.Background(), Options{Devices: devices}); err == nil {
		t.Fatal("Open of directories that do not exist: got success")
	} else {
		t.Log(err)
	}
	tier, err := Open(context.Background(), Options{Devices: devices[:1]})
	must(t, err)
	if _, err := Open(context.Background(), Options{Devices: devices[:1]}); !errors.Is(err, ErrBusy) {
		t.Errorf("second Open: got %v, want %v", err, ErrBusy)
	}
	must(t, tier.Close(context.Background()))
}
