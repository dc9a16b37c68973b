package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// countingDialogue answers with the length of the request, once it may.
func countingDialogue(may <-chan struct{}) Dialogue {
	return func(_ context.Context, request []byte, answer io.Writer) {
		<-may
		fmt.Fprintln(answer, len(request))
	}
}

// always is closed.
var always = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// writeMany writes n bytes of a request in pieces as the kernel does.
func writeMany(t *testing.T, r *conversation, n int) {
	t.Helper()
	for piece := make([]byte, 1<<20); n > 0; n -= min(n, len(piece)) {
		data := piece[:min(n, len(piece))]
		if got, st := r.write(data); st != nil || got != len(data) {
			t.Errorf("write: got %d, %v", got, st)
			return
		}
	}
}

// refusedFor is the answer to a request that was refused.
func refusedFor(why string) string { return string(encodeAnswer(failure{Error: why})) }

// TestRequestMemoryBound shows that half-written requests on many descriptors have no more memory
// than a mount has for them: each write returns at once, those for which there is none are told to
// try again, and a small request is answered all the same. When the others are closed each
// descriptor that was refused may ask the largest request.
func TestRequestMemoryBound(t *testing.T) {
	const n, each = 60, 15 << 20
	var memory requestMemory
	var wg sync.WaitGroup
	requests := make([]*conversation, n)
	for i := range requests {
		requests[i] = newConversation(t.Context(), &wg, &memory, countingDialogue(always))
	}
	var writers sync.WaitGroup
	for _, r := range requests {
		writers.Go(func() { // ends with its writes
			writeMany(t, r, each)
			if used := memory.used.Load(); used > maxHeld {
				t.Errorf("%d bytes are held", used)
			}
		})
	}
	writers.Wait()
	var refused, held []*conversation
	total := 0
	for _, r := range requests {
		if r.mu.refused != "" {
			refused = append(refused, r)
		} else {
			held = append(held, r)
		}
		total += cap(r.mu.request.bytes)
	}
	if len(refused) == 0 || total > maxHeld+n*freeHeld {
		t.Errorf("%d of %d are refused, and %d bytes held", len(refused), n, total)
	}
	small := newConversation(t.Context(), &wg, &memory, countingDialogue(always))
	writeMany(t, small, freeHeld)
	if got := readAll(t, small, 100); got != fmt.Sprintln(freeHeld) {
		t.Errorf("a small request: got %q", got)
	}
	small.close()
	for _, r := range refused {
		if got := readAll(t, r, 4096); got != refusedFor(refusedMemory) {
			t.Errorf("refused: got %q", got)
		}
	}
	for _, r := range held {
		r.close()
	}
	for i, r := range refused {
		if i%20 != 0 { // a few show it
			continue
		}
		writeMany(t, r, maxRequest)
		if got := readAll(t, r, 4096); got != fmt.Sprintln(maxRequest) {
			t.Errorf("the largest request, later: got %q", got)
		}
	}
	for _, r := range requests {
		r.close()
	}
	wg.Wait()
	if used := memory.used.Load(); used != 0 {
		t.Errorf("%d bytes are held after the close of all", used)
	}
}

