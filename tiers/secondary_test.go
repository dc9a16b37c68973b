package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// guest is a reference tier that shows the Host it was given.
type guest struct {
	*tiertest.Reference
	host driver.Host
}

// SetHost implements driver.Hosted.
func (g *guest) SetHost(h driver.Host) {
	g.host = h
	g.Reference.SetHost(h)
}

// openGuest starts an engine over a guest and, if two is set, a second tier.
func openGuest(t *testing.T, o state.Options, two bool) (*lower, *guest) {
	t.Helper()
	g := &guest{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{})}
	refs := []*tiertest.Reference{g.Reference}
	if two {
		refs = append(refs, tiertest.NewReference(t, tiertest.ReferenceOptions{}))
	}
	o.CapacityBytes = 64 * page
	o.Secondaries = []state.SecondaryOptions{{Tier: g}}
	return openLower(t, shmDir(t), o, refs...), g
}

// TestMayEvict: a tier may evict a copy unless it is the only one and was promised:
// leased, open, pinned, on its way up; or while it is being stored, or the name is
// changing. What it may
// evict, the engine counts on no longer (A22).
func TestMayEvict(t *testing.T) {
	for _, row := range []struct {
		name  string
		two   bool
		do    func(w *lower, g *guest)
		key   string
		want  bool
		where string // a, afterwards
	}{
		{"in memory too", false, func(w *lower, g *guest) { w.content("a") }, "a", true, "[memory]"},
		{"nonresident", false, func(w *lower, g *guest) {}, "a", true, "ErrNotFound"},
		{"nonresident, another tier", true, func(w *lower, g *guest) {}, "a", true, "[peer]"},
		{"unknown", false, func(w *lower, g *guest) {}, "b", true, "[disk]"},
		{"directory", false, func(w *lower, g *guest) { must(w.t, w.mkdir("b")) }, "b", true, "[disk]"},
		{"pinned", false, func(w *lower, g *guest) {
			must(w.t, w.e.SetPinned(resolve(w.t, w.world, "a").ID, true))
			w.quiesce()
		}, "a", false, "[disk]"},
		{"pinned, another tier", true, func(w *lower, g *guest) {
			must(w.t, w.e.SetPinned(resolve(w.t, w.world, "a").ID, true))
			w.quiesce()
		}, "a", true, "[peer]"},
		{"promoted", false, func(w *lower, g *guest) {
			release := g.Hold(tiertest.OpLoad)
			w.t.Cleanup(release)
			id := resolve(w.t, w.world, "a").ID
			if _, err := w.e.OpenRead(context.Background(), id, by(10), true); kind(err) != "ErrPending" {
				w.t.Error(err)
			}
		}, "a", false, "[disk]"},
		{"being stored", false, func(w *lower, g *guest) { // the tier may have it, and the engine does not know yet
			release := g.Hold(tiertest.OpStore)
			w.t.Cleanup(release)
			must(w.t, w.put(10, "b", []byte("b")))
			must(w.t, g.AwaitSubmitted(until(w.t), tiertest.OpStore, 2))
		}, "b", false, "[disk]"},
		{"being renamed", false, func(w *lower, g *guest) {
			release := g.Hold(tiertest.OpStore) // the update waits for the store of the target
			w.t.Cleanup(release)
			must(w.t, w.put(10, "b", []byte("b")))
			must(w.t, g.AwaitSubmitted(until(w.t), tiertest.OpStore, 2), w.rename(10, "a", "b", false))
		}, "a", false, "ErrNotFound"},
		{"gets the name of another", false, func(w *lower, g *guest) {
			release := g.Hold(tiertest.OpStore)
			w.t.Cleanup(release)
			must(w.t, w.put(10, "b", []byte("b")))
			must(w.t, g.AwaitSubmitted(until(w.t), tiertest.OpStore, 2), w.rename(10, "a", "b", false))
		}, "b", false, "ErrNotFound"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, g := openGuest(t, state.Options{}, row.two)
			t.Cleanup(func() { w.e.Close(context.Background(), false) })
			w.nonresident("a", "a")
			row.do(w, g)
			if got := g.host.MayEvict(mustKey(t, row.key)); got != row.want {
				t.Errorf("got %v", got)
			}
			w.audit()
			w.wantWhere("a", row.where)
		})
	}
}

