package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// payload returns bytes of a block.
func payload(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = seed + byte(i*7) + byte(i>>8)
	}
	return data
}

// enoughSamples is how many fetches package pace needs to tell how long one takes.
const enoughSamples = 20

// want is one block of a load.
type want struct {
	path string
	size int64
	sum  block.Checksum
	seq  uint64
}

// load runs a load, and returns the outcomes and the contents of the files.
func load(t testing.TB, tier *Tier, blocks ...want) ([]driver.Outcome, [][]byte) {
	t.Helper()
	outcomes, files := begin(t, tier, blocks...)
	out := within(t, "load", outcomes)
	var data [][]byte
	for _, f := range files {
		data = append(data, content(f))
	}
	return out, data
}

// begin begins a load.
func begin(t testing.TB, tier *Tier, blocks ...want) (<-chan []driver.Outcome, []*os.File) {
	t.Helper()
	done := make(chan []driver.Outcome, 1)
	job := &driver.Job{Done: func(r *driver.Result) { done <- r.Outcomes }}
	var files []*os.File
	for _, w := range blocks {
		f := memFile(t, bytes.Repeat([]byte{0xee}, int(w.size)+100)) // longer than the block
		files = append(files, f)
		job.Blocks = append(job.Blocks, driver.Transfer{Key: keyOf(w.path), Size: w.size, Sum: w.sum, Attrs: driver.Attrs{Seq: w.seq}, File: f})
	}
	tier.Load(job)
	return done, files
}

// answers makes a peer answer each block of a fetch by fn.
func answers(fn func(b *cluster.Fetch)) func(context.Context, []*cluster.Fetch) {
	return func(_ context.Context, blocks []*cluster.Fetch) {
		for _, b := range blocks {
			fn(b)
		}
	}
}

// errUnsafe is what a fetch fails with whose holder may still write to the destination.
var errUnsafe = fmt.Errorf("%w: %w", rdma.ErrUnavailable, rdma.ErrUnsafe)

// TestLoadHolders shows the outcome of a block for each failure of its first holder: the second one
// gives it, and without a second one the outcome says why. If the first one may still write to the file, the second one is
// not asked.
func TestLoadHolders(t *testing.T) {
	data := payload(5000, 1)
	good := cluster.BlockInfo{Path: "g/x", Seq: 7, Size: 5000, Sum: block.Sum(data), Mode: modeRegular | 0o640, UID: 3, Mtime: 11,
		Dirs: []cluster.DirInfo{{Mode: 0o755, UID: 1, GID: 2}}}
	other := func(change func(*cluster.BlockInfo)) func(*cluster.Fetch) {
		return func(b *cluster.Fetch) {
			info := good
			change(&info)
			give(b, &info, data[:min(int(max(info.Size, 0)), len(data))])
		}
	}
	for _, c := range []struct {
		name   string
		answer func(b *cluster.Fetch)
		status driver.Status
		err    error
	}{
		{"gone", func(b *cluster.Fetch) { b.Done(nil, rdma.ErrGone) }, driver.Absent, nil},
		{"busy", func(b *cluster.Fetch) { b.Done(nil, rdma.ErrBusy) }, driver.Failed, block.ErrUnavailable},
		{"dead", func(b *cluster.Fetch) { b.Done(nil, rdma.ErrUnavailable) }, driver.Failed, block.ErrUnavailable},
		{"may still write", func(b *cluster.Fetch) { b.Done(nil, errUnsafe) }, driver.Failed, block.ErrUnavailable},
		{"fewer bytes", func(b *cluster.Fetch) {
			info := good
			dst, _ := b.Dest(&info)
			_, _ = dst.File.WriteAt(data[:100], 0)
			b.Done(&info, rdma.ErrProtocol)
		}, driver.Failed, block.ErrUnavailable},
		{"wrong bytes", func(b *cluster.Fetch) { info := good; give(b, &info, payload(5000, 2)) }, driver.Failed, block.ErrCorrupt},
		{"says nothing", func(b *cluster.Fetch) { b.Done(nil, nil) }, driver.Failed, block.ErrUnavailable},
		{"other version", other(func(i *cluster.BlockInfo) { i.Seq = 8 }), driver.Absent, nil},
		{"other size", other(func(i *cluster.BlockInfo) { i.Size = 4999; i.Sum = block.Sum(data[:4999]) }), driver.Absent, nil},
		{"larger", other(func(i *cluster.BlockInfo) { i.Size = 1 << 30 }), driver.Absent, nil},
		{"a directory", other(func(i *cluster.BlockInfo) { i.Mode = modeDir | 0o755 }), driver.Absent, nil},
		{"no checksum", other(func(i *cluster.BlockInfo) { i.Sum = block.Checksum{} }), driver.Failed, block.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, second := range []bool{true, false} {
				n := newStubNode()
				a, b := n.addPeer("a"), n.addPeer("b")
				a.fetch = answers(c.answer)
				b.memBackend.blocks["g/x"] = &memBlock{good, data}
				n.put(a, entryOf("g/x", 7))
				if second {
					n.put(b, entryOf("g/x", 7))
				}
				tier := openStub(t, n, testOptions(n), stillClock())
				out, got := load(t, tier, want{"g/x", 5000, block.Checksum{}, 7})
				if second && c.name != "may still write" {
					if o := out[0]; o.Status != driver.Loaded || o.Sum != good.Sum || o.Bytes != 5000 || !bytes.Equal(got[0], data) {
						t.Errorf("with a second holder: got %v (%v) of %d bytes", o.Status, o.Err, len(got[0]))
					} else if a := o.Attrs; a == nil || a.Seq != 7 || a.Mode != 0o640 || a.UID != 3 || a.Mtime != 11 || len(a.Dirs) != 1 {
						t.Errorf("with a second holder: attributes %+v", a)
					}
					continue
				}
				if o := out[0]; o.Status != c.status || c.err != nil && !errors.Is(o.Err, c.err) {
					t.Errorf("second holder %v: got %v (%v), want %v (%v)", second, o.Status, o.Err, c.status, c.err)
				}
			}
		})
	}
}

