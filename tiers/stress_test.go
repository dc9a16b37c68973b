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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
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
	*lower
	version atomic.Uint64
	bad     sync.Map // versions that must never be seen
	absent  int      // copies that a tier turned out to lack
	reads   atomic.Int64
}

const (
	stormGroups = 2
	stormSlots  = 12
)

// newStorm makes the directories.
func newStorm(w *lower) *storm {
	for g := range stormGroups {
		must(w.t, w.mkdir(fmt.Sprintf("g%d", g)), w.mkdir(fmt.Sprintf("g%d/d", g)))
	}
	return &storm{lower: w}
}

// expected are the answers that a worker may get at any time; EXDEV where a tier cannot rename.
var expected = []error{block.ErrNotFound, block.ErrNoSpace, block.ErrNotDir, block.ErrIsDir, block.ErrQuota, block.ErrExist, block.ErrPoisoned, unix.EXDEV}

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

func (w *worker) slot(group int) string {
	if w.rng.IntN(4) == 0 { // in a directory that is renamed
		return fmt.Sprintf("g%d/%c/%d", group, 'd'+w.rng.IntN(2), w.rng.IntN(3))
	}
	return fmt.Sprintf("g%d/%d", group, w.rng.IntN(stormSlots))
}

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

// rewrite writes a block in place, which others see as it happens: the bytes that it has. Or it only
// opens it.
func (w *worker) rewrite(group int) {
	f, err := w.openWrite(context.Background(), w.tid, w.slot(group), false)
	if err != nil {
		w.allow("open for writing", err)
		return
	}
	p, err := f.read()
	if err != nil {
		w.t.Errorf("read for update: %v", err)
	} else if _, err := check(group, p); err != nil {
		w.t.Errorf("for update: %v", err)
	}
	if w.rng.IntN(2) == 0 && err == nil {
		_, err = f.h.WriteAt(context.Background(), p, 0)
		w.allow("update", err)
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
	case n < 96:
		dirs := []string{fmt.Sprintf("g%d/d", group), fmt.Sprintf("g%d/e", group)}
		from := w.rng.IntN(2)
		if err := w.rename(w.tid, dirs[from], dirs[1-from], true); !errors.Is(err, block.ErrLoop) {
			w.allow("rename directory", err)
		}
	case n < 98:
		w.attributes(w.slot(group), group)
	case n < 99:
		w.quota()
	default:
		w.lower(w.slot(group))
	}
}

// quota sets a quota, or takes it away.
func (w *worker) quota() {
	all := []memory.Quota{
		{Kind: memory.QuotaGroup, Name: "g0"}, {Kind: memory.QuotaGroup, Name: "g1"}, {Kind: memory.QuotaUser, Name: "1"},
		{Kind: memory.QuotaUser, Name: "2"}, {Kind: memory.QuotaCgroup, Name: "/c/1"}, {Kind: memory.QuotaCgroup, Name: "/c"},
		{Kind: memory.QuotaGroup, Name: "g0", Pinned: true}, {Kind: memory.QuotaUser, Name: "1", Pinned: true},
		{Kind: memory.QuotaUser, Name: "3", Pinned: true}, {Kind: memory.QuotaCgroup, Name: "/c/2", Pinned: true},
	}
	q := all[w.rng.IntN(len(all))]
	q.Bytes = int64(w.rng.IntN(4)) * 6 * page
	if err := w.e.Accounts().SetQuota(context.Background(), q); err != nil && (q.Bytes > 0 || !errors.Is(err, block.ErrInvalid)) { // else there is none
		w.t.Errorf("%+v: %v", q, err)
	}
}