// TestLostWhileRenamed: a copy that is lost while its name changes is missed when the
// tier is told of the change, and stored anew from memory.
func TestLostWhileRenamed(t *testing.T) {
	w, g := openGuest(t, state.Options{}, false)
	must(t, w.put(10, "a", []byte("a")))
	w.quiesce()
	release := g.Hold(tiertest.OpStore)
	must(t, w.put(10, "b", []byte("b")), g.AwaitSubmitted(until(t), tiertest.OpStore, 2), w.rename(10, "a", "b", false))
	g.Remove([]block.Key{mustKey(t, "a")})
	g.host.Lost(mustKey(t, "a"), block.ErrCorrupt)
	g.host.Lost(mustKey(t, "b"), block.ErrCorrupt) // of the old one
	release()
	w.quiesce()
	w.wantHeld(g.Reference, "b=a")
	w.wantWhere("b", "[memory disk]")
	w.end()
}

// forgetful is a guest that loses the copies of its first store before it says that it has them.
type forgetful struct {
	guest
	once sync.Once
}

// Store implements driver.Tier.
func (f *forgetful) Store(job *driver.Job) {
	done := job.Done
	job.Done = func(r *driver.Result) {
		f.once.Do(func() {
			for _, o := range r.Outcomes {
				f.Remove([]block.Key{o.Key})
				f.host.Lost(o.Key, block.ErrCorrupt)
			}
		})
		done(r)
	}
	f.guest.Store(job)
}

// TestLostWhileStored: a copy that is lost before the engine hears that it was stored is missed, and stored anew from
// memory.
func TestLostWhileStored(t *testing.T) {
	f := &forgetful{guest: guest{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{})}}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: f}}}, f.Reference)
	must(t, w.put(10, "a", []byte("a")))
	w.quiesce()
	w.wantHeld(f.Reference, "a=a")
	w.wantWhere("a", "[memory disk]")
	w.end()
}

// TestRestart: the next engine finds what the tiers hold, with names, attributes and
// directories; of two versions of a name the later one wins, wherever it is; and its
// commits are numbered higher (A11, A13).
func TestRestart(t *testing.T) {
	for _, keep := range []bool{true, false} {
		t.Run(fmt.Sprintf("memory kept %v", keep), func(t *testing.T) {
			dir := shmDir(t)
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
			w := openLower(t, dir, state.Options{CapacityBytes: 64 * page}, disk)
			must(t, w.mkdir("g"), w.mkdir("g/sub"))
			mode, gid := uint32(0o711), uint32(9)
			_, err := w.e.SetAttr(resolve(t, w.world, "g").ID, tiers.Change{Mode: &mode, GID: &gid})
			must(t, err)
			must(t, w.put(10, "g/both", []byte("both")), w.put(10, "top", []byte("top")))
			w.nonresident("nonresident", "g/sub/nonresident")
			id := resolve(t, w.world, "g/sub/nonresident").ID
			_, err = w.e.SetAttr(id, tiers.Change{Mode: &mode, GID: &gid})
			must(t, err, w.e.SetPinned(id, true), w.e.SetTTL(id, time.Hour))
			w.quiesce()
			before := resolve(t, w.world, "g/sub/nonresident")
			w.close(keep)
			if !keep {
				must(t, os.RemoveAll(dir+"/s"))
			}
			again := disk.Reopen()
			n := openLower(t, dir, state.Options{CapacityBytes: 64 * page}, again)
			n.audit()
			want := "[disk]"
			if keep {
				want = "[memory disk]"
			}
			n.wantWhere("g/both", want, "top", want, "g/sub/nonresident", "[disk]")
			after := resolve(t, n.world, "g/sub/nonresident")
			if after.Mode != before.Mode || after.GID != gid || after.Size != int64(len("nonresident")) || after.Mtime != before.Mtime || !n.e.Pinned(after.ID) || n.e.TTL(after.ID) == 0 {
				t.Errorf("attributes\n%+v before,\n%+v after", before, after)
			}
			if g := resolve(t, n.world, "g"); g.Mode&0o7777 != mode || g.GID != gid {
				t.Errorf("directory %+v", g)
			}
			n.wantAll(map[string]string{"g/both": "both", "top": "top", "g/sub/nonresident": "nonresident"})
			seq := held(again)["g/both"].Attrs.Seq
			must(t, n.put(10, "g/both", []byte("later")))
			n.quiesce()
			if got := held(again)["g/both"].Attrs.Seq; got <= seq {
				t.Errorf("a new version has number %d after %d", got, seq)
			}
			must(t, n.e.SetPinned(after.ID, false))
			n.end()
		})
	}
}