// TestLoadCorruptAvoided shows that a holder that sent wrong bytes no longer counts as a holder of
// that version, that the Host learns of it when it was the only one, and that another version of
// the block is still accepted.
func TestLoadCorruptAvoided(t *testing.T) {
	n := newStubNode()
	a := n.addPeer("a")
	tier := openStub(t, n, testOptions(n), stillClock())
	host := &testHost{make(chan block.Key, 4)}
	tier.SetHost(host)
	a.add(cluster.BlockInfo{Path: "g/x", Seq: 7}, payload(100, 1))
	a.corrupt("g/x")
	for i, status := range []driver.Status{driver.Failed, driver.Absent} {
		if out, _ := load(t, tier, want{path: "g/x", size: 100, seq: 7}); out[0].Status != status {
			t.Errorf("load %d: got %v (%v), want %v", i, out[0].Status, out[0].Err, status)
		}
	}
	host.wantLost(t, "g/x")
	if _, ok := tier.Locate("g/x"); ok {
		t.Error("Locate finds the bad copy")
	}
	a.add(cluster.BlockInfo{Path: "g/x", Seq: 8}, payload(100, 1))
	if out, _ := load(t, tier, want{path: "g/x", size: 100, seq: 8}); out[0].Status != driver.Loaded {
		t.Errorf("the next version: got %v (%v)", out[0].Status, out[0].Err)
	}
	if c := a.fetchCalls.Load(); c != 2 {
		t.Errorf("%d requests, want 2: the bad copy is not asked for again", c)
	}
}

// TestLoadCoalesced shows that the blocks of one holder come in one request, and other blocks in
// one request for each holder.
func TestLoadCoalesced(t *testing.T) {
	n := newStubNode()
	a, b := n.addPeer("a"), n.addPeer("b")
	tier := openStub(t, n, testOptions(n), stillClock())
	var blocks []want
	for i := range 40 {
		p, path := a, fmt.Sprintf("g/%d", i)
		if i%4 == 3 {
			p = b
		}
		p.add(cluster.BlockInfo{Path: path, Seq: 1}, payload(300+i, byte(i)))
		blocks = append(blocks, want{path: path, size: int64(300 + i), seq: 1})
	}
	blocks = append(blocks, want{path: "g/absent", size: 10, seq: 1})
	out, data := load(t, tier, blocks...)
	for i := range 40 {
		if out[i].Status != driver.Loaded || !bytes.Equal(data[i], payload(300+i, byte(i))) {
			t.Errorf("block %d: %v (%v)", i, out[i].Status, out[i].Err)
		}
	}
	if out[40].Status != driver.Absent {
		t.Errorf("absent block: %v (%v)", out[40].Status, out[40].Err)
	}
	if a.fetchCalls.Load() != 1 || b.fetchCalls.Load() != 1 {
		t.Errorf("%d and %d requests, want 1 and 1", a.fetchCalls.Load(), b.fetchCalls.Load())
	}
	d := tier.Stats().Detail.(*Detail)
	if d.Requests != 2 || d.Fetches != 40 {
		t.Errorf("Stats: %d requests, %d fetches", d.Requests, d.Fetches)
	}
}

