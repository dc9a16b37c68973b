package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/pack"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// open opens a tier over a store, which lists it often. edit may change the options.
func (s *store) tier(t *testing.T, writer uint64, edit func(*Options)) *Tier {
	t.Helper()
	o := Options{Bucket: s.open(), Writer: writer, Linger: time.Millisecond, Refresh: time.Millisecond}
	if edit != nil {
		edit(&o)
	}
	tier, err := New(o)
	must(t, err)
	t.Cleanup(func() { tier.Close(context.Background()) })
	return tier
}

// listed opens a tier, which has listed the store.
func (s *store) listed(t *testing.T, writer uint64, edit func(*Options)) *Tier {
	t.Helper()
	tier := s.tier(t, writer, edit)
	until(t, "not listed", tier.learned.Load)
	return tier
}

// reopened closes a tier, and opens that of another node.
func (s *store) reopened(t *testing.T, tier *Tier) *Tier {
	t.Helper()
	tier.Close(context.Background())
	return s.listed(t, 9<<32, nil)
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestConformance runs the suite of all tiers over a bucket in memory: with packs, with each block an object of its own,
// and with a store that fails at random (A35).
func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name  string
		below int64
		fails bool
	}{{"packed", 0, false}, {"alone", -1, false}, {"faulty", 0, true}} {
		t.Run(tt.name, func(t *testing.T) {
			stores := map[driver.Tier]*store{}
			open := func(t *testing.T) driver.Tier {
				s := newStore()
				if tt.fails {
					s.broken = func(string, string) error {
						if rand.IntN(4) == 0 {
							return errors.Join(block.ErrUnavailable, errors.New("503 slow down"))
						}
						return nil
					}
				}
				tier := s.tier(t, 1, func(o *Options) { o.PackBelow = tt.below })
				stores[tier] = s
				return tier
			}
			corrupt := func(t *testing.T, tier driver.Tier, key block.Key) {
				r, has := tier.(*Tier).catalog.Get(key)
				p, known := tier.(*Tier).catalog.Pack(r.Pack)
				if !has || !known {
					t.Fatalf("%v is not there", key)
				}
				stores[tier].change(func() {
					stores[tier].objects[nameOf(p).String()][r.Offset+pack.HeaderBytes+int64(len(key.Path()))] ^= 1
				})
			}
			if tt.fails {
				corrupt = nil // whether the load that finds it takes place is a matter of chance
			}
			suite.Run(t, open, suite.Options{
				Faulty: tt.fails, MaxKeyBytes: block.MaxPath, CommitTimes: true, Corrupt: corrupt,
				Budgeted: func(t *testing.T) driver.Tier {
					return newStore().tier(t, 1, func(o *Options) { o.BudgetBytes = 10 * 4096 })
				},
			})
		})
	}
}

// put is a block of a test.
type put struct {
	path  string
	seq   uint64
	data  []byte
	attrs driver.Attrs
}

func newPut(path string, seq uint64, size int) put {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(seq), byte(size)}).Read(data)
	return put{path, seq, data, driver.Attrs{Seq: seq, Mode: 0o640, UID: 7, GID: 8, Mtime: 1e18 + int64(seq)}}
}

