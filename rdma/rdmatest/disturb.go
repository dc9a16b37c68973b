package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// visible returns n bytes none of which is 0: in an empty file they show which bytes have come.
func visible(seed uint64, n int64) []byte {
	type key struct {
		seed uint64
		n    int64
	}
	if b, ok := seen.Load(key{seed, n}); ok {
		return b.([]byte)
	}
	part := pattern(seed, 1<<20-3) // no two pages of the whole are alike
	for i := range part {
		part[i] |= 1
	}
	b := bytes.Repeat(part, int(n)/len(part)+1)[:n]
	seen.Store(key{seed, n}, b)
	return b
}

// seen keeps what visible has returned, for its next calls.
var seen sync.Map

// begun reports whether a byte of w has come.
func (w *want) begun() bool {
	b := make([]byte, 1)
	for off := int64(0); off < large; off += 1 << 20 {
		if n, _ := w.file.ReadAt(b, off); n == 1 && b[0] != 0 {
			return true
		}
	}
	return false
}

// disturbed is a pair of reads of a large region under way.
type disturbed struct {
	e       *env
	region  rdma.Region
	content []byte
	wants   []*want
	reads   sync.WaitGroup
	ended   chan struct{} // closed when both have ended
	closing sync.Once
}

// close closes the region, which must return. Its error does not matter: the transport may be
// closed already.
func (d *disturbed) close() {
	d.closing.Do(func() {
		if err := d.e.within(func() error { d.region.Close(); return nil }); err != nil {
			d.e.Errorf("Close of a region whose reads were disturbed does not return")
		}
	})
}

// disturb begins two reads of a large region of holder through p. It returns when the first bytes
// of one have come.
func (e *env) disturb(ctx context.Context, holder rdma.Transport, p rdma.Peer) *disturbed {
	d := &disturbed{e: e, content: visible(1, large), ended: make(chan struct{})}
	region, err := holder.Register(newFile(e, d.content), large)
	if err != nil {
		e.Fatalf("register: %v", err)
	}
	d.region = region
	for i := range 2 {
		w := &want{name: fmt.Sprintf("large read %d", i), file: newFile(e, nil)}
		d.wants = append(d.wants, w)
		d.reads.Go(func() { e.readTo(ctx, p, region.Remote(), 0, large, w) })
	}
	go func() { // ends with the reads; settle waits for it
		d.reads.Wait()
		close(d.ended)
	}()
	e.await("bytes of a large read to come", func() bool {
		select {
		case <-d.ended:
			return true
		default:
			return d.wants[0].begun() || d.wants[1].begun()
		}
	})
	return d
}

// settle waits for the reads. Reads that succeeded have the right bytes; the others failed with one
// of kinds, and nothing writes to their files any more. It calls before, if not nil, when the files
// have been marked, and reports whether any failed.
func (d *disturbed) settle(before func(), kinds ...error) (caught bool) {
	e := d.e
	e.Helper()
	<-d.ended
	end := func() {
		if before != nil {
			before()
			before = nil
		}
		d.close()
	}
	for _, w := range d.wants {
		if w.err == nil {
			w.holds(e, d.content)
			continue
		}
		caught = true
		known := false
		for _, kind := range kinds {
			known = known || errors.Is(w.err, kind)
		}
		if !known {
			e.Errorf("%s: %v, want %v", w.name, w.err, kinds)
		}
		w.untouched(e, end)
	}
	end()
	for _, w := range d.wants {
		w.file.Close()
	}
	return caught
}

// catch tries until a read was caught in the middle.
func (e *env) catch(try func() (caught bool)) {
	e.Helper()
	for range attempts {
		if try() {
			return
		}
	}
	e.Errorf("%d times, reads of %d bytes came whole", attempts, large)
}

func checkReadCancelBefore(e *env) {
	content := pattern(1, 10_000)
	region, _ := e.register(content)
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	w := &want{}
	e.readTo(ctx, e.peer, region.Remote(), 0, 10_000, w)
	w.fails(e, context.Canceled)
	late, cancel := context.WithDeadline(e.ctx, time.Unix(1, 0))
	defer cancel()
	w = &want{}
	e.readTo(late, e.peer, region.Remote(), 0, 10_000, w)
	w.fails(e, context.DeadlineExceeded)
	e.recovers(e.peer, region.Remote(), content)
	e.closeRegion(region)
}

