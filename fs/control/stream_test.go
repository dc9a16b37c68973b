package control

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRequestStreams shows an answer that is read while it is being made: what has been written
// is there at once, a reader that may not wait is told so, and the answer ends with the handler.
func TestRequestStreams(t *testing.T) {
	lines := make(chan string)
	var wg sync.WaitGroup
	r := newConversation(t.Context(), &wg, new(requestMemory), func(_ context.Context, request []byte, answer io.Writer) {
		for line := range lines {
			answer.Write(append(request, line...))
		}
	})
	t.Cleanup(func() { r.close(); wg.Wait() })
	mustWrite(t, r, "asked: ", 3)
	buf := make([]byte, 100)
	if n, st := r.read(nil, true, buf); n != 0 || st != unix.EAGAIN {
		t.Errorf("nothing there yet: got %d, %v", n, st)
	}
	if _, st := r.write([]byte("more")); st != unix.EBUSY {
		t.Errorf("write while it runs: got %v", st)
	}
	for _, line := range []string{"one\n", "two\n"} {
		lines <- line
		if n, st := r.read(nil, false, buf); st != nil || string(buf[:n]) != "asked: "+line {
			t.Errorf("got %q, %v", buf[:n], st)
		}
	}
	close(lines)
	if n, st := r.read(nil, false, buf); n != 0 || st != nil {
		t.Errorf("at the end: got %d, %v", n, st)
	}
}

// TestRequestSlowReader shows that a handler waits for its reader when much of the answer has
// not been read, loses nothing of it, and ends when the descriptor is closed.
func TestRequestSlowReader(t *testing.T) {
	const pieces = 40
	piece := bytes.Repeat([]byte("0123456789abcde\n"), maxAnswer/160) // a tenth of what may wait
	var mu sync.Mutex
	written, failed := 0, error(nil)
	var wg sync.WaitGroup
	r := newConversation(t.Context(), &wg, new(requestMemory), func(_ context.Context, _ []byte, answer io.Writer) {
		for i := 0; ; i++ {
			_, err := answer.Write(piece)
			mu.Lock()
			written, failed = i, err
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	r.ask()
	got := make([]byte, 0, pieces*len(piece))
	buf := make([]byte, 100_003)
	for len(got) < pieces*len(piece) {
		n, st := r.read(nil, false, buf)
		if n == 0 || st != nil {
			t.Fatalf("after %d bytes: got %d, %v", len(got), n, st)
		}
		got = append(got, buf[:n]...)
		mu.Lock()
		if ahead := written*len(piece) - len(got); ahead > maxAnswer+2*len(piece)+len(buf) {
			t.Fatalf("the handler is %d bytes ahead", ahead)
		}
		mu.Unlock()
	}
	if want := bytes.Repeat(piece, pieces+1); !bytes.HasPrefix(want, got[:pieces*len(piece)]) {
		t.Error("the answer came in another order")
	}
	r.close()
	wg.Wait()
	if failed == nil {
		t.Error("the handler was not told that nobody reads any more")
	}
}
