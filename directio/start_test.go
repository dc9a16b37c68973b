package directio

import (
	"bytes"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestStart reads pages by chains of Starts, each begun by the end of the one before,
// many side by side with Dos: every end is told once, with the right bytes (A21).
func TestStart(t *testing.T) {
	const chains, pages = 8, 64
	eachEngine(t, Options{Entries: 8, Threads: 3}, func(t *testing.T, e Engine) {
		content := make([]byte, pages*Alignment)
		noise(content, 3)
		f, m := fileWith(t, "", content), mem(t, (chains+1)*Alignment)
		var wg sync.WaitGroup
		var ends atomic.Int64
		for c := range chains {
			at := m[c*Alignment : (c+1)*Alignment]
			wg.Add(pages)
			var next func(i int)
			next = func(i int) {
				ops := []Op{{Kind: Read, File: f, Mem: at, Off: int64(i) * Alignment}}
				e.(Starter).Start(ops, func() {
					defer wg.Done()
					ends.Add(1)
					if ops[0].Err != nil || ops[0].N != Alignment || !bytes.Equal(at, content[i*Alignment:][:Alignment]) {
						t.Errorf("chain %d, page %d: N %d, Err %v, or wrong bytes", c, i, ops[0].N, ops[0].Err)
					}
					if i+1 < pages {
						next(i + 1)
					}
				})
			}
			next(0)
		}
		for i := range pages {
			if _, err := one(e, Op{Kind: Read, File: f, Mem: m[chains*Alignment:], Off: int64(i) * Alignment}); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if got := ends.Load(); got != chains*pages {
			t.Errorf("%d ends, want %d", got, chains*pages)
		}
	})
}

// TestStartFed: what the end of a Start begins is with the kernel when the next end is told, also if both ends came at once.
func TestStartFed(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		if e.Name() != EngineUring {
			t.Skip("only the ring has a single goroutine for all ends")
		}
		f, m := fileWith(t, "", bytes.Repeat([]byte{1}, 4*Alignment)), mem(t, 4*Alignment)
		for range 20 {
			clear(m)
			ends, fed := 0, false // all ends are on one goroutine
			var over sync.WaitGroup
			read := func(i int, done func()) {
				over.Add(1)
				ops := []Op{{Kind: Read, File: f, Mem: m[i*Alignment:][:Alignment], Off: int64(i) * Alignment}}
				e.(Starter).Start(ops, func() { defer over.Done(); done() })
			}
			end := func() {
				switch ends++; {
				case ends == 1: // so that the other two come at once, where the kernel reads without this goroutine
					for began, i := time.Now(), 0; i < 3 && time.Since(began) < time.Second; {
						if (*atomic.Uint64)(unsafe.Pointer(&m[i*Alignment])).Load() != 0 {
							i++
						}
					}
				case ends == 2:
					read(3, func() { fed = true })
				case !fed && e.Stats().InFlight == 0:
					t.Error("the read that the end before began is not with the kernel")
				}
			}
			read(3, func() { read(0, end); read(1, end); read(2, end) }) // these go to the kernel together
			over.Wait()
		}
	})
}

// TestRun: an engine that has nothing else to do does an op within Run; while one is under way, Run is Start. Errors are told
// as by Start.
func TestRun(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		content := make([]byte, 2*Alignment)
		noise(content, 4)
		f, m := fileWith(t, "", content), mem(t, 2*Alignment)
		run := func(op Op, within bool) error {
			t.Helper()
			ops, done := []Op{op}, make(chan struct{})
			e.(Starter).Run(ops, func() { close(done) })
			select {
			case <-done:
			default:
				if within {
					t.Error("not done when Run returned")
				}
				<-done
			}
			return ops[0].Err
		}
		for page := range 2 {
			at := page * Alignment
			err := run(Op{Kind: Read, File: f, Mem: m[at:][:Alignment], Off: int64(at)}, true)
			if err != nil || !bytes.Equal(m[:at+Alignment], content[:at+Alignment]) {
				t.Errorf("page %d: %v, or wrong bytes", page, err)
			}
		}
		wantErr(t, "beyond the end", run(Op{Kind: Read, File: f, Mem: m, Off: Alignment}, false), io.ErrUnexpectedEOF)
		wantErr(t, "misaligned", run(Op{Kind: Read, File: f, Mem: m, Off: 1}, true), unix.EINVAL)
		if st := e.Stats(); st.Reads != 2 || st.InFlight != 0 {
			t.Errorf("%d reads, %d in flight", st.Reads, st.InFlight)
		}
		closeEngine(t, e)
		wantErr(t, "after Close", run(Op{Kind: Read, File: f, Mem: m}, true), os.ErrClosed)
	})
}

// TestRunClosed: an engine that is closed during a Run ends when the Run does.
func TestRunClosed(t *testing.T) {
	f, m := fileWith(t, "", make([]byte, Alignment)), mem(t, Alignment)
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		s, ok := e.(*scheduler)
		if !ok {
			t.Skip("the fake has no goroutine that an end could leave behind")
		}
		b := &batch{then: func() {}}
		reqs := b.requests([]Op{{Kind: Read, File: f, Mem: m}}, (*Op).check)
		s.mu.Lock()
		s.enqueueLocked(b, reqs)
		p := s.takeLocked() // as Run does
		s.mu.Unlock()
		gone := make(chan struct{})
		go func() { closeEngine(t, e); close(gone) }()
		eventually(t, "the engine to be closing", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.mu.closed
		})
		n, errno := p.transfer()
		s.finish(p, n, errno)
		<-gone
	})
}

// TestStartFails: what cannot be begun ends with its error, not from within Start,
// and so does what comes after Close.
func TestStartFails(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, e Engine) {
		f, m := fileWith(t, "", make([]byte, 8192)), mem(t, 8192)
		start := func(op Op) error {
			t.Helper()
			var lock sync.Mutex // held during Start: done would wait for ever within it
			ops, done := []Op{op}, make(chan struct{})
			lock.Lock()
			e.(Starter).Start(ops, func() { lock.Lock(); defer lock.Unlock(); close(done) })
			lock.Unlock()
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatal("done was not called")
			}
			return ops[0].Err
		}
		wantErr(t, "misaligned", start(Op{Kind: Read, File: f, Mem: m[:4096], Off: 1}), unix.EINVAL)
		must(t, start(Op{Kind: Read, File: f, Mem: nil}))
		closeEngine(t, e)
		wantErr(t, "after Close", start(Op{Kind: Read, File: f, Mem: m[:4096]}), os.ErrClosed)
	})
}