// silent makes a peer take a request and answer only when it is cut off. asked gets one element for
// each request; ended gets the error of its context at its end.
func silent(p *farPeer) (asked chan struct{}, ended chan error) {
	asked, ended = make(chan struct{}, 8), make(chan error, 8)
	p.fetch = func(ctx context.Context, blocks []*cluster.Fetch) {
		for _, b := range blocks {
			info := cluster.BlockInfo{Path: b.Path, Seq: 1, Size: b.Size, Sum: block.Sum(nil), Mode: modeRegular}
			if b == blocks[0] {
				if dst, err := b.Dest(&info); err == nil {
					_, _ = dst.File.WriteAt([]byte("half"), 0)
				}
			}
		}
		asked <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		for _, b := range blocks {
			b.Done(nil, ctx.Err())
		}
	}
	return asked, ended
}

// TestLoadTimeout shows that a holder that does not answer, or falls silent later, costs only the
// time in which something must come, or half of it if there is another holder. Its request ends
// with DeadlineExceeded, and the second holder gives the block.
func TestLoadTimeout(t *testing.T) {
	for _, second := range []bool{true, false} {
		n, c := newStubNode(), newTimers()
		a, b := n.addPeer("a"), n.addPeer("b")
		asked, ended := silent(a)
		n.put(a, entryOf("x", 1))
		if second {
			b.add(cluster.BlockInfo{Path: "x", Seq: 1}, payload(10, 6))
		}
		tier := openStub(t, n, testOptions(n), c.clock())
		done, files := begin(t, tier, want{path: "x", size: 10, seq: 1})
		within(t, "request", asked) // it has sent the description of the block by then
		c.fire(t, limitTimer)
		c.fire(t, limitTimer)
		if err := within(t, "end of the request", ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the request ended with %v", err)
		}
		o := within(t, "load", done)[0]
		if second && (o.Status != driver.Loaded || !bytes.Equal(content(files[0]), payload(10, 6))) {
			t.Errorf("with a second holder: %v (%v)", o.Status, o.Err)
		}
		if !second && (o.Status != driver.Failed || !errors.Is(o.Err, block.ErrUnavailable)) {
			t.Errorf("alone: %v (%v)", o.Status, o.Err)
		}
		if d := tier.Stats().Detail.(*Detail); d.Timeouts != 1 {
			t.Errorf("%d timeouts", d.Timeouts)
		}
		limits := []time.Duration{minSilence, minSilence}
		if second {
			limits = []time.Duration{minSilence / 2, minSilence / 2} // the second holder answers before anybody watches
		}
		if !slices.Equal(c.long[limitTimer][:len(limits)], limits) {
			t.Errorf("limits %v, want %v", c.long[limitTimer], limits)
		}
	}
}

// TestLoadSlow shows that a slow holder is not cut off while something comes, and that the time in
// which something must come follows the observed times.
func TestLoadSlow(t *testing.T) {
	n, c := newStubNode(), newTimers()
	a := n.addPeer("a")
	n.put(a, entryOf("x", 1))
	data := payload(1000, 3)
	sent, more := make(chan struct{}), make(chan struct{})
	a.fetch = func(_ context.Context, blocks []*cluster.Fetch) {
		info := cluster.BlockInfo{Path: "x", Seq: 1, Size: 1000, Sum: block.Sum(data), Mode: modeRegular}
		dst, err := blocks[0].Dest(&info)
		for i := 0; err == nil && i < 10; i++ {
			part := data[100*i : 100*i+100]
			dst.Hash.Write(part)
			_, err = dst.File.WriteAt(part, int64(100*i))
			sent <- struct{}{}
			<-more
		}
		blocks[0].Done(&info, err)
	}
	tier := openStub(t, n, testOptions(n), c.clock())
	done, _ := begin(t, tier, want{path: "x", size: 1000, seq: 1})
	for range 10 {
		within(t, "bytes", sent)
		c.fire(t, limitTimer)
		eventually(t, "it is waited for again", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.set[limitTimer]) == 1 })
		more <- struct{}{}
	}
	if o := within(t, "load", done)[0]; o.Status != driver.Loaded {
		t.Errorf("%v (%v)", o.Status, o.Err)
	}
	for range enoughSamples {
		tier.speed.Add(1<<20, 500*time.Millisecond)
		tier.speed.Add(1<<21, 20*time.Second)
	}
	now := tier.now()
	tier.silent.Add("slow", now, now)
	tier.silent.Add("slow", now.Add(-time.Second), now.Add(time.Second)) // was under way with it
	tier.silent.Add("slow in the past", now, now.Add(-time.Minute))
	for _, tc := range []struct {
		peer string
		size int64
		want time.Duration
	}{
		{"a", 1000, minSilence}, {"a", 1 << 20, 2 * time.Second}, {"a", 1 << 21, patience},
		{"slow in the past", 1000, minSilence}, {"slow", 1000, 2 * minSilence}, {"slow", 1 << 20, 4 * time.Second},
	} {
		if got := tier.silence(tc.peer, tc.size); got != tc.want {
			t.Errorf("%s, %d bytes: %v, want %v", tc.peer, tc.size, got, tc.want)
		}
	}
}

