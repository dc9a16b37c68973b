package directio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestScriptStorm runs many callers over a device that is short, busy, interrupted,
// failing, slow and out of order at random, some under contexts that end, and shows of
// every op that it ends, that its bytes are right up to N, and that Err is something
// that happened.
func TestScriptStorm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0)) // the script is called for one piece at a time
	script := func(c FakeCall) FakeResult {
		var r FakeResult
		switch rnd.IntN(12) {
		case 0:
			r.Errno = []unix.Errno{unix.EINTR, unix.EAGAIN, unix.EBUSY}[rnd.IntN(3)]
		case 1:
			r.Short, r.N = c.Bytes > 0, rnd.IntN(c.Bytes+1)&^(Alignment-1)
			if r.N == 0 {
				r.Short = false
			}
		case 2:
			if rnd.IntN(8) == 0 {
				r.Errno = unix.EIO
			}
		case 3:
			if c.Bytes > 0 && rnd.IntN(8) == 0 {
				r.Short, r.N = true, rnd.IntN(c.Bytes)
			}
		}
		if rnd.IntN(3) == 0 {
			r.Delay = time.Duration(rnd.IntN(500)) * time.Microsecond
		}
		return r
	}
	e := newFake(t, Options{Entries: 8, ChunkBytes: 8192, InFlightBytes: 40960}, script)
	const workers, region = 6, 128 << 10
	f := fileWith(t, "", make([]byte, workers*region))
	var wg sync.WaitGroup
	for w := range workers {
		back, buf := mem(t, region), mem(t, region)
		wg.Go(func() {
			truth := make([]byte, region) // what the file holds
			rnd := rand.New(rand.NewPCG(seed, uint64(w+1)))
			for range 60 {
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(5) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rnd.IntN(2000))*time.Microsecond)
				}
				stormDo(t, ctx, e, f, rnd, int64(w*region), truth, buf, back)
				cancel()
			}
		})
	}
	wg.Wait()
	st := e.Stats()
	if st.InFlight != 0 || st.InFlightPeak > 8 || st.Continued == 0 || st.Retried == 0 || st.Failed == 0 {
		t.Errorf("stats %+v", st)
	}
}

// stormDo does a few ops in the region at base, whose content is truth, and checks
// them.
func stormDo(t *testing.T, ctx context.Context, e Engine, f *File, rnd *rand.Rand, base int64, truth, buf, back []byte) {
	const ops, part = 4, 32 << 10
	noise(buf, rnd.Uint64())
	list := make([]Op, ops)
	for i := range list {
		size := (1 + rnd.IntN(part/Alignment)) * Alignment
		list[i] = Op{Kind: Kind(rnd.IntN(3)), File: f, Off: base + int64(i*part), Mem: buf[i*part:][:size]}
		if list[i].Kind == Read {
			list[i].Mem = back[i*part:][:size]
		}
	}
	_ = e.Do(ctx, list)
	for i, op := range list {
		want := len(op.Mem)
		if op.Kind == Sync {
			want = 0
		}
		ok := op.Err == nil && op.N == want
		for _, err := range []error{unix.EIO, io.ErrUnexpectedEOF, io.ErrShortWrite, context.DeadlineExceeded} {
			ok = ok || errors.Is(op.Err, err) && op.N <= want
		}
		if !ok {
			t.Errorf("%v of %d: %d, %v", op.Kind, len(op.Mem), op.N, op.Err)
		}
		at := i * part
		switch op.Kind {
		case Read:
			if !bytes.Equal(op.Mem[:op.N], truth[at:at+op.N]) {
				t.Errorf("read of %d: wrong bytes within the first %d", len(op.Mem), op.N)
			}
		case Write:
			// Beyond N anything may have been written: find out.
			got := back[at : at+len(op.Mem)]
			plain, err := unix.Pread(f.Fd(), got, op.Off)
			if err != nil || plain != len(got) || !bytes.Equal(got[:op.N], op.Mem[:op.N]) {
				t.Errorf("write of %d, %d done: read back %d, %v, or wrong bytes", len(op.Mem), op.N, plain, err)
			}
			copy(truth[at:], got)
		}
	}
}