// checkReadCancelDuring also shows that a read beside a cancelled one fails at most with an error
// of its own.
func checkReadCancelDuring(e *env) {
	content := visible(2, large)
	beside, _ := e.register(content)
	e.catch(func() bool {
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		other := &want{name: "read beside a cancelled one", file: newFile(e, nil)}
		d := e.disturb(ctx, e.holder, e.peer)
		ended := make(chan struct{})
		go func() { // ends with the read; the function waits for it
			defer close(ended)
			e.readTo(e.ctx, e.peer, beside.Remote(), 0, large, other)
		}()
		e.await("bytes to come beside it", func() bool {
			select {
			case <-ended:
				return true
			default:
				return other.begun()
			}
		})
		cancel()
		caught := d.settle(nil, context.Canceled)
		<-ended
		if other.err == nil {
			other.holds(e, content)
		} else {
			other.fails(e, rdma.ErrUnavailable)
		}
		other.file.Close()
		return caught
	})
	e.recovers(e.peer, beside.Remote(), content)
	e.closeRegion(beside)
}

func checkReadPeerClosed(e *env) {
	content := pattern(1, 10_000)
	region, _ := e.register(content)
	other := e.connect(e.holder)
	e.recovers(e.peer, region.Remote(), content)
	for range 2 {
		if err := e.within(e.peer.Close); err != nil {
			e.Errorf("close peer: %v", err)
		}
	}
	w := &want{}
	e.readTo(e.ctx, e.peer, region.Remote(), 0, 10_000, w)
	w.fails(e, rdma.ErrClosed)
	e.recovers(other, region.Remote(), content)
	e.recovers(e.connect(e.holder), region.Remote(), content)
	e.closeRegion(region)
}

// checkReadPeerClosedDuring also shows that another Peer of the same transports is not affected.
func checkReadPeerClosedDuring(e *env) {
	content := visible(2, large/4)
	region, _ := e.register(content)
	other := e.connect(e.holder)
	e.recovers(other, region.Remote(), content[:1000])
	e.catch(func() bool {
		p := e.connect(e.holder)
		d := e.disturb(e.ctx, e.holder, p)
		beside := &want{name: "read by another peer"}
		var wg sync.WaitGroup
		wg.Go(func() { e.readTo(e.ctx, other, region.Remote(), 0, int64(len(content)), beside) })
		if err := e.within(p.Close); err != nil {
			e.Errorf("close peer: %v", err)
		}
		caught := d.settle(nil, rdma.ErrClosed)
		wg.Wait()
		beside.holds(e, content)
		beside.file.Close()
		return caught
	})
	e.closeRegion(region)
}

// checkReadTransportClosed closes the reader's transport, then the holder's.
func checkReadTransportClosed(e *env) {
	content := pattern(1, 10_000)
	region, _ := e.register(content)
	e.recovers(e.peer, region.Remote(), content)
	if err := e.within(e.reader.Close); err != nil {
		e.Errorf("close: %v", err)
	}
	w := &want{}
	e.readTo(e.ctx, e.peer, region.Remote(), 0, 10_000, w)
	w.fails(e, rdma.ErrClosed)
	e.isClosed(e.reader)
	if err := e.within(e.peer.Close); err != nil {
		e.Errorf("close a peer of a closed transport: %v", err)
	}
	if err := e.within(e.holder.Close); err != nil {
		e.Errorf("close: %v", err)
	}
	e.isClosed(e.holder)
	if err := e.within(func() error { region.Close(); return nil }); err != nil {
		e.Errorf("Close of a region of a closed transport does not return")
	}
}

func (e *env) isClosed(t rdma.Transport) {
	e.Helper()
	if _, err := t.Connect(e.holder.Addr()); !errors.Is(err, rdma.ErrClosed) {
		e.Errorf("connect with a closed transport: %v", err)
	}
	if _, err := t.Register(newFile(e, []byte("x")), 1); !errors.Is(err, rdma.ErrClosed) {
		e.Errorf("register with a closed transport: %v", err)
	}
}

func checkReadTransportClosedDuring(e *env) {
	e.catch(func() bool {
		reader := e.open(nil)
		p, err := reader.Connect(e.holder.Addr())
		if err != nil {
			e.Fatalf("connect: %v", err)
		}
		d := e.disturb(e.ctx, e.holder, p)
		if err := e.within(reader.Close); err != nil {
			e.Errorf("close during a read: %v", err)
		}
		return d.settle(nil, rdma.ErrClosed)
	})
}

