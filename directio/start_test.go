package directio

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