// plant stores a block in a tier without an engine.
func plant(t testing.TB, r *tiertest.Reference, path, data string, a driver.Attrs) {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer file.Close()
	_, err = file.WriteString(data)
	must(t, err)
	done := make(chan *driver.Result, 1)
	r.Store(&driver.Job{ID: 1, Done: func(res *driver.Result) { done <- res }, Blocks: []driver.Transfer{
		{Key: mustKey(t, path), Size: int64(len(data)), Attrs: a, File: file},
	}})
	if o := (<-done).Outcomes[0]; o.Status != driver.Stored {
		t.Fatalf("%s: %+v", path, o)
	}
}

// TestRestartConflicts: what the tiers hold of an earlier time and does not fit goes:
// older versions, what has expired, what is below a file or is called as a directory.
func TestRestartConflicts(t *testing.T) {
	dir := shmDir(t)
	w := open(t, dir, state.Options{CapacityBytes: 64 * page})
	must(t, w.mkdir("d"), w.put(10, "newer in memory", []byte("memory")), w.put(10, "older in memory", []byte("memory")), w.put(10, "only memory", []byte("memory")))
	w.close(true)
	disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
	high := uint64(time.Now().Add(time.Hour).UnixNano())
	plant(t, disk, "newer in memory", "disk", driver.Attrs{Seq: 1})
	plant(t, disk, "older in memory", "disk", driver.Attrs{Seq: high, Mode: 0o600})
	plant(t, disk, "d", "disk", driver.Attrs{Seq: high})
	plant(t, disk, "only memory/below", "disk", driver.Attrs{Seq: high})
	plant(t, disk, "expired", "disk", driver.Attrs{Seq: 5, Expires: 1})
	plant(t, disk, "newer on peer", "disk", driver.Attrs{Seq: 5})
	plant(t, peer, "newer on peer", "peer", driver.Attrs{Seq: 6})
	plant(t, disk, "newer on disk", "disk", driver.Attrs{Seq: 7})
	plant(t, peer, "newer on disk", "peer", driver.Attrs{Seq: 6})
	plant(t, disk, "x/y/z", "disk", driver.Attrs{Seq: 5, Dirs: []driver.DirAttrs{{Mode: 0o700, UID: 3}, {Mode: 0o711}}})
	n := openLower(t, dir, state.Options{CapacityBytes: 64 * page}, disk, peer)
	n.quiesce()
	n.wantAll(map[string]string{
		"newer in memory": "memory", "older in memory": "disk", "only memory": "memory", "expired": "ErrNotFound",
		"newer on peer": "peer", "newer on disk": "disk", "x/y/z": "disk", "d": "ErrIsDir", "only memory/below": "ErrNotFound",
	})
	if x, y := resolve(t, n.world, "x"), resolve(t, n.world, "x/y"); x.Mode&0o7777 != 0o700 || x.UID != 3 || y.Mode&0o7777 != 0o711 {
		t.Errorf("directories %+v, %+v", x, y)
	}
	if got, want := holds(disk), "[newer in memory newer on disk older in memory only memory x/y/z]"; got != want {
		t.Errorf("disk holds\n%s, want\n%s", got, want)
	}
	must(t, n.put(10, "x/y/z", []byte("new"))) // numbered above all that was found
	n.quiesce()
	if got := held(disk)["x/y/z"].Attrs.Seq; got <= high {
		t.Errorf("number %d, not above %d", got, high)
	}
	n.end()
}

