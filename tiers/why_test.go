package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// verdict is a verdict without its texts and its time.
func (w *world) verdict(name string) string {
	v := w.e.Why(name)
	if v.Text == "" {
		w.t.Errorf("%s: %+v says nothing", name, v)
	}
	s := string(v.Kind)
	for _, p := range []struct{ key, value string }{{"tier", v.Tier}, {"rule", v.Rule}, {"by", v.By}, {"to", v.To}, {"in", strings.Join(v.Groups, ",")}} {
		if p.value != "" {
			s += " " + p.key + "=" + p.value
		}
	}
	return s
}

func (w *world) wantVerdict(name, want string) {
	w.t.Helper()
	if got := w.verdict(name); got != want {
		w.t.Errorf("%s: %q, want %q: %s", name, got, want, w.e.Why(name).Text)
	}
}

// TestWhy: each verdict, with its tier, rule, actor and new name.
func TestWhy(t *testing.T) {
	full := func(w *failing) { // of blocks that cannot go
		must(w.t, w.put(10, "full", fill("63p", "x")))
		must(w.t, w.e.SetPinned(resolve(w.t, w.world, "full").ID, true))
	}
	for _, row := range []struct {
		name  string
		do    func(w *failing)
		of    string
		want  string
		words string // in its text
	}{
		{"present", func(w *failing) { must(w.t, w.put(10, "g/a", []byte("x"))); w.drain() }, "g/a", "present tier=memory,disk", "in memory"},
		{"nonresident", func(w *failing) { w.nonresident("x", "g/a") }, "g/a", "present tier=disk", "when it is opened"},
		{"directory", func(*failing) {}, "g", "present", "directory"},
		{"being written", func(w *failing) {
			f, err := w.create(10, "g/a", true, true)
			must(w.t, err)
			w.t.Cleanup(f.release)
		}, "g/a", "pending", "being written"},
		{"version being written", func(w *failing) {
			f, err := w.create(20, "g/a.tmp", true, true)
			must(w.t, err)
			_, err = f.h.WriteAt(context.Background(), []byte("y"), 0)
			must(w.t, err, w.rename(10, "g/a.tmp", "g/a", false)) // when it is closed
			w.t.Cleanup(f.release)
		}, "g/a", "pending", "being written"},
		{"never stored", func(*failing) {}, "g/a", "never_stored", "as far as is remembered"},
		{"no name", func(*failing) {}, "g//a", "never_stored", "no block can have this name"},
		{"empty", func(*failing) {}, "", "never_stored", "no block can have this name"},
		{"reserved", func(*failing) {}, ".kvfs/status", "never_stored", "no block can have this name"},
		{"elsewhere", func(w *failing) {
			must(w.t, w.mkdir("h"), w.mkdir("i"), w.mkdir("j"), w.put(10, "h/a", []byte("x")), w.put(10, "i/a", []byte("x")), w.put(10, "j/b", []byte("x")))
		}, "g/a", "elsewhere in=h,i", "same hash is in h, i"},
		{"removed", func(w *failing) { must(w.t, w.put(10, "g/a", []byte("x")), w.unlink(17, "g/a")) }, "g/a", "removed rule=unlink by=thread 17", "removed by thread 17"},
		{"removed, elsewhere", func(w *failing) {
			must(w.t, w.mkdir("h"), w.put(10, "h/a", []byte("x")), w.put(10, "g/a", []byte("x")), w.unlink(17, "g/a"))
		}, "g/a", "removed rule=unlink by=thread 17", ""},
		{"expired", func(w *failing) {
			must(w.t, w.put(10, "g/a", []byte("x")), w.e.SetTTL(resolve(w.t, w.world, "g/a").ID, time.Nanosecond))
			w.e.Expire()
		}, "g/a", "expired rule=expired", "time to live"},
		{"renamed with its directory", func(w *failing) {
			must(w.t, w.put(10, "g/a", []byte("x")), w.rename(17, "g", "h", false), w.rename(18, "h", "i", false))
		}, "g/a", "renamed by=thread 17 to=i/a", "renamed to i/a, with its directory"},
		{"renamed from temporary", func(w *failing) {
			must(w.t, w.put(10, "g/a.tmp", []byte("x")), w.rename(10, "g/a.tmp", "g/b", false))
			w.drain()
		}, "g/b", "present tier=memory,disk", ""},
		{"replaced, then removed", func(w *failing) {
			must(w.t, w.put(10, "g/a", []byte("x")), w.put(20, "g/a", []byte("y")), w.unlink(18, "g/a"))
		}, "g/a", "removed rule=unlink by=thread 18", ""},
		{"by request", func(w *failing) {
			must(w.t, w.put(10, "g/a", []byte("x")))
			w.drain()
			w.evict("disk", "g/a")
			w.evictForced("memory", "g/a")
		}, "g/a", "evicted tier=memory rule=request", "from memory: on request"},
		{"from the disk", func(w *failing) {
			w.nonresident("x", "g/a")
			w.evictForced("disk", "g/a")
		}, "g/a", "evicted tier=disk rule=request", "from disk: on request"},
		{"from the disk, but not memory", func(w *failing) {
			must(w.t, w.put(10, "g/a", []byte("x")))
			w.drain()
			w.evict("disk", "g/a")
			must(w.t, w.unlink(19, "g/a"))
		}, "g/a", "removed rule=unlink by=thread 19", ""},
		{"corrupt", func(w *failing) {
			w.nonresident("x", "g/a")
			w.refs[0].Corrupt(mustKey(w.t, "g/a"))
			w.content("g/a")
		}, "g/a", "corrupt tier=disk rule=corrupt", "checksum"},
		{"lost", func(w *failing) {
			w.nonresident("x", "g/a")
			w.refs[0].Remove([]block.Key{mustKey(w.t, "g/a")})
			w.content("g/a")
		}, "g/a", "unreachable tier=disk rule=absent", "disk could not give it"},
		{"unreachable", func(w *failing) {
			w.nonresident("x", "g/a")
			w.plan.Set(tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Err: fmt.Errorf("%w: pulled", block.ErrUnavailable)}})
			w.content("g/a")
			w.plan.Set()
		}, "g/a", "unreachable tier=disk rule=unavailable", "still in disk"},
		{"unreachable, then read and evicted", func(w *failing) {
			w.nonresident("x", "g/a")
			w.plan.Set(tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Err: errors.New("broken")}})
			w.content("g/a")
			w.plan.Set()
			if n := w.e.Stats().Secondaries[0].PromoteFailed; n != 1 {
				w.t.Errorf("%d failures counted", n)
			}
			w.wantVerdict("g/a", "unreachable tier=disk")
			w.wantRead("x", "g/a")
			w.evict("memory", "g/a")
		}, "g/a", "present tier=disk", ""},
		{"no room", func(w *failing) {
			w.nonresident(string(fill("2p", "x")), "g/a")
			full(w)
			w.content("g/a")
		}, "g/a", "no_room tier=disk rule=capacity", "may not be evicted"},
		{"deadline predicted", func(w *failing) {
			w.nonresident("x", "g/a", "g/b")
			w.t.Cleanup(w.refs[0].Hold(tiertest.OpLoad))
			w.hint("g/b") // so that the tier is not asked for what is late
			w.e.Measure("disk", 1, time.Hour)
			w.content("g/a")
		}, "g/a", "deadline tier=disk rule=predicted", "after the open deadline; it is still in disk"},
		{"on its way", func(w *failing) {
			w.nonresident("x", "g/a")
			w.t.Cleanup(w.refs[0].Hold(tiertest.OpLoad))
			w.hint("g/a")
		}, "g/a", "pending tier=disk", "on its way into memory from disk"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := openWhy(t, state.Options{WriteTimeout: time.Millisecond, OpenDeadline: time.Minute})
			row.do(w)
			w.wantVerdict(row.of, row.want)
			if text := w.e.Why(row.of).Text; !strings.Contains(text, row.words) {
				t.Errorf("text %q, want %q in it", text, row.words)
			}
		})
	}
}