// TestRequestMemoryClose shows that a close gives the memory back, whatever the dialogue is at, and
// that nothing is taken after it.
func TestRequestMemoryClose(t *testing.T) {
	const large = 3 << 20
	for name, c := range map[string]struct {
		hold bool // the handler waits for the close
		do   func(t *testing.T, r *conversation)
		held bool // there is memory before the close
	}{
		"new":          {do: func(*testing.T, *conversation) {}},
		"half-written": {held: true, do: func(t *testing.T, r *conversation) { writeMany(t, r, large) }},
		"small":        {do: func(t *testing.T, r *conversation) { writeMany(t, r, freeHeld) }},
		"too large":    {do: func(t *testing.T, r *conversation) { writeMany(t, r, maxRequest+1) }},
		"no memory": {held: true, do: func(t *testing.T, r *conversation) {
			if !r.mu.request.memory.take(maxHeld) {
				t.Error("there is no memory at all")
			}
			writeMany(t, r, large)
			if r.mu.refused != refusedMemory {
				t.Errorf("refused: %q", r.mu.refused)
			}
			r.mu.request.memory.give(maxHeld - 1) // that which is left is for held
		}},
		"running": {hold: true, held: true, do: func(t *testing.T, r *conversation) {
			writeMany(t, r, large)
			if _, st := r.read(nil, true, make([]byte, 10)); st != unix.EAGAIN {
				t.Errorf("read: %v", st)
			}
		}},
		"answer not read": {held: true, do: func(t *testing.T, r *conversation) {
			writeMany(t, r, large)
			if n, st := r.read(nil, false, make([]byte, 1)); n != 1 || st != nil {
				t.Errorf("read: %d, %v", n, st)
			}
		}},
		"answered": {held: true, do: func(t *testing.T, r *conversation) {
			writeMany(t, r, large)
			readAll(t, r, 100)
		}},
		"answered, much": {do: func(t *testing.T, r *conversation) {
			writeMany(t, r, maxRequest)
			readAll(t, r, 100)
		}},
		"half of the next": {held: true, do: func(t *testing.T, r *conversation) {
			writeMany(t, r, large)
			readAll(t, r, 100)
			writeMany(t, r, 100)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var memory requestMemory
			var wg sync.WaitGroup
			may := always
			if c.hold {
				may = make(chan struct{})
			}
			r := newConversation(t.Context(), &wg, &memory, countingDialogue(may))
			c.do(t, r)
			if held := memory.used.Load(); held > 0 != c.held {
				t.Errorf("%d bytes are held", held)
			}
			if name == "no memory" {
				memory.give(1)
			}
			r.close()
			if c.hold {
				close(may)
			}
			wg.Wait()
			if _, st := r.write(make([]byte, 1<<20)); st != unix.EBADF {
				t.Errorf("write after the close: %v", st)
			}
			r.close()
			if held := memory.used.Load(); held != 0 {
				t.Errorf("%d bytes are held after the close", held)
			}
		})
	}
}

// TestRequestMemorySpares shows that idle descriptors leave memory for the largest request.
func TestRequestMemorySpares(t *testing.T) {
	var memory requestMemory
	var wg sync.WaitGroup
	for range 40 {
		r := newConversation(t.Context(), &wg, &memory, countingDialogue(always))
		defer r.close()
		writeMany(t, r, maxSpare)
		if got := readAll(t, r, 100); got != fmt.Sprintln(maxSpare) {
			t.Fatalf("got %q", got)
		}
		wg.Wait()
		if used := memory.used.Load(); used > maxSpares {
			t.Fatalf("%d bytes are held by the idle", used)
		}
	}
	r := newConversation(t.Context(), &wg, &memory, countingDialogue(always))
	defer r.close()
	writeMany(t, r, maxRequest)
	if got := readAll(t, r, 100); got != fmt.Sprintln(maxRequest) {
		t.Errorf("got %q", got)
	}
}

// TestRequestMemoryOfMount shows that all files of a mount share the memory, and that a refused
// descriptor asks again with success.
func TestRequestMemoryOfMount(t *testing.T) {
	d := New(t.Context(), []File{{Open: Same(countingDialogue(always))}, {Open: Same(countingDialogue(always))}})
	open := func(f *File) *Handle {
		h, err := d.Open(f, unix.O_RDWR, Opener{})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	request := bytes.Repeat([]byte{' '}, 15<<20)
	var all []*Handle
	for range 6 {
		other := open(&d.Files[0])
		other.Write(request)
		all = append(all, other)
	}
	h := open(&d.Files[1])
	if n, err := h.Write(request); err != nil || n != len(request) {
		t.Fatalf("write: %d, %v", n, err)
	}
	if got := readAll(t, h.request, 4096); !strings.Contains(got, "try again") {
		t.Errorf("got %q", got)
	}
	for _, other := range all {
		other.Close()
	}
	h.Write(request)
	if got := readAll(t, h.request, 4096); got != fmt.Sprintln(len(request)) {
		t.Errorf("then: got %q", got)
	}
	h.Close()
	d.Wait()
	if used := d.memory.used.Load(); used != 0 {
		t.Errorf("%d bytes are held", used)
	}
}
