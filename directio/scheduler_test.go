package directio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// newFake opens a Fake that is closed when the test ends.
func newFake(t *testing.T, o Options, script func(FakeCall) FakeResult) *Fake {
	t.Helper()
	f, err := NewFake(o, script)
	must(t, err)
	t.Cleanup(func() {
		f.Release()
		closeEngine(t, f)
	})
	return f
}

var eventually = harness.Poll

// TestResults goes through the results that a kernel can give, one script a row, and
// what becomes of them (design in the package comment, "Results").
func TestResults(t *testing.T) {
	const size = 16384
	errno := func(errnos ...unix.Errno) []FakeResult {
		var rs []FakeResult
		for _, e := range errnos {
			rs = append(rs, FakeResult{Errno: e})
		}
		return rs
	}
	short := func(ns ...int) []FakeResult {
		var rs []FakeResult
		for _, n := range ns {
			rs = append(rs, FakeResult{Short: true, N: n})
		}
		return rs
	}
	for _, c := range []struct {
		name               string
		kind               Kind
		script             []FakeResult
		n                  int
		err                error
		continued, retried uint64
	}{
		{"read", Read, nil, size, nil, 0, 0},
		{"interrupted", Read, errno(unix.EINTR, unix.EINTR, unix.EINTR), size, nil, 0, 3},
		{"again", Write, errno(unix.EAGAIN, unix.EBUSY), size, nil, 0, 2},
		{"sync again", Sync, errno(unix.EINTR, unix.EAGAIN), 0, nil, 0, 2},
		{"short read continues", Read, short(4096, 8192), size, nil, 2, 0},
		{"short write continues", Write, short(8192, 4096), size, nil, 2, 0},
		{"short, interrupted, short", Read, slices.Concat(short(4096), errno(unix.EINTR), short(4096)), size, nil, 2, 1},
		{"read ends within a page", Read, short(5000), 5000, io.ErrUnexpectedEOF, 0, 0},
		{"read ends later within a page", Read, short(8192, 100), 8292, io.ErrUnexpectedEOF, 1, 0},
		{"nothing read", Read, short(0), 0, io.ErrUnexpectedEOF, 0, 0},
		{"nothing read after a page", Read, short(4096, 0), 4096, io.ErrUnexpectedEOF, 1, 0},
		{"write stops within a page, then goes on", Write, short(5000), size, nil, 1, 0},
		{"write stops, no space", Write, slices.Concat(short(8192), errno(unix.ENOSPC)), 8192, unix.ENOSPC, 1, 0},
		{"write moves nothing for ever", Write, short(4096, 0, 0, 100, 0), 4096, io.ErrShortWrite, 4, 0},
		{"write moves nothing, then something", Write, short(0, 0, 0, 4096, 0, 0, 0), size, nil, 7, 0},
		{"EIO", Read, errno(unix.EIO), 0, unix.EIO, 0, 0},
		{"ENODATA", Read, errno(unix.ENODATA), 0, unix.ENODATA, 0, 0},
		{"EREMOTEIO", Read, errno(unix.EREMOTEIO), 0, unix.EREMOTEIO, 0, 0},
		{"EDQUOT", Write, errno(unix.EDQUOT), 0, unix.EDQUOT, 0, 0},
		{"EFBIG", Write, errno(unix.EFBIG), 0, unix.EFBIG, 0, 0},
		{"EFAULT is not tried again", Read, errno(unix.EFAULT), 0, unix.EFAULT, 0, 0},
		{"sync EIO", Sync, errno(unix.EIO), 0, unix.EIO, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newFake(t, Options{}, func(call FakeCall) FakeResult {
				if call.Seq > len(c.script) {
					return FakeResult{}
				}
				return c.script[call.Seq-1]
			})
			content, m := make([]byte, size), mem(t, size)
			noise(content, 1)
			if c.kind == Write {
				noise(m, 2)
			}
			f := fileWith(t, "", content)
			n, err := one(e, Op{Kind: c.kind, File: f, Mem: m})
			if n != c.n || !errors.Is(err, c.err) {
				t.Errorf("moved %d, %v; want %d, %v", n, err, c.n, c.err)
			}
			if c.kind == Write {
				content, _ = os.ReadFile(f.Name())
			}
			if !bytes.Equal(m[:n], content[:n]) {
				t.Error("moved the wrong bytes")
			}
			st := e.Stats()
			if st.Continued != c.continued || st.Retried != c.retried || (st.Failed == 1) != (c.err != nil) {
				t.Errorf("stats %+v, want %d continued, %d retried", st, c.continued, c.retried)
			}
			var sys *os.SyscallError
			if _, isErrno := c.err.(unix.Errno); isErrno && !errors.As(err, &sys) {
				t.Errorf("%v is no *os.SyscallError", err)
			}
		})
	}
}