// TestRestartSmaller: a restart with less memory than before loses nothing that has a
// copy, and stays below its capacity.
func TestRestartSmaller(t *testing.T) {
	dir := shmDir(t)
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, dir, state.Options{CapacityBytes: 64 * page}, disk)
	for i := range 32 {
		must(t, w.put(10, fmt.Sprint(i), fill("2p", "x")))
	}
	w.quiesce()
	w.close(true)
	again := disk.Reopen()
	n := openLower(t, dir, state.Options{CapacityBytes: 16 * page}, again)
	n.quiesce()
	if st := n.e.Stats(); st.Blocks != 8 || st.Nonresident != 24 || st.Counters.Lost != 0 || st.UsedBytes != 16*page {
		t.Errorf("%+v", st)
	}
	n.end()
}

// TestCloseRemoves: removals that wait for a store when the engine closes are done
// nevertheless, so that what was removed does not come back.
func TestCloseRemoves(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{}, disk)
	release := disk.Hold(tiertest.OpStore)
	must(t, w.put(10, "a", []byte("a")), disk.AwaitSubmitted(until(t), tiertest.OpStore, 1), w.unlink(10, "a"))
	done := make(chan error, 1)
	go func() { done <- w.e.Close(until(t), true) }()
	release()
	must(t, <-done)
	again := disk.Reopen()
	defer again.Close(context.Background())
	if got := holds(again); got != "[]" {
		t.Errorf("held %s", got)
	}
}

// TestCloseDrain: who waits for stores that the engine will not begin any more is told.
func TestCloseDrain(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page}, disk)
	release := disk.Hold(tiertest.OpStore)
	for i := range 4 { // as many jobs as may be under way
		must(t, w.put(10, fmt.Sprint(i), []byte("x")), disk.AwaitSubmitted(until(t), tiertest.OpStore, i+1))
	}
	must(t, w.put(10, "a", []byte("x")))
	done := make(chan error, 2)
	id := resolve(t, w.world, "a").ID
	go func() { done <- w.e.Drain(until(t)) }()
	go func() { done <- w.e.Fsync(until(t), id) }()
	must(t, w.e.Close(until(t), true))
	for range 2 {
		if err := <-done; !errors.Is(err, block.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
	release()
}

// TestClosePromotion: promotions that nobody waits for end with the engine, and no tier
// is asked for them any more. The first tier is asked first (A16).
func TestClosePromotion(t *testing.T) {
	for _, window := range []time.Duration{0, time.Hour} {
		disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
		w := openLower(t, shmDir(t), state.Options{PromoteWindow: window}, disk, peer)
		w.nonresident("a", "a")
		disk.Remove([]block.Key{mustKey(t, "a")}) // so that it would go on to the peer
		w.t.Cleanup(disk.Hold(tiertest.OpLoad))
		if _, err := w.e.OpenRead(context.Background(), resolve(t, w.world, "a").ID, by(10), true); kind(err) != "ErrPending" {
			t.Error(err)
		}
		if window == 0 {
			must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 1))
		}
		must(t, w.e.Close(until(t), true))
		if n, _ := peer.Jobs(tiertest.OpLoad); n != 0 {
			t.Errorf("%d loads after Close", n)
		}
		if n := w.e.Promotions(); n != 0 {
			t.Errorf("%d promotions left", n)
		}
	}
}

// onWait is called when a caller may wait.
type onWait func()

// MayWait implements state.Waiter.
func (fn onWait) MayWait() { fn() }

