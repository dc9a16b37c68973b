package publish

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

// testLog is an event log with a ring of any size.
type testLog struct {
	mu     sync.Mutex
	closed bool
	ring   []event.Event
	size   uint64
	next   uint64
	news   chan struct{}
}

func newTestLog(size int) *testLog {
	return &testLog{ring: make([]event.Event, size), size: uint64(size), next: 1, news: make(chan struct{})}
}

func (l *testLog) add(evs ...event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ev := range evs {
		ev.Seq = l.next
		l.ring[(ev.Seq-1)%l.size] = ev
		l.next++
	}
	close(l.news)
	l.news = make(chan struct{})
}

func (l *testLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.news)
}

func (l *testLog) Next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

func (l *testLog) Read(ctx context.Context, seq uint64, buf []event.Event) (n int, missed uint64, err error) {
	for {
		l.mu.Lock()
		if seq < l.next {
			if l.next > l.size && seq < l.next-l.size {
				missed, seq = l.next-l.size-seq, l.next-l.size
			}
			for ; n < len(buf) && seq < l.next; n, seq = n+1, seq+1 {
				buf[n] = l.ring[(seq-1)%l.size]
			}
			l.mu.Unlock()
			return n, missed, nil
		}
		news, closed := l.news, l.closed
		l.mu.Unlock()
		if closed {
			return 0, 0, block.ErrClosed
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// check ends the test at an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// key makes a key of a path.
func key(path string) block.Key {
	k, err := block.ParseKey(path)
	if err != nil {
		panic(err)
	}
	return k
}

// ownHost returns a loopback address that almost surely no other program uses: a test closes a port
// and opens it again, and no other program may take it in between.
func ownHost() string {
	octet := func() int { return 1 + rand.IntN(254) }
	return fmt.Sprintf("127.%d.%d.%d", octet(), octet(), octet())
}

// eventOf makes an event of one block.
func eventOf(kind event.Kind, tier, path string) event.Event {
	return event.Event{Kind: kind, Tier: tier, Key: key(path), Size: 4096, Time: time.Unix(1795084800, 123456789)}
}

func renamed(kind event.Kind, from, to string) event.Event {
	ev := eventOf(kind, "", to)
	ev.From = key(from)
	return ev
}

// testContext ends with the test, or after a time that only a hanging test reaches.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok.
var eventually = harness.Poll

// payload returns the last frame of m.
func payload(t *testing.T, m *message) []byte {
	t.Helper()
	in, err := receive(bufio.NewReader(bytes.NewReader(m.wire)))
	if err != nil || len(in.frames) != 3 {
		t.Fatalf("%q, %v", in.frames, err)
	}
	return in.frames[2]
}