// TestRetryLimit shows that a device that is busy for ever fails the op in the end.
func TestRetryLimit(t *testing.T) {
	p := &piece{req: &request{op: &Op{Kind: Read, Mem: make([]byte, 4096)}}, size: 4096}
	for _, errno := range []unix.Errno{unix.EAGAIN, unix.EBUSY, unix.EINTR} {
		p.retries = 0
		var wait time.Duration
		tries := 0
		v := p.judge(0, errno)
		for ; !v.done; v = p.judge(0, errno) {
			tries++
			wait += v.after
		}
		if !errors.Is(v.err, errno) || tries < maxRetries || wait > time.Minute {
			t.Errorf("%v: gave up with %v after %d tries and %v", errno, v.err, tries, wait)
		}
	}
}

// TestPiecesFail shows that of an op whose pieces end in disorder the lowest failure
// counts, and N reaches up to it.
func TestPiecesFail(t *testing.T) {
	e := newFake(t, Options{ChunkBytes: 4096}, func(c FakeCall) FakeResult {
		r := FakeResult{Hold: true}
		switch c.Off {
		case 2 * 4096:
			r.Errno = unix.EIO
		case 3 * 4096:
			r.Errno = unix.EREMOTEIO
		}
		return r
	})
	content := make([]byte, 5*4096)
	noise(content, 1)
	f, m := fileWith(t, "", content), mem(t, len(content))
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err := one(e, Op{Kind: Read, File: f, Mem: m})
		if n != 2*4096 || !errors.Is(err, unix.EIO) || !bytes.Equal(m[:n], content[:n]) {
			t.Errorf("%d, %v, want the first two pages and EIO", n, err)
		}
	}()
	eventually(t, "five pieces in flight", func() bool { return len(e.Held()) == 5 })
	e.Release(4, 2, 3, 5, 1)
	<-done
}

// TestTakeBack shows that a context takes back what waits and not what is with the
// kernel: Do stays until that is done, and only then may its memory be used again.
func TestTakeBack(t *testing.T) {
	e := newFake(t, Options{Entries: 8, ChunkBytes: 4096}, func(FakeCall) FakeResult { return FakeResult{Hold: true} })
	content := make([]byte, 20*4096)
	noise(content, 4)
	f, m := fileWith(t, "", content), mem(t, len(content))
	ops := []Op{
		{Kind: Read, File: f, Mem: m[:4*4096]},
		{Kind: Read, File: f, Mem: m[4*4096 : 14*4096], Off: 4 * 4096},
		{Kind: Read, File: f, Mem: m[14*4096:], Off: 14 * 4096},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Do(ctx, ops) }()
	eventually(t, "8 pieces in flight", func() bool { return len(e.Held()) == 8 })
	if e.Stuck() <= 0 {
		t.Error("Stuck is 0 with pieces in flight")
	}
	cancel()
	eventually(t, "the rest taken back", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.mu.queues[0].first == nil
	})
	for seq := 1; seq < 8; seq++ {
		e.Release(seq)
	}
	select {
	case err := <-done:
		t.Fatalf("Do returned with a piece in flight: %v", err)
	default:
	}
	e.Release()
	wantErr(t, "Do", <-done, context.Canceled)
	for i, want := range []int{4 * 4096, 4 * 4096, 0} {
		if ops[i].N != want || (ops[i].Err == nil) != (i == 0) {
			t.Errorf("op %d: %d, %v, want %d", i, ops[i].N, ops[i].Err, want)
		}
	}
	if !bytes.Equal(m[:8*4096], content[:8*4096]) || !bytes.Equal(m[8*4096:], make([]byte, 12*4096)) {
		t.Error("memory holds something else than what N says")
	}
}

// TestTakeBackRetry shows that a context takes back an op that waits to be tried
// again.
func TestTakeBackRetry(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := newFake(t, Options{}, func(c FakeCall) FakeResult {
		if c.Seq == 5 {
			cancel()
		}
		return FakeResult{Errno: unix.EAGAIN}
	})
	ops := []Op{{Kind: Read, File: fileWith(t, "", nil), Mem: mem(t, 4096)}}
	wantErr(t, "Do", e.Do(ctx, ops), context.Canceled)
}

// TestTakeBackResult shows that what was with the kernel when the context ended, and
// comes back with something left to do, is not begun again.
func TestTakeBackResult(t *testing.T) {
	for name, result := range map[string]FakeResult{
		"again": {Hold: true, Errno: unix.EAGAIN}, "interrupted": {Hold: true, Errno: unix.EINTR}, "short": {Hold: true, Short: true, N: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(t, Options{}, func(FakeCall) FakeResult { return result })
			ctx, cancel := context.WithCancel(t.Context())
			ops := []Op{{Kind: Read, File: fileWith(t, "", make([]byte, 8192)), Mem: mem(t, 8192)}}
			done := make(chan error)
			go func() { done <- e.Do(ctx, ops) }()
			eventually(t, "the read to be held", func() bool { return len(e.Held()) == 1 })
			cancel()
			eventually(t, "the context to be noticed", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.mu.flying.first.value.req.batch.err != nil
			})
			e.Release()
			if err := <-done; !errors.Is(err, context.Canceled) || ops[0].N != result.N {
				t.Errorf("Do: %d, %v", ops[0].N, err)
			}
		})
	}
}