// TestCloseNoRoom: a promotion that finds no room begins no work after the engine was closed, which has waited for all by then.
func TestCloseNoRoom(t *testing.T) {
	w, _ := openLowerOne(t, state.Options{CapacityBytes: 4 * page}, tiertest.ReferenceOptions{})
	w.nonresident(string(fill("2p", "x")), "a")
	must(t, w.put(10, "pin", fill("3p", "y")), w.e.SetPinned(resolve(t, w.world, "pin").ID, true))
	caller := by(10)
	caller.Waits = onWait(func() { must(t, w.e.Close(until(t), true)) })
	if _, err := w.e.OpenRead(context.Background(), resolve(t, w.world, "a").ID, caller, false); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("got %v", err) // context.Canceled: the work has begun
	}
}

// TestTierSummary: one line a load job, with what was opened in memory or missed since
// the line before, the groups of the batch (C17), and totals that agree (B19, B20).
func TestTierSummary(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	w, _ := openLowerOne(t, state.Options{TierSummary: true, Logger: zap.New(core)}, tiertest.ReferenceOptions{})
	must(t, w.mkdir("h"), w.mkdir("h/deep"))
	w.nonresident("content", "g/a", "h/deep/a")
	must(t, w.put(10, "g/b", []byte("four")))
	w.content("g/b")
	w.content("g/missing")
	w.content("g/a")
	w.content("h/deep/a")
	w.quiesce()
	eventually(t, "all is told", func() bool { // what the clock told of may not be written yet
		s, unknown, success := w.e.Stats().Summary, uint64(0), uint64(0)
		for _, line := range logs.FilterMessage("tier summary").All() {
			unknown += line.ContextMap()["unknown_keys"].(uint64)
			success += line.ContextMap()["success_keys"].(uint64)
		}
		return unknown > 0 && unknown == s.UnknownKeys && success == s.SuccessKeys
	})
	var memory, disk, unknown, success, failed uint64
	bytes, groups := map[string]uint64{}, map[block.GroupID]int{}
	for _, line := range logs.FilterMessage("tier summary").All() {
		m := line.ContextMap()
		memory += m["memory_keys"].(uint64)
		disk += m["disk_keys"].(uint64)
		unknown += m["unknown_keys"].(uint64)
		success += m["success_keys"].(uint64)
		failed += m["failed_keys"].(uint64)
		for tier, n := range m["bytes_by_tier"].(map[string]uint64) {
			bytes[tier] += n
		}
		byGroup, _ := m["keys_by_group"].(map[block.GroupID]int) // none for what was in memory
		for group, n := range byGroup {
			groups[group] += n
		}
		for _, field := range []string{"peer_keys", "took"} {
			if _, ok := m[field]; !ok {
				t.Errorf("no %s in %v", field, m)
			}
		}
	}
	got := fmt.Sprint(memory, disk, unknown > 0, success, failed, bytes, groups)
	if want := "1 2 true 3 0 map[disk:14 memory:4] map[g:1 h:1]"; got != want {
		t.Errorf("lines say %s, want %s", got, want)
	}
	if s := w.e.Stats().Summary; s.MemoryKeys != memory || s.DiskKeys != disk || s.UnknownKeys != unknown || s.SuccessKeys != success ||
		s.FailedKeys != 0 || fmt.Sprint(s.BytesByTier) != fmt.Sprint(bytes) {
		t.Errorf("totals %+v", s)
	}
	w.end()
}

// TestTouch: tiers are told which of their blocks were read (A28).
func TestTouch(t *testing.T) {
	told := newOrdered(t, tiertest.ReferenceOptions{CapacityBytes: 3 * page})
	w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Tier: told}}}, told.Reference)
	must(t, w.mkdir("g"))
	for _, name := range []string{"g/a", "g/b", "g/c"} {
		must(t, w.put(10, name, fill("1p", "x")))
		w.quiesce()
	}
	w.content("g/a")
	w.e.TellTouched()
	eventually(t, "the tier is told", func() bool { return told.touched() == "[a]" }) // the clock may be about to tell
	must(t, w.put(10, "g/d", fill("1p", "x")))
	w.quiesce()
	if got := holds(told.Reference); got != "[g/a g/c g/d]" {
		t.Errorf("the tier holds %s: the block least recently used had to go", got)
	}
	w.end()
}

