package directio

import (
	"bytes"
	"errors"
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
		if err := start(Op{Kind: Read, File: f, Mem: m[:4096], Off: 1}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("misaligned: got %v, want EINVAL", err)
		}
		if err := start(Op{Kind: Read, File: f, Mem: nil}); err != nil {
			t.Errorf("empty: %v", err)
		}
		closeEngine(t, e)
		if err := start(Op{Kind: Read, File: f, Mem: m[:4096]}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: got %v, want os.ErrClosed", err)
		}
	})
}