// TestHedge shows that a slow fetch is begun at a second holder too, that the first to finish wins,
// and that the other is ended before the destination is touched.
func TestHedge(t *testing.T) {
	data := payload(3000, 9)
	setup := func(t *testing.T) (*timers, *Tier, *farPeer, *farPeer) {
		n, c := newStubNode(), newTimers()
		a, b := n.addPeer("a"), n.addPeer("b")
		o := testOptions(n)
		o.HedgeQuantile = 0.95
		tier := openStub(t, n, o, c.clock())
		for range enoughSamples {
			tier.speed.Add(3000, 1)
		}
		for _, p := range []*farPeer{a, b} {
			for _, path := range []string{"x", "y"} {
				p.add(cluster.BlockInfo{Path: path, Seq: 1}, data)
			}
		}
		return c, tier, a, b
	}
	t.Run("second wins", func(t *testing.T) {
		c, tier, a, b := setup(t)
		_, ended := silent(a)
		done, files := begin(t, tier, want{path: "x", size: 3000, seq: 1}, want{path: "y", size: 3000, seq: 1})
		c.fire(t, hedgeTimer)
		if err := within(t, "end of the slow request", ended); !errors.Is(err, context.Canceled) {
			t.Errorf("the slow request ended with %v", err)
		}
		for i, o := range within(t, "load", done) {
			if o.Status != driver.Loaded || o.Sum != block.Sum(data) || !bytes.Equal(content(files[i]), data) {
				t.Errorf("block %d: %v (%v)", i, o.Status, o.Err)
			}
		}
		d := tier.Stats().Detail.(*Detail)
		if d.Hedges != 1 || d.HedgeWins != 1 || d.Timeouts+d.Failures+d.Gone != 0 {
			t.Errorf("Stats: %+v", d)
		}
		if b.fetchCalls.Load() != 2 { // the hedge, and the rest of the request
			t.Errorf("%d requests to the second holder", b.fetchCalls.Load())
		}
	})
	t.Run("first wins", func(t *testing.T) {
		c, tier, a, b := setup(t)
		asked, ended := silent(b)
		a.fetch = answers(func(f *cluster.Fetch) { <-asked; serve(context.Background(), a.memBackend, f) })
		done, files := begin(t, tier, want{path: "x", size: 3000, seq: 1})
		c.fire(t, hedgeTimer)
		if o := within(t, "load", done)[0]; o.Status != driver.Loaded || !bytes.Equal(content(files[0]), data) {
			t.Errorf("%v (%v)", o.Status, o.Err)
		}
		if err := within(t, "end of the hedge", ended); !errors.Is(err, context.Canceled) {
			t.Errorf("the hedge ended with %v", err)
		}
		if d := tier.Stats().Detail.(*Detail); d.Hedges != 1 || d.HedgeWins != 0 {
			t.Errorf("Stats: %+v", d)
		}
		if !tier.room.Try(tier.opts.MaxInFlightBytes) {
			t.Error("room not given back")
		}
	})
	for _, row := range []struct {
		name   string
		first  error
		second []byte
		status driver.Status
		err    error
	}{
		{"first fails, second wins", rdma.ErrUnavailable, data, driver.Loaded, nil},
		{"first may still write", errUnsafe, data, driver.Failed, block.ErrUnavailable},
		{"both fail", rdma.ErrGone, payload(3000, 1), driver.Failed, block.ErrCorrupt},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, tier, a, b := setup(t)
			asked, failed := make(chan struct{}), make(chan struct{})
			a.fetch = answers(func(f *cluster.Fetch) { <-asked; f.Done(nil, row.first); close(failed) })
			b.fetch = answers(func(f *cluster.Fetch) {
				close(asked)
				<-failed
				give(f, &cluster.BlockInfo{Seq: 1, Size: 3000, Sum: block.Sum(data), Mode: modeRegular}, row.second)
			})
			done, files := begin(t, tier, want{path: "x", size: 3000, seq: 1})
			c.fire(t, hedgeTimer)
			o := within(t, "load", done)[0]
			if o.Status != row.status || !errors.Is(o.Err, row.err) || row.err == nil && !bytes.Equal(content(files[0]), data) {
				t.Errorf("%v (%v)", o.Status, o.Err)
			}
		})
	}
}
