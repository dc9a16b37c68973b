package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// TestCascade: every block that is committed reaches every tier, however it was
// written, with its attributes, those of its directories and its checksum; temporary
// names and raw files of pinned groups do not (A13, A44).
func TestCascade(t *testing.T) {
	disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{Direct: true})
	w := openLower(t, shmDir(t), state.Options{
		CapacityBytes: 256 * page, Groups: map[block.GroupID]state.GroupOptions{"raw": {Pinned: true}},
	}, disk, peer)
	defer w.close(false)
	must(t, w.mkdir("g"), w.mkdir("g/sub"), w.mkdir("g/tmp"), w.mkdir("raw"))
	mode, uid, mtime := uint32(0o700), uint32(7), int64(1e18)
	_, err := w.e.SetAttr(resolve(t, w.world, "g").ID, tiers.Change{Mode: &mode, UID: &uid})
	must(t, err)
	ctx := context.Background()

	must(t, w.put(10, "g/sub/in place", []byte("in place")))
	must(t, w.put(10, "g/renamed.tmp", []byte("renamed")), w.rename(10, "g/renamed.tmp", "g/renamed", false))
	f := w.write(10, "g/open.tmp", "open")
	must(t, w.rename(10, "g/open.tmp", "g/open", false))
	_, err = f.h.WriteAt(ctx, []byte("ed"), 4)
	must(t, err, f.close())
	must(t, w.put(10, "g/rewritten", []byte("one")), w.put(10, "g/rewritten", []byte("three")))
	must(t, w.put(10, "g/appended", []byte("one")))
	f = w.writing(10, "g/appended", false)
	_, err = f.h.WriteAt(ctx, []byte(" two"), 3)
	must(t, err, f.close())
	must(t, w.put(10, "g/empty", nil), w.put(10, "top", []byte("top")))
	must(t, w.put(10, "g/left.tmp", []byte("no")), w.put(10, "g/tmp/x", []byte("no")), w.put(10, "raw/x", []byte("no")))
	a := resolve(t, w.world, "g/renamed")
	must(t, w.e.SetPinned(a.ID, true), w.e.SetTTL(a.ID, time.Hour))
	_, err = w.e.SetAttr(a.ID, tiers.Change{Mode: &mode, Mtime: &mtime})
	must(t, err)

	w.quiesce() // compares attributes and checksums
	want := "[g/appended g/empty g/open g/renamed g/rewritten g/sub/in place top]"
	for _, r := range []*tiertest.Reference{disk, peer} {
		if got := holds(r); got != want {
			t.Errorf("a tier holds\n%s, want\n%s", got, want)
		}
		h := held(r)["g/sub/in place"]
		if d := h.Attrs.Dirs; len(d) != 2 || d[0] != (driver.DirAttrs{Mode: mode, UID: uid}) || d[1].Mode != 0o755 {
			t.Errorf("directories %+v", d)
		}
		if h := held(r)["g/renamed"]; !h.Attrs.Pinned || h.Attrs.Expires == 0 || h.Attrs.Mtime != mtime || h.Attrs.Mode != mode {
			t.Errorf("attributes %+v", h.Attrs)
		}
		if h := held(r)["g/open"]; h.Sum != block.Sum([]byte("opened")) {
			t.Errorf("g/open: checksum %+v of %d bytes", h.Sum, h.Size)
		}
	}
	w.wantWhere("g/appended", "[memory disk peer]", "raw/x", "[memory]")
	if st := w.e.Stats().Secondaries; st[0].QueuedBlocks != 0 || st[1].QueuedBytes != 0 || st[0].Cascaded < 7 {
		t.Errorf("after all: %+v", st)
	}
}

// TestCascadeRefused: a tier without room, without budget, or out of order leaves the
// block in memory, where it is read and evicted as without that tier; the counters
// tell (A31).
func TestCascadeRefused(t *testing.T) {
	for _, row := range []struct {
		name            string
		opts            tiertest.ReferenceOptions
		fail            bool
		skipped, failed uint64
	}{
		{"no room", tiertest.ReferenceOptions{CapacityBytes: 4 * page}, false, 1, 0},
		{"budget", tiertest.ReferenceOptions{BudgetBytes: 4 * page}, false, 1, 0},
		{"offline", tiertest.ReferenceOptions{}, true, 0, 1},
		{"error", tiertest.ReferenceOptions{Faults: tiertest.NewPlan(tiertest.Rule{
			Op: tiertest.OpStore, Nth: 2, Fault: tiertest.Fault{Err: block.ErrInvalid}})}, false, 0, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			disk := tiertest.NewReference(t, row.opts)
			w := openLower(t, shmDir(t), state.Options{CapacityBytes: 16 * page}, disk)
			defer w.close(false)
			if row.fail {
				disk.Fail(errors.New("pulled"))
			} else {
				must(t, w.put(10, "a", fill("4p", "a")))
				w.quiesce()
				must(t, w.e.SetPinned(resolve(t, w.world, "a").ID, true)) // so that it keeps its room
				w.quiesce()
			}
			must(t, w.put(10, "b", fill("4p", "b")))
			w.drain()
			w.wantWhere("b", "[memory]")
			st := w.e.Stats().Secondaries[0]
			if st.CascadeSkipped != row.skipped || st.CascadeFailed != row.failed {
				t.Errorf("counters %+v", st)
			}
			w.wantRead(strings.Repeat("b", 4*page), "b")
			for i := range 4 { // b has to make room, at once
				must(t, w.put(10, fmt.Sprint(i), fill("4p", "x")))
			}
			w.drain()
			w.wantWhere("b", "ErrNotFound")
			if w.e.Stats().Counters.Lost == 0 {
				t.Error("not counted as lost")
			}
		})
	}
}

