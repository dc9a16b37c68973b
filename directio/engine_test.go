package directio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// patience is how long tests wait for what must happen.
const patience = 2 * time.Minute

// eachEngine runs test over every engine that works here, with options o.
func eachEngine(t *testing.T, o Options, test func(*testing.T, Engine)) {
	t.Helper()
	o.Logger = zap.NewNop()
	opens := map[string]func() (Engine, error){
		EnginePread: func() (Engine, error) { return openPread(valid(o.withDefaults())), nil },
		EngineFake:  func() (Engine, error) { return NewFake(o, nil) },
		EngineUring: func() (Engine, error) { return openUring(valid(o.withDefaults())) },
	}
	for name, open := range opens {
		t.Run(name, func(t *testing.T) {
			e, err := open()
			if name == EngineUring && err != nil {
				t.Skipf("no io_uring here: %v", err)
			}
			must(t, err)
			t.Cleanup(func() { closeEngine(t, e) })
			if e.Name() != name {
				t.Errorf("Name is %q, want %q", e.Name(), name)
			}
			test(t, e)
		})
	}
}

func valid[T any](v T, err error) T {
	if err != nil {
		panic("unexpected: " + err.Error())
	}
	return v
}

func closeEngine(t testing.TB, e Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// one does a single op.
func one(e Engine, op Op) (int, error) {
	ops := []Op{op}
	if err := e.Do(context.Background(), ops); !errors.Is(err, ops[0].Err) {
		return ops[0].N, errors.Join(errors.New("Do and op differ"), err, ops[0].Err)
	}
	return ops[0].N, ops[0].Err
}

// TestRoundTrip writes ops of many sizes in one Do, syncs, and reads them back by
// others, in chunks that divide them and chunks that do not (B11, B12).
func TestRoundTrip(t *testing.T) {
	for _, o := range []Options{
		{},
		{ChunkBytes: 4096, InFlightBytes: 8192, Entries: 8, Threads: 2},
		{ChunkBytes: 3 * 4096, InFlightBytes: 7 * 4096, Entries: 8, Threads: 3},
	} {
		eachEngine(t, o, func(t *testing.T, e Engine) {
			sizes := []int{4096, 0, 64 << 10, 1 << 20, 8192, 300 << 10}
			total := 0
			for _, n := range sizes {
				total += n
			}
			f, m, back := fileWith(t, "", nil), mem(t, total), mem(t, total)
			noise(m, 1)
			var writes, reads []Op
			at := 0
			for _, n := range sizes {
				writes = append(writes, Op{Kind: Write, File: f, Mem: m[at : at+n], Off: int64(at)})
				reads = append(reads, Op{Kind: Read, File: f, Mem: back[at : at+n], Off: int64(at)})
				at += n
			}
			slices.Reverse(reads)
			for _, ops := range [][]Op{writes, {{Kind: Sync, File: f}}, reads} {
				must(t, e.Do(t.Context(), ops))
				for i, op := range ops {
					if op.N != len(op.Mem) || op.Err != nil {
						t.Errorf("op %d: N %d, Err %v, want %d", i, op.N, op.Err, len(op.Mem))
					}
				}
			}
			if !bytes.Equal(m, back) {
				t.Error("read other bytes than were written")
			}
			st := e.Stats()
			if st.Reads != 6 || st.Writes != 6 || st.Syncs != 1 || st.ReadBytes != uint64(total) ||
				st.WriteBytes != uint64(total) || st.Failed != 0 || st.InFlight != 0 || st.InFlightPeak < 1 {
				t.Errorf("stats %+v, %d bytes moved each way", st, total)
			}
			if e.Stuck() != 0 {
				t.Errorf("Stuck is %v with nothing in flight", e.Stuck())
			}
		})
	}
}

// TestParallel has many goroutines write and read pages of their own at random, some
// with contexts that end, while signals rain, and checks every byte (B11, B17).
func TestParallel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	stop := stormSignals(t)
	defer stop()
	eachEngine(t, Options{ChunkBytes: 16 << 10, InFlightBytes: 128 << 10, Entries: 16, Threads: 4}, func(t *testing.T, e Engine) {
		const workers, region = 8, 256 << 10
		f := fileWith(t, "", make([]byte, workers*region))
		var wg sync.WaitGroup
		for w := range workers {
			m, back := mem(t, region), mem(t, region)
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(w)))
				for range 40 {
					size := (1 + rnd.IntN(region/Alignment)) * Alignment
					off := rnd.IntN((region-size)/Alignment+1) * Alignment
					noise(m[:size], rnd.Uint64())
					at := int64(w*region + off)
					if _, err := one(e, Op{Kind: Write, File: f, Mem: m[:size], Off: at}); err != nil {
						t.Error(err)
						return
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(300))*time.Microsecond)
					ops := []Op{{Kind: Read, File: f, Mem: back[:size], Off: at}}
					err := e.Do(ctx, ops)
					cancel()
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
						return
					}
					if n := ops[0].N; !bytes.Equal(m[:n], back[:n]) || err == nil && n != size {
						t.Errorf("read %d of %d bytes at %d, equal: %v", n, size, at, bytes.Equal(m[:n], back[:n]))
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// stormSignals sends SIGURG to every thread of this process, over and over, until
// the returned function is called. The Go runtime does the same to preempt.
func stormSignals(t *testing.T) func() {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			threads, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, th := range threads {
				var tid int
				for _, c := range th.Name() {
					tid = tid*10 + int(c-'0')
				}
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // ESRCH: it ended
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// TestEndOfFile shows that reads beyond the end say io.ErrUnexpectedEOF and how far
// they came, whether the end lies on a page or within one, in every chunk size.
func TestEndOfFile(t *testing.T) {
	for _, chunk := range []int{4096, 8192, 1 << 20} {
		eachEngine(t, Options{ChunkBytes: chunk, InFlightBytes: 1 << 20}, func(t *testing.T, e Engine) {
			for _, c := range []struct {
				size, off, length int
				n                 int
				err               error
			}{
				{10000, 0, 64 << 10, 10000, io.ErrUnexpectedEOF},
				{10000, 8192, 4096, 1808, io.ErrUnexpectedEOF},
				{10000, 12288, 4096, 0, io.ErrUnexpectedEOF},
				{10000, 0, 8192, 8192, nil},
				{8192, 0, 16384, 8192, io.ErrUnexpectedEOF},
				{8192, 4096, 4096, 4096, nil},
				{0, 0, 4096, 0, io.ErrUnexpectedEOF},
			} {
				content := make([]byte, c.size)
				noise(content, 3)
				f, m := fileWith(t, "", content), mem(t, c.length)
				n, err := one(e, Op{Kind: Read, File: f, Mem: m, Off: int64(c.off)})
				if n != c.n || !errors.Is(err, c.err) {
					t.Errorf("%d bytes at %d of %d: %d, %v, want %d, %v", c.length, c.off, c.size, n, err, c.n, c.err)
				}
				if at := min(c.off, c.size); !bytes.Equal(m[:n], content[at:at+n]) {
					t.Errorf("%d bytes at %d of %d: wrong bytes", c.length, c.off, c.size)
				}
			}
		})
	}
}

// TestBadOps shows that an op that breaks the rules fails with EINVAL, alone.
func TestBadOps(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		f, m := fileWith(t, "", make([]byte, 8192)), mem(t, 12288)
		ops := []Op{
			{Kind: Read, File: f, Mem: m[:4096]},
			{Kind: Read, File: f, Mem: m[1:4097]},
			{Kind: Read, File: f, Mem: m[512:4608]},
			{Kind: Read, File: f, Mem: m[:4095]},
			{Kind: Read, File: f, Mem: m[:4096], Off: 512},
			{Kind: Read, File: f, Mem: m[:4096], Off: -4096},
			{Kind: Write, File: f, Mem: m[:4096], Off: 1<<63 - 4096},
			{Kind: Read, Mem: m[:4096]},
			{Kind: 77, File: f, Mem: m[:4096]},
			{Kind: Sync, File: f, Mem: m[1:2], Off: 1},
		}
		err := e.Do(t.Context(), ops)
		if !errors.Is(err, unix.EINVAL) || err != ops[1].Err {
			t.Errorf("Do: %v, want the first op's %v", err, ops[1].Err)
		}
		for i, op := range ops {
			good := i == 0 || i == len(ops)-1
			var sys *os.SyscallError
			if good && op.Err != nil || !good && (!errors.Is(op.Err, unix.EINVAL) || !errors.As(op.Err, &sys) || op.N != 0) {
				t.Errorf("op %d: N %d, %v", i, op.N, op.Err)
			}
		}
		must(t, e.Do(t.Context(), nil))
		if st := e.Stats(); st.Failed != 8 || st.Reads != 1 || st.Syncs != 1 {
			t.Errorf("stats %+v", st)
		}
	})
}

// TestErrno shows that errors of the system come as *os.SyscallError, and only to the
// op they belong to: a descriptor opened for reading, memory mapped for reading.
func TestErrno(t *testing.T) {
	eachEngine(t, Options{ChunkBytes: 8192, InFlightBytes: 16384}, func(t *testing.T, e Engine) {
		f, m := fileWith(t, "", make([]byte, 64<<10)), mem(t, 64<<10)
		ro, err := OpenFile(f.Name(), os.O_RDONLY, 0)
		must(t, err)
		defer ro.Close()
		fixed, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		defer unix.Munmap(fixed)
		ops := []Op{
			{Kind: Write, File: ro, Mem: m},
			{Kind: Read, File: ro, Mem: m},
			{Kind: Read, File: f, Mem: fixed},
		}
		_ = e.Do(t.Context(), ops)
		for i, want := range []error{unix.EBADF, nil, unix.EFAULT} {
			var sys *os.SyscallError
			if !errors.Is(ops[i].Err, want) || want != nil && (!errors.As(ops[i].Err, &sys) || ops[i].N != 0) {
				t.Errorf("op %d: %d, %v, want %v", i, ops[i].N, ops[i].Err, want)
			}
		}
	})
}

// TestContext shows that ops under a context that has ended are not begun.
func TestContext(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f, m := fileWith(t, "", make([]byte, 4096)), mem(t, 4096)
		noise(m, 5)
		ops := []Op{{Kind: Write, File: f, Mem: m}, {Kind: Sync, File: f}}
		if err := e.Do(ctx, ops); !errors.Is(err, context.Canceled) || !errors.Is(ops[1].Err, context.Canceled) {
			t.Errorf("Do: %v, %v", err, ops[1].Err)
		}
		if got, _ := os.ReadFile(f.Name()); !bytes.Equal(got, make([]byte, 4096)) {
			t.Error("the write was done")
		}
	})
}