// lower is an operation that is about the secondary tiers.
func (w *worker) lower(name string) {
	a, err := w.lookup(w.tid, name)
	if err != nil {
		return
	}
	defer w.forget(a.ID)
	switch tier := append([]string{"memory"}, tierNames[:len(w.refs)]...)[w.rng.IntN(len(w.refs)+1)]; w.rng.IntN(4) {
	case 0:
		_, err := w.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: tier, Paths: []string{name}, Force: w.rng.IntN(4) == 0})
		w.allow("evict", err)
	case 1:
		if err := w.e.Fsync(context.Background(), a.ID); !errors.Is(err, block.ErrUnavailable) {
			w.allow("fsync", err)
		}
	case 2:
		if _, err := w.e.OpenRead(context.Background(), a.ID, by(w.tid), true); err == nil {
			w.e.CloseRead(a.ID)
		} else if !errors.Is(err, block.ErrPending) && !errors.Is(err, state.ErrStale) {
			w.allow("open without waiting", err)
		}
	case 3:
		w.e.TierNames(a.ID)
		w.e.PresenceOf(a.ID)
		w.e.TellTouched()
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

// stormSetup is one row of TestStorm.
type stormSetup struct {
	o    state.Options
	refs []tiertest.ReferenceOptions

	later bool // open as a front does that must not wait
	bare  bool // the first tier can do no more than it must
	found bool // the first tier is a driver.Finder
}

// stormSetups are small engines of every kind: with no secondary tier, one, and two,
// which are too small for all blocks, and take their time.
func stormSetups() []stormSetup {
	slow := func(pages int64) tiertest.ReferenceOptions {
		return tiertest.ReferenceOptions{CapacityBytes: pages * page, Latency: time.Millisecond, Clock: jitter{}, OnJob: checkJob}
	}
	faulty := slow(64)
	faulty.Faults = tiertest.NewPlan(
		tiertest.Rule{Op: tiertest.OpStore, Every: 5, Fault: tiertest.Fault{Corrupt: true}},
		tiertest.Rule{Op: tiertest.OpLoad, Every: 7, Fault: tiertest.Fault{Err: block.ErrUnavailable}},
	)
	quota := map[block.GroupID]state.GroupOptions{"g1": {QuotaBytes: 20 * page}}
	return []stormSetup{
		{o: state.Options{CapacityBytes: 24 * page, Policy: "lru"}},
		{o: state.Options{CapacityBytes: 40 * page, HeadroomBytes: 16 * page, Policy: "arc", HighWatermark: 0.9, LowWatermark: 0.5}},
		{o: state.Options{CapacityBytes: 256 * page, Policy: "s3fifo", LookupLease: time.Second}},
		{o: state.Options{CapacityBytes: 40 * page, Groups: quota}},
		{o: state.Options{CapacityBytes: 24 * page}, refs: []tiertest.ReferenceOptions{slow(256)}},
		{o: state.Options{CapacityBytes: 40 * page, Groups: quota, PromoteOnLookup: true}, refs: []tiertest.ReferenceOptions{slow(32)}, later: true},
		{o: state.Options{CapacityBytes: 32 * page, Policy: "s3fifo", PromoteWindow: 100 * time.Microsecond, PromoteBatchKeys: 3},
			refs: []tiertest.ReferenceOptions{slow(24), slow(200)}, later: true},
		{o: state.Options{CapacityBytes: 32 * page, LookupLease: 10 * time.Millisecond, Secondaries: []state.SecondaryOptions{
			{Cascade: state.CascadeSync, QueueBytes: 8 * page}, {SecondHit: true}}},
			refs: []tiertest.ReferenceOptions{slow(40), {CapacityBytes: 16 * page, Direct: true}}},
		{o: state.Options{CapacityBytes: 24 * page, Policy: "arc"}, refs: []tiertest.ReferenceOptions{slow(1024)}, bare: true},
		{o: state.Options{CapacityBytes: 24 * page}, refs: []tiertest.ReferenceOptions{slow(64)}, found: true},
		{o: state.Options{CapacityBytes: 24 * page}, refs: []tiertest.ReferenceOptions{faulty, slow(64)}},
	}
}

// checkJob panics at a job that makes no sense (A5, C18).
func checkJob(_ tiertest.Op, j *driver.Job) {
	seen := map[block.Key]bool{}
	for _, b := range j.Blocks {
		if seen[b.Key] || b.Key == (block.Key{}) || b.File == nil {
			panic("two blocks with one key, or one without a key or file")
		}
		seen[b.Key] = true
	}
	if len(j.Blocks) == 0 || j.ID == 0 || j.Done == nil {
		panic("empty job")
	}
}