// checkReadHolderDies closes the holder during reads. Its registrations may end before the
// connection.
func checkReadHolderDies(e *env) {
	e.catch(func() bool {
		holder := e.open(nil)
		p := e.connect(holder)
		d := e.disturb(e.ctx, holder, p)
		if err := e.within(holder.Close); err != nil {
			e.Errorf("close during a read: %v", err)
		}
		caught := d.settle(nil, rdma.ErrUnavailable, rdma.ErrGone)
		e.absent(p, d.region.Remote())
		return caught
	})
}

func checkReadHolderAbsent(e *env) {
	region, _ := e.register(pattern(1, 10_000))
	e.recovers(e.peer, region.Remote(), pattern(1, 10_000))
	if err := e.within(e.holder.Close); err != nil {
		e.Errorf("close: %v", err)
	}
	e.absent(e.peer, region.Remote())
	e.absent(e.connect(e.holder), region.Remote())
}

// absent shows that the target of p is not there.
func (e *env) absent(p rdma.Peer, r rdma.RemoteRegion) {
	e.Helper()
	w := &want{name: "read from an absent holder"}
	e.readTo(e.ctx, p, r, 0, min(r.Size, 1000), w)
	w.fails(e, rdma.ErrUnavailable)
	w.file.Close()
}

// checkReadRegionClosedDuring shows that reads of a closed region end.
func checkReadRegionClosedDuring(e *env) {
	e.catch(func() bool {
		d := e.disturb(e.ctx, e.holder, e.peer)
		d.close()
		return d.settle(nil, rdma.ErrUnavailable, rdma.ErrGone)
	})
	region, _ := e.register(pattern(1, 1000))
	e.recovers(e.peer, region.Remote(), pattern(1, 1000))
	e.closeRegion(region)
}

// checkReadCut breaks the link during reads.
func checkReadCut(e *env) {
	content := pattern(1, 10_000)
	region, _ := e.register(content)
	e.catch(func() bool {
		d := e.disturb(e.ctx, e.holder, e.peer)
		heal := e.h.Cut(e.holder, e.reader)
		caught := d.settle(nil, rdma.ErrUnavailable)
		e.absent(e.peer, region.Remote())
		heal()
		e.recovers(e.peer, region.Remote(), content)
		return caught
	})
	e.closeRegion(region)
}

// checkReadStalled lets the link go silent during reads. They end with their context or their Peer,
// and bytes on their way do not arrive when the link wakes up.
func checkReadStalled(e *env) {
	content := pattern(1, 10_000)
	region, _ := e.register(content)
	for _, c := range []struct {
		kind error
		end  func(cancel func(), p rdma.Peer) error
	}{
		{context.Canceled, func(cancel func(), _ rdma.Peer) error { cancel(); return nil }},
		{rdma.ErrClosed, func(_ func(), p rdma.Peer) error { return p.Close() }},
	} {
		e.catch(func() bool {
			ctx, cancel := context.WithCancel(e.ctx)
			defer cancel()
			p := e.connect(e.holder)
			d := e.disturb(ctx, e.holder, p)
			resume := e.h.Stall(e.holder, e.reader)
			if err := e.within(func() error { return c.end(cancel, p) }); err != nil {
				e.Errorf("end of a stalled read: %v", err)
			}
			caught := d.settle(resume, c.kind)
			e.recovers(e.peer, region.Remote(), content)
			return caught
		})
	}
	e.closeRegion(region)
}

// checkReadStalledClose closes the region and then both transports while the link is silent: none
// of the calls waits for it.
func checkReadStalledClose(e *env) {
	e.catch(func() bool {
		holder, reader := e.open(nil), e.open(nil)
		p, err := reader.Connect(holder.Addr())
		if err != nil {
			e.Fatalf("connect: %v", err)
		}
		d := e.disturb(e.ctx, holder, p)
		resume := e.h.Stall(holder, reader)
		defer resume()
		d.close()
		for _, t := range []rdma.Transport{reader, holder} {
			if err := e.within(t.Close); err != nil {
				e.Errorf("close while the link is silent: %v", err)
			}
		}
		return d.settle(nil, rdma.ErrClosed, rdma.ErrUnavailable, rdma.ErrGone)
	})
}

// checkReadStallGivenUp shows that reads over a silent link end by themselves.
func checkReadStallGivenUp(e *env) {
	content := pattern(1, 10_000)
	region, _ := e.register(content)
	e.recovers(e.peer, region.Remote(), content)
	resume := e.h.Stall(e.holder, e.reader)
	e.absent(e.peer, region.Remote())
	resume()
	e.recovers(e.peer, region.Remote(), content)
	e.closeRegion(region)
}