// failing is a world over a tier that can be made to fail.
type failing struct {
	*lower
	plan *tiertest.Plan
}

// openWhy starts an engine with a directory g, which ends with the test.
func openWhy(t *testing.T, o state.Options) *failing {
	o.CapacityBytes = 64 * page
	plan := tiertest.NewPlan()
	w, _ := openLowerOne(t, o, tiertest.ReferenceOptions{Faults: plan})
	t.Cleanup(func() { must(t, w.e.Close(context.Background(), false)) })
	return &failing{w, plan}
}

// hint begins a load that nobody waits for, and returns when it has begun.
func (w *failing) hint(name string) {
	w.t.Helper()
	n, _ := w.refs[0].Jobs(tiertest.OpLoad)
	w.e.Hint(nil, "", [][]byte{[]byte(name)})
	must(w.t, w.refs[0].AwaitSubmitted(until(w.t), tiertest.OpLoad, n+1))
}

// TestWhyExceeded: a deadline that passes while the block is on its way is the verdict on it as
// soon as that is given up, and no more once it was read.
func TestWhyExceeded(t *testing.T) {
	w := openWhy(t, state.Options{OpenDeadline: time.Millisecond})
	w.nonresident("x", "g/a")
	w.plan.Set(tiertest.Rule{Op: tiertest.OpLoad, Fault: tiertest.Fault{Err: block.ErrNotFound}})
	release := w.refs[0].Hold(tiertest.OpLoad)
	w.content("g/a")
	w.wantVerdict("g/a", "pending tier=disk")
	release()
	w.drain()
	w.wantVerdict("g/a", "deadline tier=disk rule=exceeded")
	w.plan.Set()
	if s := w.prefetch(context.Background(), "g/a").letters(); s != "l" {
		t.Errorf("prefetch: %q", s)
	}
	w.drain()
	w.wantVerdict("g/a", "present tier=memory,disk")
}

