package tiers_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// seed returns the seed of a random test, printed so that KVFS_TEST_SEED can
// repeat it.
func seed(t testing.TB) uint64 {
	s := rand.Uint64()
	if env := os.Getenv("KVFS_TEST_SEED"); env != "" {
		var err error
		if s, err = strconv.ParseUint(env, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("KVFS_TEST_SEED=%d go test -race -run '%s' ./tiers", s, t.Name())
	return s
}

// payload is a block whose bytes all follow from its head: group, version, size.
func payload(group int, version uint64, size int) []byte {
	p := make([]byte, max(size, 24))
	le := binary.LittleEndian
	le.PutUint64(p, uint64(group))
	le.PutUint64(p[8:], version)
	le.PutUint64(p[16:], uint64(len(p)))
	x := version*0x9e3779b97f4a7c15 + uint64(group)
	for i := 24; i < len(p); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		p[i] = byte(x >> 56)
	}
	return p
}

// check reports what is wrong with a block that was read in group.
func check(group int, p []byte) (version uint64, err error) {
	if len(p) < 24 {
		return 0, fmt.Errorf("block of %d bytes", len(p))
	}
	le := binary.LittleEndian
	version = le.Uint64(p[8:])
	if !bytes.Equal(p, payload(group, version, len(p))) {
		return version, fmt.Errorf("group %d: bytes of version %d, group %d, %d of %d bytes are wrong",
			group, version, le.Uint64(p), len(p), le.Uint64(p[16:]))
	}
	return version, nil
}

// storm is the shared state of the workers of TestStorm.
type storm struct {
	*world
	version atomic.Uint64
	bad     sync.Map // versions that must never be seen
	reads   atomic.Int64

	// update is held by who rewrites in place: without O_TRUNC two writers share
	// one file, as in POSIX, so they take turns.
	update sync.Mutex
}

const (
	stormGroups = 2
	stormSlots  = 12
)

// expected are the answers that a worker may get at any time.
var expected = []error{block.ErrNotFound, block.ErrNoSpace, block.ErrQuota, block.ErrExist, block.ErrPoisoned}

func (s *storm) allow(what string, err error) {
	if err == nil || slices.ContainsFunc(expected, func(k error) bool { return errors.Is(err, k) }) {
		return
	}
	s.t.Errorf("%s: %v", what, err)
}

// worker is one process.
type worker struct {
	*storm
	tid uint32
	rng *rand.Rand
}

func (w *worker) slot(group int) string { return fmt.Sprintf("g%d/%d", group, w.rng.IntN(stormSlots)) }

// fill writes a new version in pieces through f, and says which.
func (w *worker) fill(f *file, group int) (uint64, error) {
	v := w.version.Add(1)
	p := payload(group, v, 24+w.rng.IntN(4*page))
	for off := 0; off < len(p); {
		n := min(len(p)-off, 1+w.rng.IntN(2*page))
		if _, err := f.h.WriteAt(context.Background(), p[off:off+n], int64(off)); err != nil {
			return v, err
		}
		off += n
	}
	return v, f.h.Truncate(context.Background(), int64(len(p)))
}

// read checks one block byte for byte, twice while it is open.
func (w *worker) read(group int) {
	f, err := w.openRead(w.tid, w.slot(group))
	if err != nil {
		w.allow("open", err)
		return
	}
	defer f.close()
	for range 2 {
		p, err := f.read()
		if err != nil {
			w.t.Errorf("read: %v", err)
			return
		}
		v, err := check(group, p)
		if err != nil {
			w.t.Error(err)
		}
		if _, bad := w.bad.Load(v); bad {
			w.t.Errorf("version %d was never committed", v)
		}
		w.reads.Add(1)
	}
}

// put writes a slot by its final name; now and then its writer is killed.
func (w *worker) put(group int) {
	f, err := w.openOrCreate(w.tid, w.slot(group))
	if err != nil {
		w.allow("create", err)
		return
	}
	v, err := w.fill(f, group)
	w.allow("write", err)
	by := closer{killed: w.rng.IntN(10) == 0}
	if err != nil || by.killed {
		w.bad.Store(v, true)
	}
	w.allow("flush", f.flush(by))
	f.release()
}

// putTemp writes under a temporary name and renames, before or after the close.
func (w *worker) putTemp(group int) {
	temp := fmt.Sprintf("g%d/%d.tmp", group, w.rng.IntN(2))
	if w.rng.IntN(2) == 0 {
		temp = fmt.Sprintf("g%d/%d.tmp.%d", group, w.rng.IntN(2), w.tid)
	}
	f, err := w.openOrCreate(w.tid, temp)
	if err != nil {
		w.allow("create temporary", err)
		return
	}
	v, err := w.fill(f, group)
	w.allow("write temporary", err)
	if err != nil {
		w.bad.Store(v, true)
	}
	if w.rng.IntN(2) == 0 {
		defer f.close()
	} else {
		w.allow("close temporary", f.close())
	}
	w.allow("rename temporary", w.rename(w.tid, temp, w.slot(group), w.rng.IntN(8) == 0))
}

// update rewrites a block without truncating it first, or opens it so and only
// reads.
func (w *worker) rewrite(group int) {
	w.update.Lock()
	defer w.update.Unlock()
	f, err := w.openWrite(context.Background(), w.tid, w.slot(group), false)
	if err != nil {
		w.allow("open for writing", err)
		return
	}
	p, err := f.read()
	if err != nil {
		w.t.Errorf("read for update: %v", err)
	} else if len(p) > 0 {
		if _, err := check(group, p); err != nil {
			w.t.Errorf("for update: %v", err)
		}
	}
	if w.rng.IntN(2) == 0 {
		v, err := w.fill(f, group)
		w.allow("update", err)
		if err != nil {
			w.bad.Store(v, true)
		}
	} else if len(p) == 0 {
		v, err := w.fill(f, group) // else it would be a block without bytes
		if err != nil {
			w.bad.Store(v, true)
		}
	}
	w.allow("close update", f.close())
}

// step is one random operation.
func (w *worker) step() {
	group := w.rng.IntN(stormGroups)
	switch n := w.rng.IntN(100); {
	case n < 35:
		w.read(group)
	case n < 55:
		w.put(group)
	case n < 72:
		w.putTemp(group)
	case n < 80:
		w.rewrite(group)
	case n < 86:
		w.allow("unlink", w.unlink(w.tid, w.slot(group)))
	case n < 92:
		w.allow("rename", w.rename(w.tid, w.slot(group), w.slot(group), false))
	case n < 95:
		if _, err := w.names(w.tid, fmt.Sprintf("g%d", group)); err != nil {
			w.t.Errorf("readdir: %v", err)
		}
	default:
		w.attributes(w.slot(group), group)
	}
}

// attributes changes a block's attributes. The reference keeps its id.
func (w *worker) attributes(name string, group int) {
	a, err := w.lookup(w.tid, name)
	if err != nil {
		return
	}
	defer w.forget(a.ID)
	switch w.rng.IntN(4) {
	case 0:
		w.allow("pin", w.e.SetPinned(a.ID, true))
		w.e.Stats()
		w.allow("unpin", w.e.SetPinned(a.ID, false))
	case 1:
		w.allow("ttl", w.e.SetTTL(a.ID, time.Hour))
	case 2:
		now := time.Now().UnixNano()
		_, err := w.e.SetAttr(a.ID, tiers.Change{Atime: &now, Mtime: &now})
		w.allow("utimens", err)
	case 3:
		if _, err := w.e.Checksum(a.ID); err != nil && !errors.Is(err, block.ErrPending) {
			w.allow("checksum", err)
		}
	}
}

// TestStorm: processes write, rename, rewrite, read, unlink and change blocks of
// few names in little room at the same time. Every read is checked byte for byte
// (C20); a version that was not committed is never seen; the events tell in the
// end which blocks there are (A39); and nothing is left when all is removed.
func TestStorm(t *testing.T) {
	for _, o := range []tiers.Options{
		{CapacityBytes: 24 * page, Policy: "lru"},
		{CapacityBytes: 40 * page, HeadroomBytes: 16 * page, Policy: "arc", HighWatermark: 0.9, LowWatermark: 0.5},
		{CapacityBytes: 256 * page, Policy: "s3fifo", LookupLease: time.Second},
		{CapacityBytes: 40 * page, Groups: map[block.GroupID]tiers.GroupOptions{"g1": {QuotaBytes: 20 * page}}},
	} {
		t.Run(fmt.Sprintf("%s %d", o.Policy, o.CapacityBytes/page), func(t *testing.T) {
			o.WriteTimeout = 20 * time.Millisecond
			var late atomic.Bool
			o.Now = func() time.Time {
				if late.Load() {
					return time.Now().Add(24 * time.Hour)
				}
				return time.Now()
			}
			s := &storm{world: open(t, shmDir(t), o)}
			for g := range stormGroups {
				must(t, s.mkdir(fmt.Sprintf("g%d", g)))
			}
			seed := seed(t)
			var wg sync.WaitGroup
			for i := range 8 {
				w := &worker{s, uint32(10 * (i + 1)), rand.New(rand.NewPCG(seed, uint64(i)))}
				wg.Go(func() {
					for range 250 {
						w.step()
					}
				})
			}
			wg.Wait()
			t.Logf("%d reads, %d versions, %+v", s.reads.Load(), s.version.Load(), s.e.Stats().Counters)
			s.audit()
			s.replay()
			late.Store(true) // versions that nobody opened, and temporary files, expire
			s.e.Expire()
			removeAll(t, s.world, "")
			st := s.e.Stats()
			if st.UsedBytes != 0 || st.Blocks != 0 || st.Names != 0 || s.blobs() != 0 {
				t.Errorf("left after all was removed: %+v, %d files", st, s.blobs())
			}
			s.close(false)
		})
	}
}

// replay follows the events and compares with what is there.
func (s *storm) replay() {
	s.t.Helper()
	told := map[string]int64{}
	buf := make([]tiers.Event, tiers.EventRing)
	n, missed, err := s.e.Events().Read(context.Background(), 1, buf)
	if err != nil || missed != 0 {
		s.t.Fatalf("events: missed %d, %v", missed, err)
	}
	for _, ev := range buf[:n] {
		switch ev.Kind {
		case tiers.BlockStored:
			told[ev.Key.Path()] = ev.Size
		case tiers.BlockRenamed:
			delete(told, ev.From.Path())
			told[ev.Key.Path()] = ev.Size
		default:
			delete(told, ev.Key.Path())
		}
	}
	there := map[string]int64{}
	for g := range stormGroups {
		names, err := s.names(990, fmt.Sprintf("g%d", g))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, n := range names {
			name := fmt.Sprintf("g%d/%s", g, n)
			if a, err := s.e.Resolve(context.Background(), name); err == nil {
				there[name] = a.Size
			}
		}
	}
	for name, size := range there {
		if told[name] != size {
			s.t.Errorf("%s: %d bytes are there, the events say %d", name, size, told[name])
		}
	}
	for name := range told {
		if _, ok := there[name]; !ok {
			s.t.Errorf("%s: not there, the events say it is", name)
		}
	}
}

// TestReadDuringFork: a read through a handle finds bytes of its own file, also if
// the first write gives the file other bytes at that moment.
func TestReadDuringFork(t *testing.T) {
	w := open(t, shmDir(t), tiers.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	must(t, w.put(10, "other", bytes.Repeat([]byte("z"), 2*page)))
	for i := range 150 {
		must(t, w.put(10, "a", bytes.Repeat([]byte("x"), 2*page)))
		closeReader := func() error { return nil }
		if i%2 == 0 { // alias instead of shared
			r, err := w.openRead(10, "a")
			must(t, err)
			closeReader = r.close
		}
		f, err := w.openWrite(context.Background(), 20, "a", false)
		must(t, err)
		var wg sync.WaitGroup
		var done atomic.Bool
		for range 2 {
			wg.Go(func() {
				for !done.Load() {
					p, err := f.read()
					if err != nil || len(p) != 2*page || len(bytes.Trim(p, "xy")) != 0 {
						t.Errorf("read %d bytes, %v: not all are of this file", len(p), err)
						return
					}
				}
			})
			wg.Go(func() { // takes the number of a descriptor that is closed
				for !done.Load() {
					if _, err := w.get(10, "other"); err != nil {
						t.Errorf("other: %v", err)
						return
					}
				}
			})
		}
		_, err = f.h.WriteAt(context.Background(), []byte("y"), 0)
		done.Store(true)
		wg.Wait()
		must(t, err, f.close(), closeReader())
	}
}

// TestOpenDuringCreate: who opens a temporary file of another process while it is
// being created agrees with that about how its bytes are written.
func TestOpenDuringCreate(t *testing.T) {
	w := open(t, shmDir(t), tiers.Options{
		CapacityBytes: 8 * page, Groups: map[block.GroupID]tiers.GroupOptions{"": {BlockBytes: 6 * page}}, // no guess fits
	})
	defer w.close(false)
	var done atomic.Bool
	var wg sync.WaitGroup
	var mixed atomic.Int64
	wg.Go(func() {
		for !done.Load() {
			f, err := w.openRead(20, "a.tmp")
			if err != nil {
				continue
			}
			if f.h != nil && f.h.Direct() {
				mixed.Add(1)
			}
			f.close()
		}
	})
	for range 500 {
		f, err := w.create(10, "a.tmp", false, true)
		must(t, err)
		if f.h.Direct() {
			t.Error("direct without room")
		}
		f.release()
		must(t, w.unlink(10, "a.tmp"))
	}
	done.Store(true)
	wg.Wait()
	if n := mixed.Load(); n != 0 {
		t.Errorf("%d opens went straight to a file that its creator writes through the engine", n)
	}
}

// TestUnlinkDuringCreate: a file that Create found in place may go before Create
// opens it; Create then makes it, or asks for another look-up.
func TestUnlinkDuringCreate(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		h := &hooked{}
		w := open(t, shmDir(t), tiers.Options{Primary: h})
		must(t, w.put(10, "a", []byte("x")))
		h.remove = func() {
			must(t, w.unlink(30, "a"))
			if reuse { // its number goes to another file
				must(t, w.put(30, "b", []byte("other")))
			}
		}
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Fatalf("panic: %v", r)
				}
			}()
			f, err := w.create(20, "a", false, false)
			if err == nil {
				_, err = f.h.WriteAt(context.Background(), []byte("y"), 0)
				must(t, err, f.close())
			} else if !errors.Is(err, tiers.ErrStale) {
				t.Errorf("create: %v", err)
			}
		}()
		if got := w.content("b"); reuse && got != "other" {
			t.Errorf("create of one file changed another: got %q", got)
		}
		w.close(false)
	}
}

// TestUnlinkDuringOpen: a name may go while another process opens it for writing.
func TestUnlinkDuringOpen(t *testing.T) {
	w := open(t, shmDir(t), tiers.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	var done atomic.Bool
	var wg sync.WaitGroup
	for i := range uint32(2) {
		wg.Go(func() {
			tid := 20 + 10*i
			for !done.Load() {
				if f, err := w.openWrite(context.Background(), tid, "a", true); err == nil {
					f.release()
				} else if !errors.Is(err, block.ErrNotFound) && !errors.Is(err, tiers.ErrStale) {
					t.Errorf("open: %v", err)
					return
				}
			}
		})
	}
	for range 1500 {
		must(t, w.put(10, "a", []byte("x")))
		if err := w.unlink(10, "a"); err != nil && !errors.Is(err, block.ErrNotFound) {
			t.Errorf("unlink: %v", err)
		}
	}
	done.Store(true)
	wg.Wait()
}