// TestOverrunSpares: what a write took of the headroom costs no block that is in no other tier
// yet; when it is, it goes.
func TestOverrunSpares(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 8 * page, HeadroomBytes: 8 * page}, disk)
	release := disk.Hold(tiertest.OpStore)
	must(t, w.put(10, "a", fill("6p", "a")))
	f, err := w.create(10, "b", false, true)
	must(t, err)
	for i := range 3 { // the third has no room but in the headroom
		_, err := f.h.WriteAt(context.Background(), fill("1p", "b"), int64(i*page))
		must(t, err)
	}
	must(t, f.close())
	if st := w.e.Stats(); st.Counters.Lost != 0 || st.Counters.Overruns == 0 || st.UsedBytes != 9*page {
		t.Errorf("%+v", st)
	}
	release()
	eventually(t, "the capacity is kept again", func() bool { return w.e.Stats().UsedBytes <= 8*page })
	w.wantRead(strings.Repeat("a", 6*page), "a")
	w.quiesce()
	w.end()
}

// bare is a tier with none of the optional abilities.
type bare struct{ driver.Tier }

// wantHeld compares what a tier holds with pairs of name and content; "*" is anything
// that the engine agrees with.
func (w *lower) wantHeld(r *tiertest.Reference, want string) {
	w.t.Helper()
	all := held(r)
	if want == "*" {
		return
	}
	for _, pair := range strings.Fields(want) {
		name, data, _ := strings.Cut(pair, "=")
		if h, ok := all[name]; !ok || h.Sum != block.Sum([]byte(data)) {
			w.t.Errorf("%s: held %v, %d bytes, want %q", name, ok, h.Size, data)
		}
		delete(all, name)
	}
	for name := range all {
		w.t.Errorf("%s is held, but has no such name", name)
	}
}

// TestCascadeSync: with a synchronous cascade, close and rename return when the copy
// is there, also in a tier that is not the first and cannot make durable.
func TestCascadeSync(t *testing.T) {
	disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{
		{Cascade: state.CascadeOff}, {Tier: bare{peer}, Cascade: state.CascadeSync},
	}}, disk, peer)
	defer w.close(false)
	must(t, w.put(10, "b.tmp", []byte("b")))
	for i, do := range []func() error{
		func() error { return w.put(10, "a", []byte("a")) },
		func() error { return w.rename(10, "b.tmp", "b", false) },
	} {
		release := peer.Hold(tiertest.OpStore)
		done := make(chan error, 1)
		go func() { done <- do() }()
		must(t, peer.AwaitSubmitted(until(t), tiertest.OpStore, i+1))
		select {
		case err := <-done:
			t.Errorf("returned before the copy was there: %v", err)
		default:
		}
		release()
		must(t, <-done)
		w.wantWhere([]string{"a", "b"}[i], "[memory peer]")
	}
	peer.Fail(errors.New("pulled"))
	must(t, w.put(10, "c", []byte("c"))) // a tier that fails does not fail the write
	w.wantWhere("c", "[memory]")
	if got := holds(disk); got != "[]" {
		t.Errorf("a tier without cascade holds %s", got)
	}
}

// TestSecondHit: a tier with admission gets what was used twice.
func TestSecondHit(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{SecondHit: true}}}, disk)
	defer w.close(false)
	for _, name := range []string{"once", "read", "written", "synced"} {
		must(t, w.put(10, name, []byte("1")))
	}
	w.quiesce()
	if got := holds(disk); got != "[]" || w.e.Stats().Secondaries[0].AdmissionRejected != 4 {
		t.Errorf("held %s: %+v", got, w.e.Stats().Secondaries[0])
	}
	w.content("read")
	must(t, w.put(10, "written", []byte("2")), w.e.Fsync(until(t), resolve(t, w.world, "synced").ID))
	w.quiesce()
	w.wantHeld(disk, "read=1 written=2 synced=1")
	for i := range 16 { // what was used once goes without a copy
		must(t, w.put(10, fmt.Sprint(i), fill("4p", "x")))
	}
	w.wantWhere("once", "ErrNotFound", "read", "[disk]")
}