// TestStorm: processes write, rename, rewrite, read, unlink and change blocks of
// few names in little room at the same time, while blocks go down to secondary
// tiers, leave memory, and come up again. Every read is checked byte for byte
// (C20); a version that was not committed is never seen; the events tell in the
// end which blocks there are (A39); each tier holds in the end what the engine
// believes (A13); and nothing is left when all is removed (A24).
func TestStorm(t *testing.T) {
	for i, row := range stormSetups() {
		t.Run(fmt.Sprintf("%d %s %d", i, row.o.Policy, row.o.CapacityBytes/page), func(t *testing.T) {
			o := row.o
			var clock aheadClock
			o.WriteTimeout, o.Now = 20*time.Millisecond, clock.now
			var refs []*tiertest.Reference
			for _, r := range row.refs {
				refs = append(refs, tiertest.NewReference(t, r))
			}
			if row.bare {
				o.Secondaries = []state.SecondaryOptions{{Tier: bare{refs[0]}}}
			} else if row.found {
				o.Secondaries = []state.SecondaryOptions{{Tier: tiertest.Finding{Reference: refs[0]}}}
			}
			s := newStorm(openLower(t, shmDir(t), o, refs...))
			s.later, s.users, s.bare = row.later, true, row.bare
			s.blow(seed(t))
			st := s.e.Stats()
			t.Logf("%d reads, %d versions, %+v", s.reads.Load(), s.version.Load(), st.Counters)
			for _, l := range st.Secondaries {
				t.Logf("%s: %d cascaded, %d promoted, %d absent, %d skipped, %d dropped, tier %+v", l.Name, l.Cascaded, l.Promoted, l.PromoteAbsent, l.CascadeSkipped, l.CascadeDropped, l.Stats)
			}
			s.quiesce()
			s.replay()
			if s.absent > 0 && !row.bare { // of a bare one, a rename takes copies away
				t.Errorf("%d copies were not where they were thought to be", s.absent)
			}
			clock.add(24 * time.Hour) // versions that nobody opened, and temporary files, expire
			s.e.Expire()
			s.end()
		})
	}
}

// blow runs the workers.
func (s *storm) blow(seed uint64) {
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
}

// replay follows the events and compares with what is there.
func (s *storm) replay() {
	s.t.Helper()
	told := map[string]*copies{}
	buf := make([]event.Event, event.Ring)
	n, missed, err := s.e.Events().Read(context.Background(), 1, buf)
	if err != nil || missed != 0 {
		s.t.Fatalf("events: missed %d, %v", missed, err)
	}
	for _, ev := range buf[:n] {
		if follow(told, ev); ev.Reason == outcome.ReasonAbsent {
			s.absent++
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
			if a, err := s.e.Resolve(context.Background(), name); err == nil && a.Mode&0o170000 != 0o040000 && !a.Temp {
				there[name] = a.Size
			}
		}
	}
	for name, size := range there {
		if c := told[name]; c == nil || c.size != size && !c.unsure {
			s.t.Errorf("%s: %d bytes are there, the events say %+v", name, size, c)
		}
	}
	for name := range told {
		// A directory's rename has no event for what is below.
		if _, ok := there[name]; !ok && !told[name].unsure && strings.Count(name, "/") == 1 {
			s.t.Errorf("%s: not there, the events say it is", name)
		}
	}
}

// copies is what the events say of one block.
type copies struct {
	size   int64
	tiers  map[string]bool
	unsure bool
}

// follow applies an event.
func follow(told map[string]*copies, ev event.Event) {
	name := ev.Key.Path()
	c := told[name]
	switch ev.Kind {
	case event.Stored:
		if c == nil || ev.Tier == "memory" && ev.Reason == 0 { // another version
			c = &copies{tiers: map[string]bool{}}
			told[name] = c
		}
		c.size, c.tiers[ev.Tier] = ev.Size, true
	case event.Renamed:
		told[name] = told[ev.From.Path()]
		delete(told, ev.From.Path())
		if told[name] == nil || strings.Count(ev.From.Path(), "/") > 1 { // a directory's rename has no event
			told[name] = &copies{tiers: map[string]bool{}, unsure: true}
		}
	case event.Evicted:
		if c == nil || c.unsure {
			return
		}
		if delete(c.tiers, ev.Tier); len(c.tiers) == 0 {
			delete(told, name)
		}
	case event.Removed:
		delete(told, name)
	}
}