// TestWhyOf: the attribute of a file says the same as its path, of a new version that it is being
// written, and of one without a name that.
func TestWhyOf(t *testing.T) {
	w := open(t, shmDir(t), state.Options{})
	defer w.close(false)
	must(t, w.put(10, "a", []byte("x")))
	f := w.reading(10, "a")
	if got, want := fmt.Sprint(w.e.WhyOf(f.id)), fmt.Sprint(w.e.Why("a")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	next := w.writing(20, "a", true)
	next.rewrite("y", 0)
	if v := w.e.WhyOf(next.id); v.Kind != outcome.Pending {
		t.Errorf("a new version: %+v", v)
	}
	must(t, next.close(), w.unlink(10, "a"))
	if v := w.e.WhyOf(f.id); v.Kind != outcome.Removed || v.Text == "" {
		t.Errorf("without a name: %+v", v)
	}
	must(t, f.close())
}

// TestWhyRemote: what only another node had and has no more; what it removed; what it has.
func TestWhyRemote(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	must(t, a.mkdir("g"))
	for _, name := range []string{"g/x", "g/y", "g/z", "g/far"} {
		must(t, a.put(10, name, []byte("content")))
	}
	c.tell()
	b.wantVerdict("g/far", "present tier=peer")
	for _, name := range []string{"g/x", "g/y", "g/z"} {
		b.wantRead("content", name)
	}
	c.tell()
	b.evictForced("memory", "g/x")
	b.wantVerdict("g/x", "present tier=peer")
	at := b.found(10, "g/y")
	b.evictForced("memory", "g/y")
	b.wantVerdict("g/y", "present tier=peer")
	c.tell()
	for _, name := range []string{"g/x", "g/y"} { // the other node drops them
		b.hear(0, name, driver.Located{}, false)
	}
	c.tell()
	for _, name := range []string{"g/x", "g/y"} { // with or without a rule: by what has noticed it
		if got := b.verdict(name); !strings.HasPrefix(got, "peer_gone tier=peer") {
			t.Errorf("%s: %s", name, got)
		}
	}
	b.forget(at.ID)
	must(t, a.unlink(10, "g/z"))
	c.tell()
	b.wantVerdict("g/z", "removed rule=superseded by=another node")
}