// TestCascadeOnEvict: a block is copied when it is to leave memory, and no more of them than what has to go; also if
// it leaves on request. What was removed before that was never written. fsync copies at once (A13).
func TestCascadeOnEvict(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeOnEvict}}}, disk)
	defer w.close(false)
	for i := range 16 {
		must(t, w.put(10, fmt.Sprint(i), fill("4p", fmt.Sprintf("%x", i))))
	}
	must(t, w.unlink(10, "0"), w.put(10, "fits", fill("4p", "x")))
	w.quiesce()
	if n := w.e.Stats().Secondaries[0].Cascaded; n != 0 {
		t.Errorf("%d blocks were copied before memory was full", n)
	}
	must(t, w.put(10, "16", fill("4p", "y")))
	w.quiesce()
	w.wantWhere("1", "[disk]", "2", "[memory]", "15", "[memory]", "16", "[memory]")
	if got := holds(disk); got != "[1]" {
		t.Errorf("a block had to go, and these were copied: %s", got)
	}
	must(t, w.e.Fsync(until(t), resolve(t, w.world, "15").ID))
	w.wantWhere("15", "[memory disk]")
	w.evict("memory", "3", "4", "5")
	w.wantWhere("3", "[disk]", "4", "[disk]", "5", "[disk]", "6", "[memory]")
	w.quiesce()
	for _, name := range []string{"1", "3"} {
		w.wantRead(string(fill("4p", name)), name)
	}
	if st := w.e.Stats(); st.Counters.Lost != 0 {
		t.Errorf("%d blocks lost", st.Counters.Lost)
	}
}

// TestCascadeQueue: what exceeds the queue is not protected from eviction, but gets
// its turn, and all of it arrives.
func TestCascadeQueue(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	release := disk.Hold(tiertest.OpStore)
	w := openLower(t, shmDir(t), state.Options{
		CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{QueueBytes: 3 * page}},
	}, disk)
	defer w.close(false)
	w.chain(10, "", 12)
	st := w.e.Stats().Secondaries[0]
	if st.QueuedBytes != 3*page || st.QueuedBlocks != 3 || st.QueueLimitBytes != 3*page {
		t.Errorf("queue: %+v", st)
	}
	w.audit()
	release()
	w.quiesce()
	if n := len(held(disk)); n != 12 {
		t.Errorf("%d of 12 blocks arrived", n)
	}
	// What is larger than the queue goes through it alone (B16).
	must(t, w.put(10, "large", fill("5p", "x")))
	w.quiesce()
	w.wantWhere("large", "[memory disk]")
}

// TestCascadeOnEvictFlow: under a stream of blocks those that leave memory are copied, once each, and no others; in
// whatever order they leave. One that is read while it is copied stays (A13).
func TestCascadeOnEvictFlow(t *testing.T) {
	for _, policy := range []string{"lru", "arc", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
			w := openLower(t, shmDir(t), state.Options{
				CapacityBytes: 256 * page, Policy: policy, Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeOnEvict}},
			}, disk)
			defer w.close(false)
			const blocks = 400
			for i := range blocks {
				must(t, w.put(10, fmt.Sprint(i), fill("4p", string(rune('a'+i%26)))))
			}
			w.quiesce()
			st := w.e.Stats()
			if c := st.Counters; c.Evicted == 0 || c.Lost != 0 || st.Secondaries[0].Cascaded != c.Evicted || st.Blocks+st.Nonresident != blocks {
				t.Errorf("%d blocks evicted, %d copied, %d lost; %d in memory, %d not", c.Evicted, st.Secondaries[0].Cascaded, c.Lost, st.Blocks, st.Nonresident)
			}
			if policy == "lru" {
				w.wantWhere("0", "[disk]", fmt.Sprint(blocks-64-1), "[disk]", fmt.Sprint(blocks-64+4), "[memory]", fmt.Sprint(blocks-1), "[memory]")
			}

			release := disk.Hold(tiertest.OpStore)
			done := make(chan error, 1)
			go func() { done <- w.put(10, "more", fill("16p", "z")) }()
			read := ""
			eventually(t, "a block leaves", func() bool {
				for i := 0; i < blocks && read == ""; i++ {
					if name := fmt.Sprint(i); w.e.Leaving(resolve(t, w.world, name).ID) {
						read = name
					}
				}
				return read != ""
			})
			if got := w.content(read); len(got) != 4*page {
				t.Errorf("%s has %d bytes while it is copied", read, len(got))
			}
			release()
			must(t, <-done)
			w.quiesce()
			w.wantWhere(read, "[memory disk]")
		})
	}
}

// closing is a tier that notes when it is closed.
type closing struct {
	driver.Tier
	note func()
}

func (c closing) Close(ctx context.Context) error {
	err := c.Tier.Close(ctx)
	c.note()
	return err
}

// TestCloseOrder shows that an upper tier closes after those below it: the process that waits for its lock opens it first, and
// then needs what the others used.
func TestCloseOrder(t *testing.T) {
	var closed []string
	var o state.Options
	for _, name := range tierNames {
		o.Secondaries = append(o.Secondaries, state.SecondaryOptions{
			Name: name, Tier: closing{tiertest.NewReference(t, tiertest.ReferenceOptions{}), func() { closed = append(closed, name) }},
		})
	}
	openLower(t, shmDir(t), o).close(false)
	if got := fmt.Sprint(closed); got != "[peer disk]" {
		t.Errorf("closed: %s", got)
	}
}