// TestClose shows that Close lets go on what is in flight, that ops after it fail,
// and that it may be called again, all while others call Do.
func TestClose(t *testing.T) {
	eachEngine(t, Options{ChunkBytes: 64 << 10, InFlightBytes: 128 << 10}, func(t *testing.T, e Engine) {
		f := fileWith(t, "", make([]byte, 1<<20))
		started := make(chan struct{}, 4)
		var wg sync.WaitGroup
		for range 4 {
			m := mem(t, 1<<20)
			wg.Go(func() {
				started <- struct{}{}
				for {
					ops := []Op{{Kind: Read, File: f, Mem: m}}
					if err := e.Do(context.Background(), ops); errors.Is(err, os.ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 4 {
			<-started
		}
		closeEngine(t, e)
		wg.Wait()
		closeEngine(t, e)
		if _, err := one(e, Op{Kind: Sync, File: f}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Do after Close: %v", err)
		}
		if st := e.Stats(); st.InFlight != 0 {
			t.Errorf("after Close %d in flight", st.InFlight)
		}
	})
}

// TestOptions shows that Open names every option that is out of range, at once.
func TestOptions(t *testing.T) {
	_, err := Open(t.Context(), Options{Engine: "aio", Entries: 7, InFlightBytes: 4096, ChunkBytes: 4097, Threads: -1})
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 5 || !errors.Is(err, os.ErrInvalid) {
		t.Errorf("Open: %v, want five complaints", err)
	}
	for _, o := range []Options{
		{}, {ChunkBytes: 16 << 20}, {InFlightBytes: 4096}, {InFlightBytes: 10000}, {Engine: "pread", Threads: 1, Entries: 4096},
	} {
		e, err := Open(t.Context(), o)
		if err != nil {
			t.Errorf("%+v: %v", o, err)
			continue
		}
		closeEngine(t, e)
	}
}