// file returns a file in memory with some content.
func file(t *testing.T, data []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("block", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "block")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func keyOf(t *testing.T, path string) block.Key {
	t.Helper()
	key, err := block.ParseKey(path)
	must(t, err)
	return key
}

// runJob runs a job and returns its outcomes.
func runJob(t *testing.T, op func(*driver.Job), transfers ...driver.Transfer) []driver.Outcome {
	t.Helper()
	return <-begin(op, transfers...)
}

// begin begins a job, and returns where its outcomes come.
func begin(op func(*driver.Job), transfers ...driver.Transfer) <-chan []driver.Outcome {
	done := make(chan []driver.Outcome, 1)
	op(&driver.Job{ID: 1, Blocks: transfers, Done: func(r *driver.Result) { done <- r.Outcomes }})
	return done
}

func (p put) transfer(t *testing.T) driver.Transfer {
	return driver.Transfer{Key: keyOf(t, p.path), Size: int64(len(p.data)), Sum: block.Sum(p.data), Attrs: p.attrs, File: file(t, p.data)}
}

// stored stores blocks with one job.
func stored(t *testing.T, tier *Tier, puts ...put) {
	t.Helper()
	var transfers []driver.Transfer
	for _, p := range puts {
		transfers = append(transfers, p.transfer(t))
	}
	for _, o := range runJob(t, tier.Store, transfers...) {
		if o.Status != driver.Stored {
			t.Fatalf("store %v: %v, %v", o.Key, o.Status, o.Err)
		}
	}
}

// load loads a block as a reader does that knows only what Find says.
func load(t *testing.T, tier *Tier, path string, size int) ([]byte, driver.Outcome) {
	t.Helper()
	f := file(t, nil)
	o := runJob(t, tier.Load, driver.Transfer{Key: keyOf(t, path), Size: int64(size), File: f})[0]
	data := make([]byte, size)
	if o.Status == driver.Loaded {
		if n, err := f.ReadAt(data, 0); n < size {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return data, o
}

// wantBlocks checks that a tier has blocks, with their attributes and bytes.
func wantBlocks(t *testing.T, tier *Tier, puts ...put) {
	t.Helper()
	for _, p := range puts {
		l, has := tier.Find(p.path)
		want := driver.Located{Seq: p.seq, Size: int64(len(p.data)), Mode: modeFile | 0o640, UID: 7, GID: 8, Mtime: int64(p.seq)}
		if !has || l != want {
			t.Errorf("Find %s: got %+v, %v; want %+v", p.path, l, has, want)
			continue
		}
		data, o := load(t, tier, p.path, len(p.data))
		if o.Status != driver.Loaded || !bytes.Equal(data, p.data) {
			t.Errorf("load %s: %v, %v, equal bytes: %v", p.path, o.Status, o.Err, bytes.Equal(data, p.data))
		}
	}
}

// wantGone checks that a tier has none of some paths.
func wantGone(t *testing.T, tier *Tier, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if l, has := tier.Find(path); has {
			t.Errorf("Find %s: got %+v, want nothing", path, l)
		}
	}
}

// until waits for a condition, which the tier brings about in the background.
var until = harness.Poll

func found(tier *Tier, path string) func() bool {
	return func() bool { _, has := tier.Find(path); return has }
}

func gone(tier *Tier, path string) func() bool {
	return func() bool { return !found(tier, path)() }
}

// TestRestart shows that blocks, their directories and removals outlive the process, and that nothing is listed by those
// who ask.
func TestRestart(t *testing.T) {
	s := newStore()
	var puts []put
	for i := range 40 {
		puts = append(puts, newPut(fmt.Sprintf("g%d/d/block%d", i%3, i), uint64(i+1), 1000*i))
	}
	first := s.tier(t, 1, nil)
	stored(t, first, puts...)
	old := newPut("g0/d/replaced", 100, 500)
	stored(t, first, old)
	now := newPut("g0/d/replaced", 101, 700)
	stored(t, first, now)
	if n := first.Remove([]block.Key{keyOf(t, puts[0].path), keyOf(t, puts[1].path)}); n != 2 {
		t.Errorf("removed %d, want 2", n)
	}
	must(t, first.Close(context.Background()))
	second := s.listed(t, 2, nil)
	wantBlocks(t, second, append(puts[2:], now)...)
	wantGone(t, second, puts[0].path, puts[1].path, "g0/d/none", "none")
	for _, dir := range []string{"g0", "g0/d", "g2/d"} {
		if l, has := second.Find(dir); !has || l.Mode&modeDir == 0 {
			t.Errorf("Find %s: got %+v, %v; want a directory", dir, l, has)
		}
	}
	if got := second.Stats(); got.Blocks != int64(len(puts)-2+1) || got.State != "online" {
		t.Errorf("stats: %+v", got)
	}
}

// TestSmallBlocksTogether shows that the blocks of a job go into one object and come back with one request.
func TestSmallBlocksTogether(t *testing.T) {
	s := newStore()
	tier := s.tier(t, 1, func(o *Options) { o.Linger, o.Refresh = time.Hour, time.Hour })
	var puts []put
	var loads []driver.Transfer
	for i := range 100 {
		p := newPut(fmt.Sprintf("g/%03d", i), uint64(i+1), 64<<10)
		puts = append(puts, p)
		loads = append(loads, driver.Transfer{Key: keyOf(t, p.path), Size: 64 << 10, File: file(t, nil)})
	}
	var transfers []driver.Transfer
	for _, p := range puts {
		transfers = append(transfers, p.transfer(t))
	}
	done := make(chan *driver.Result, 1)
	tier.Store(&driver.Job{ID: 1, Force: true, Blocks: transfers, Done: func(r *driver.Result) { done <- r }})
	<-done
	if s.puts != 1 {
		t.Errorf("%d blocks took %d requests, want 1", len(puts), s.puts)
	}
	gets := s.gets
	for _, o := range runJob(t, tier.Load, loads...) {
		if o.Status != driver.Loaded {
			t.Errorf("%v: %v, %v", o.Key, o.Status, o.Err)
		}
	}
	if n := s.gets - gets; n != 1 {
		t.Errorf("%d neighbours took %d requests, want 1", len(puts), n)
	}
}

// TestShared shows two nodes with one bucket: each finds what the other stored, a removal by one reaches the other,
// and of two versions the later one counts for both.
func TestShared(t *testing.T) {
	s := newStore()
	a, b := s.tier(t, 1<<32, nil), s.tier(t, 2<<32, nil)
	x, y := newPut("g/x", 5, 3000), newPut("g/y", 6, 5<<20)
	stored(t, a, x)
	stored(t, b, y)
	until(t, "a does not find y", found(a, "g/y"))
	until(t, "b does not find x", found(b, "g/x"))
	wantBlocks(t, a, x, y)
	wantBlocks(t, b, x, y)
	a.Remove([]block.Key{keyOf(t, "g/y")})
	until(t, "b still finds y", gone(b, "g/y"))
	later := newPut("g/x", 9, 100)
	stored(t, b, later)
	until(t, "a has the old x", func() bool { l, _ := a.Find("g/x"); return l.Seq == 9 })
	wantBlocks(t, a, later)
	stored(t, a, newPut("g/x", 12, 10))
	wantGone(t, a, "g/y")
}

// TestVanished shows that a pack that somebody else deleted is a miss, not an error.
func TestVanished(t *testing.T) {
	s := newStore()
	tier := s.tier(t, 1, func(o *Options) { o.Refresh = time.Hour })
	p := newPut("g/x", 5, 3000)
	stored(t, tier, p)
	s.change(func() { clear(s.objects) })
	if _, o := load(t, tier, p.path, 3000); o.Status != driver.Absent || o.Err != nil {
		t.Errorf("got %v, %v", o.Status, o.Err)
	}
	wantGone(t, tier, p.path, "g")
}

// TestForeign shows that objects of others and damaged ones below the prefix do no harm.
func TestForeign(t *testing.T) {
	s := newStore()
	first := s.tier(t, 1, nil)
	p := newPut("g/x", 5, 3000)
	stored(t, first, p)
	name := s.names(".pack")[0]
	s.change(func() {
		good := s.objects[name]
		s.objects["photo.jpg"] = []byte("not ours")
		s.objects["0000000000000001-0000000000000002-00000001.pack"] = []byte("too short")
		s.objects["0000000000000001-0000000000000002.tomb"] = []byte("nonsense")
		s.objects["0000000000000003-0000000000000002"+name[33:]] = good // under another name
		bad := slices.Clone(good)
		bad[len(bad)-100] ^= 1
		s.objects["0000000000000004-0000000000000002"+name[33:]] = bad
	})
	second := s.listed(t, 2, nil)
	wantBlocks(t, second, p)
	if got := second.Stats(); got.Blocks != 1 {
		t.Errorf("stats: %+v", got)
	}
}

// TestOutage shows that a store that is away is a miss at once, that stores then fail, and that all is well afterwards.
func TestOutage(t *testing.T) {
	s := newStore()
	tier := s.tier(t, 1, nil)
	p := newPut("g/x", 5, 3000)
	stored(t, tier, p)
	s.change(func() { s.away = true })
	wantGone(t, tier, p.path)
	if err := tier.Lookup(context.Background(), []block.Key{keyOf(t, p.path)}, make([]driver.Presence, 1)); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Lookup: %v", err)
	}
	if _, o := load(t, tier, p.path, 3000); !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("load: %v, %v", o.Status, o.Err)
	}
	q := newPut("g/y", 6, 3000)
	if o := runJob(t, tier.Store, q.transfer(t))[0]; !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("store: %v, %v", o.Status, o.Err)
	}
	if got := tier.Stats(); got.State != "offline" {
		t.Errorf("stats: %+v", got)
	}
	s.change(func() { s.away = false })
	stored(t, tier, q)
	wantBlocks(t, tier, p, q)
}