// TestCloseStuck shows that Close gives up with its context while an op is stuck,
// that the op keeps its memory, and that Close returns once the op is done.
func TestCloseStuck(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	e := newFake(t, Options{Entries: 8, ChunkBytes: 4096, Logger: zap.New(core)}, func(FakeCall) FakeResult { return FakeResult{Hold: true} })
	content := make([]byte, 9*4096)
	noise(content, 4)
	f, m := fileWith(t, "", content), mem(t, len(content))
	ops := []Op{{Kind: Read, File: f, Mem: m[:4096]}, {Kind: Read, File: f, Mem: m[4096:], Off: 4096}}
	done := make(chan error, 1)
	go func() { done <- e.Do(context.Background(), ops) }()
	eventually(t, "8 pieces in flight", func() bool { return len(e.Held()) == 8 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, "Close with a stuck op", e.Close(ctx), context.Canceled)
	if lines := logs.All(); len(lines) != 1 || lines[0].ContextMap()["oldest"] != "read" ||
		lines[0].ContextMap()["file"] != f.Name() || lines[0].ContextMap()["in_flight"] != int64(8) {
		t.Errorf("logged %v", lines)
	}
	if _, err := one(e, Op{Kind: Read, File: f, Mem: m}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Close: %v", err)
	}
	if len(done) > 0 || e.Stuck() <= 0 {
		t.Errorf("Do has returned: %v; stuck for %v", len(done) > 0, e.Stuck())
	}
	e.Release()
	if err := <-done; !errors.Is(err, os.ErrClosed) || ops[0].Err != nil || ops[1].N != 7*4096 {
		t.Errorf("Do: %v, ops %d %v, %d %v", err, ops[0].N, ops[0].Err, ops[1].N, ops[1].Err)
	}
	closeEngine(t, e)
}

// TestOrder fills both queues while the device is held and shows in which order the
// pieces go: reads ahead of earlier writes, but one byte of writes for three of reads
// (B17), and no more in flight than allowed.
func TestOrder(t *testing.T) {
	const chunk = 4096
	var mu sync.Mutex
	var order []Kind
	e := newFake(t, Options{Entries: 8, ChunkBytes: chunk, InFlightBytes: 4 * chunk}, func(c FakeCall) FakeResult {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, c.Kind)
		return FakeResult{Hold: true}
	})
	f := fileWith(t, "", make([]byte, 24*chunk))
	var wg sync.WaitGroup
	do := func(kind Kind) {
		m := mem(t, 12*chunk)
		wg.Go(func() {
			if _, err := one(e, Op{Kind: kind, File: f, Mem: m}); err != nil {
				t.Error(err)
			}
		})
	}
	do(Write)
	eventually(t, "the share of writes in flight", func() bool { return len(e.Held()) == 3 })
	do(Read)
	eventually(t, "one read beside them", func() bool { return len(e.Held()) == 4 })
	settled := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return !e.anyLocked() && e.mu.stats.InFlight == int64(len(e.Held()))
	}
	for len(e.Held()) > 0 {
		if held := len(e.Held()); held > 4 {
			t.Errorf("%d pieces in flight, 4 are allowed", held)
		}
		e.Release(e.Held()[0].Seq)
		eventually(t, "the next piece", settled)
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	// 3 writes before the reads came; then 3 reads to 1 write while both last.
	var reads, writes int
	for _, k := range order[3:15] {
		if k == Read {
			reads++
		} else {
			writes++
		}
	}
	if len(order) != 24 || reads < 8 || writes < 2 {
		t.Errorf("order %v: %d reads and %d writes of the first 12 after the read came, want about 9 and 3", order, reads, writes)
	}
}

// TestWritesAlone shows that writes as large as the whole limit still go.
func TestWritesAlone(t *testing.T) {
	eachEngine(t, Options{ChunkBytes: 1 << 20, InFlightBytes: 1 << 20, Threads: 1, Entries: 8}, func(t *testing.T, e Engine) {
		f, m := fileWith(t, "", nil), mem(t, 3<<20)
		var wg sync.WaitGroup
		for _, kind := range []Kind{Write, Write, Sync, Write} {
			wg.Go(func() {
				if _, err := one(e, Op{Kind: kind, File: f, Mem: m}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
