package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// event is one line of .kvfs/events.
type event struct {
	Seq    uint64  `json:"seq"`
	Time   float64 `json:"time"`
	Event  string  `json:"event"`
	Tier   string  `json:"tier"`
	Group  string  `json:"group"`
	Hash   string  `json:"hash"`
	Size   int64   `json:"size"`
	Reason string  `json:"reason"`
	From   string  `json:"from"`
	Missed uint64  `json:"missed"`

	Directory bool `json:"directory"`
}

// String returns what the event tells, without number and time.
func (e event) String() string {
	return fmt.Sprintf("%s %s/%s in %q, %d bytes, reason %q, from %q", e.Event, e.Group, e.Hash, e.Tier, e.Size, e.Reason, e.From)
}

// follower reads .kvfs/events as fast as it can.
type follower struct {
	t     testing.TB
	ended chan struct{} // closed when the stream has ended

	mu struct {
		sync.Mutex
		events []event
		news   chan struct{} // closed and replaced with each
		err    error         // what ended the stream; nil: its end
	}
	next int // in events
}

// follow opens .kvfs/events, with a request unless that is nil. What happens from then on
// is seen.
func follow(t testing.TB, d *harness.Daemon, request obj) *follower {
	t.Helper()
	fd := openEvents(t, d, request)
	f := &follower{t: t, ended: make(chan struct{})}
	f.mu.news = make(chan struct{})
	go f.read(fd) // Ends with the daemon.
	return f
}

// openEvents opens the stream. It is closed with the test.
func openEvents(t testing.TB, d *harness.Daemon, request obj) int {
	t.Helper()
	if request == nil {
		return open(t, d.Path(".kvfs", "events"), unix.O_RDONLY)
	}
	fd := open(t, d.Path(".kvfs", "events"), unix.O_RDWR)
	b, err := json.Marshal(request)
	must(t, "request", err)
	must(t, "write of a request", sendAll(fd, b))
	return fd
}

func (f *follower) read(fd int) {
	defer close(f.ended)
	var rest []byte
	buf := make([]byte, 64*kib)
	for {
		n, err := readSome(fd, buf)
		if err != nil || n == 0 {
			f.end(err)
			return
		}
		rest = append(rest, buf[:n]...)
		for {
			line, after, ok := bytes.Cut(rest, []byte("\n"))
			if !ok {
				break
			}
			var e event
			if err := unmarshalEvent(line, &e); err != nil {
				f.end(fmt.Errorf("%w: %s", err, line))
				return
			}
			f.add(e)
			rest = after
		}
	}
}

func unmarshalEvent(line []byte, e *event) error {
	in := json.NewDecoder(bytes.NewReader(line))
	in.DisallowUnknownFields()
	return in.Decode(e)
}

func (f *follower) add(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.events = append(f.mu.events, e)
	close(f.mu.news)
	f.mu.news = make(chan struct{})
}

func (f *follower) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.err = err
	close(f.mu.news)
	f.mu.news = make(chan struct{})
}

// take returns the next event.
func (f *follower) take(what string) event {
	f.t.Helper()
	deadline := time.After(harness.Deadline)
	for {
		f.mu.Lock()
		events, news, err := f.mu.events, f.mu.news, f.mu.err
		f.mu.Unlock()
		if f.next < len(events) {
			f.next++
			return events[f.next-1]
		}
		select {
		case <-f.ended:
			f.t.Fatalf("%s: the stream has ended: %v", what, err)
		case <-news:
		case <-deadline:
			f.t.Fatalf("%s: no such event after %v; the last ones: %v", what, harness.Deadline, events[max(0, len(events)-10):])
		}
	}
}

// until takes events up to the first that is wanted, and returns all of them.
func (f *follower) until(what string, wanted func(event) bool) []event {
	f.t.Helper()
	var all []event
	for {
		e := f.take(what)
		all = append(all, e)
		if wanted(e) {
			return all
		}
	}
}

// allStored waits until all keys have been stored in a tier, in any order.
func (f *follower) allStored(tier, reason string, keys ...string) {
	f.t.Helper()
	left := map[string]bool{}
	for _, key := range keys {
		left[key] = true
	}
	for len(left) > 0 {
		e := f.take(fmt.Sprintf("%d blocks are stored in %s (%s)", len(left), tier, reason))
		if e.Event == "stored" && e.Tier == tier && e.Reason == reason {
			delete(left, e.Group+"/"+e.Hash)
		}
	}
}