// TestReadOnly shows that credentials without the right to write make the tier read-only.
func TestReadOnly(t *testing.T) {
	s := newStore()
	p := newPut("g/x", 5, 3000)
	stored(t, s.tier(t, 1, nil), p)
	s.change(func() {
		s.broken = func(op, _ string) error {
			if op == "put" || op == "delete" {
				return fmt.Errorf("403: %w", block.ErrReadOnly)
			}
			return nil
		}
	})
	tier := s.listed(t, 2, nil)
	if o := runJob(t, tier.Store, newPut("g/y", 6, 10).transfer(t))[0]; !errors.Is(o.Err, block.ErrReadOnly) {
		t.Errorf("store: %v, %v", o.Status, o.Err)
	}
	if got := tier.Stats(); got.State != "degraded" {
		t.Errorf("stats: %+v", got)
	}
	wantBlocks(t, tier, p)
}

// TestClockAhead shows that an object whose name has a time far ahead does not hide what is stored now.
func TestClockAhead(t *testing.T) {
	s := newStore()
	s.change(func() { s.objects["7000000000000000-0000000000000009-00000001.pack"] = []byte("of a wrong clock") })
	a, b := s.tier(t, 1<<32, nil), s.tier(t, 2<<32, nil)
	until(t, "not listed", func() bool { return a.learned.Load() && b.learned.Load() })
	stored(t, b, newPut("g/x", 5, 3000))
	until(t, "a does not find x", found(a, "g/x"))
}

// TestRemoveFromAhead shows that a node can remove a block that a node with a clock ahead has stored, and store it again.
func TestRemoveFromAhead(t *testing.T) {
	s, p := newStore(), newPut("g/x", 5, 3000)
	ahead := s.tier(t, 1<<32, func(o *Options) { o.Now = func() time.Time { return time.Now().Add(overlap / 2) } })
	stored(t, ahead, p)
	b := s.tier(t, 2<<32, nil)
	until(t, "b does not find x", found(b, p.path))
	b.Remove([]block.Key{keyOf(t, p.path)})
	wantGone(t, b, p.path)
	until(t, "the other node does not know of the removal", gone(ahead, p.path))
	stored(t, b, p)
	wantBlocks(t, b, p)
	again := s.reopened(t, b)
	wantBlocks(t, again, p)
}