// TestUnlinkDuringCreate: a file that Create found in place may go before Create
// opens it; Create then makes it, or asks for another look-up.
func TestUnlinkDuringCreate(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		h := &hooked{}
		w := open(t, shmDir(t), state.Options{Primary: h})
		must(t, w.put(10, "a", []byte("x")))
		h.remove = func() {
			must(t, w.unlink(30, "a"))
			if reuse { // its number goes to another file
				must(t, w.put(30, "b", []byte("other")))
			}
		}
		f, err := w.create(20, "a", false, false)
		if err == nil {
			f.rewrite("y", 0)
			must(t, f.close())
		} else if !errors.Is(err, state.ErrStale) {
			t.Errorf("create: %v", err)
		}
		if got := w.content("b"); reuse && got != "other" {
			t.Errorf("create of one file changed another: got %q", got)
		}
		w.close(false)
	}
}

// TestUnlinkDuringOpen: a name may go while another process opens it for writing.
func TestUnlinkDuringOpen(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	var done atomic.Bool
	var wg sync.WaitGroup
	for i := range uint32(2) {
		wg.Go(func() {
			tid := 20 + 10*i
			for !done.Load() {
				if f, err := w.openWrite(context.Background(), tid, "a", true); err == nil {
					f.release()
				} else if !errors.Is(err, block.ErrNotFound) && !errors.Is(err, state.ErrStale) {
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

// contents reads every committed file, without those that have temporary names.
func (w *world) contents(dir string, all map[string][]byte) map[string][]byte {
	w.t.Helper()
	names, err := w.names(990, dir)
	must(w.t, err)
	for _, n := range names {
		p := strings.TrimPrefix(dir+"/"+n, "/")
		switch a, err := w.e.Resolve(context.Background(), p); {
		case err != nil || strings.Contains(n, ".tmp"):
		case a.Mode&0o170000 == 0o040000:
			w.contents(p, all)
		default:
			data, err := w.get(990, p)
			if err != nil {
				w.t.Errorf("%s: %v", p, err)
			}
			all[p] = data
		}
	}
	return all
}

// TestStormRestart: after a storm the engine is closed, or dies, or dies with its
// memory, and the next one has every block again, bytes and all: what only memory had
// if that is there still, and what was copied down in any case (A11).
func TestStormRestart(t *testing.T) {
	seed := seed(t)
	for i, end := range []string{"close", "crash", "memory gone"} {
		t.Run(end, func(t *testing.T) {
			dir := shmDir(t)
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Latency: time.Millisecond, Clock: jitter{}, OnJob: checkJob})
			var clock aheadClock
			o := state.Options{CapacityBytes: 32 * page, WriteTimeout: 20 * time.Millisecond, Now: clock.now}
			s := newStorm(openLower(t, dir, o, disk))
			s.blow(seed + uint64(i))
			clock.add(24 * time.Hour) // temporary files, of which memory may be full, go
			s.e.Expire()
			s.quiesce()
			want := s.contents("", map[string][]byte{})
			s.quiesce() // what reading has evicted was copied before
			if end != "close" {
				s.crash()
				must(t, disk.Close(context.Background()))
			} else {
				s.close(true)
			}
			again := disk.Reopen()
			if end == "memory gone" {
				must(t, os.RemoveAll(dir+"/s"))
			}
			next := openLower(t, dir, o, again)
			next.quiesce()
			got := next.contents("", map[string][]byte{})
			for name, data := range want {
				if !bytes.Equal(got[name], data) {
					t.Errorf("%s: %d bytes after the restart, %d before", name, len(got[name]), len(data))
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("%s is there after the restart, but was not before", name)
			}
			next.end()
		})
	}
}