// TestNoSecondaries: without secondary tiers nothing is nonresident, waits or is copied, and
// what makes no sense says so (A27, A37).
func TestNoSecondaries(t *testing.T) {
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 8 * page})
	for i := range 8 {
		must(t, w.put(10, fmt.Sprint(i), fill("2p", "x")))
	}
	id := resolve(t, w.world, "7").ID
	must(t, w.e.Drain(until(t)), w.e.Fsync(until(t), id))
	st := w.e.Stats()
	if st.Nonresident != 0 || st.Blocks != 4 || st.Counters.Lost != 0 || len(st.Secondaries) != 0 {
		t.Errorf("%+v", st)
	}
	w.wantWhere("7", "[memory]", "0", "ErrNotFound")
	w.content("7")
	if s := w.e.Stats().Summary; s.MemoryKeys != 1 || s.SuccessKeys != 1 || s.BytesByTier["memory"] != 2*page {
		t.Errorf("totals %+v", s)
	}
	if _, err := w.e.EvictFrom(until(t), tiers.EvictRequest{Tier: "disk", All: true}); kind(err) != "ErrInvalid" {
		t.Errorf("evict: %v", err)
	}
	r, err := w.e.EvictFrom(until(t), tiers.EvictRequest{Tier: "memory", All: true})
	if err != nil || r.Blocks != 0 || r.KeptN != 4 || r.Kept[0].Reason != outcome.ReasonOnlyCopy {
		t.Errorf("evict: %+v, %v", r, err)
	}
	w.end()
}

// TestOptions: all that is wrong with the options, and with the tiers, is reported at once.
func TestOptions(t *testing.T) {
	r := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	over := func(s ...state.SecondaryOptions) state.Options {
		return state.Options{CapacityBytes: page, Secondaries: s}
	}
	many := over()
	for i := range 17 {
		many.Secondaries = append(many.Secondaries, state.SecondaryOptions{Name: fmt.Sprint(i), Tier: r})
	}
	for _, row := range []struct {
		o      state.Options
		errors int
	}{
		{state.Options{CapacityBytes: 100, HighWatermark: 2}, 2},
		{state.Options{CapacityBytes: page, HighWatermark: 0.5, LowWatermark: 0.6}, 1},
		{over(state.SecondaryOptions{Name: "disk"}), 1},
		{over(state.SecondaryOptions{Tier: r}, state.SecondaryOptions{Name: "memory", Tier: r}), 2},
		{over(state.SecondaryOptions{Name: "a", Tier: r}, state.SecondaryOptions{Name: "a", Tier: r}), 1},
		{over(state.SecondaryOptions{Name: "a", Tier: r, Cascade: "often"}, state.SecondaryOptions{Name: "b", Tier: r, QueueBytes: -1}), 2},
		{many, 1},
	} {
		_, err := tiers.Open(context.Background(), row.o)
		var joined interface{ Unwrap() []error }
		if !errors.As(err, &joined) || len(joined.Unwrap()) != row.errors+1 { // no primary tier
			t.Errorf("%+v: %v", row.o, err)
		}
	}
	s, err := mem.Open(context.Background(), mem.Options{Dir: shmDir(t) + "/s", SizeBytes: 1 << 20, NoMount: true})
	must(t, err)
	defer s.Close(false)
	for _, o := range []state.Options{
		{Primary: s, CapacityBytes: 1 << 20, Policy: "random"},
		{Primary: s, CapacityBytes: 1 << 20, Groups: map[block.GroupID]state.GroupOptions{"g": {QuotaBytes: 2 << 20}}},
	} {
		if e, err := tiers.Open(context.Background(), o); err == nil {
			e.Close(context.Background(), false)
			t.Errorf("policy %q, groups %v: no error", o.Policy, o.Groups)
		}
	}
}
