package publish

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
)

func open(t testing.TB, o Options) *Publisher {
	t.Helper()
	if o.Bind == "" {
		o.Bind = "tcp://127.0.0.1:0"
	}
	return openConnected(t, o)
}

// subscribe connects a client of another implementation, and waits until the publisher knows it.
func subscribe(t testing.TB, p *Publisher, topic string) zmq4.Socket {
	t.Helper()
	before := p.Stats().Subscribers
	sub := zmq4.NewSub(context.Background(), zmq4.WithLogger(log.New(io.Discard, "", 0)))
	t.Cleanup(func() { sub.Close() })
	check(t, sub.Dial(p.Stats().Endpoint))
	check(t, sub.SetOption(zmq4.OptionSubscribe, topic))
	eventually(t, "the subscription", func() bool { return p.Stats().Subscribers == before+1 })
	return sub
}

// receiver reads the events of messages as short texts, such as "+CPU g:1" and "-STORAGE g:2".
type receiver struct {
	t     testing.TB
	sub   zmq4.Socket
	topic string
	seq   int64 // of the last message; -1: none
	queue []string
}

// next returns the next n changes.
func (r *receiver) next(n int) []string {
	r.t.Helper()
	for len(r.queue) < n {
		got := make(chan zmq4.Msg, 1)
		go func() { // ends when the socket is closed
			if m, err := r.sub.Recv(); err == nil {
				got <- m
			}
		}()
		select {
		case m := <-got:
			if len(m.Frames) != 3 || string(m.Frames[0]) != r.topic || len(m.Frames[1]) != 8 {
				r.t.Fatalf("message %q", m.Frames)
			}
			seq := int64(binary.BigEndian.Uint64(m.Frames[1]))
			if r.seq >= 0 && seq != r.seq+1 {
				r.t.Fatalf("message %d after %d", seq, r.seq)
			}
			r.seq = seq
			told := changes(r.t, m.Frames[2])
			if seq == 0 && len(told) > 0 && told[0] == "clear" {
				told = told[1:] // of the start: a later subscriber does not get it
			}
			r.queue = append(r.queue, told...)
		case <-testContext(r.t).Done():
			r.t.Fatalf("have %q, want %d", r.queue, n)
		}
	}
	list := r.queue[:n:n]
	r.queue = r.queue[n:]
	return list
}

// changes returns the events of a payload.
func changes(t testing.TB, payload []byte) (list []string) {
	for _, e := range decode(t, payload) {
		ev := e.(map[string]any)
		sign := map[any]string{"BlockStored": "+", "BlockRemoved": "-"}[ev["type"]]
		if ev["type"] == "AllBlocksCleared" {
			list = append(list, "clear")
			continue
		}
		for _, h := range ev["block_hashes"].([]any) {
			list = append(list, fmt.Sprintf("%s%s %v:%v", sign, ev["medium"], ev["group_idx"], h))
		}
	}
	return list
}

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestPublish shows the message for each event of the engine, over TCP and a Unix socket (A39).
func TestPublish(t *testing.T) {
	for _, bind := range []string{"tcp://127.0.0.1:0", "ipc://" + filepath.Join(t.TempDir(), "s")} {
		evlog := newTestLog(1000)
		p := open(t, Options{Log: evlog, Bind: bind, Topic: "kv-events", Templates: []string{"{group}/{hash}", "{hash}.bin"},
			Tiers: func(path string) []string {
				if path != "0/12" {
					t.Errorf("asked for the tiers of %s", path)
				}
				return []string{"peer", "disk"}
			}})
		r := &receiver{t: t, sub: subscribe(t, p, "kv-"), topic: "kv-events", seq: -1}
		evlog.add(
			eventOf(event.Stored, "memory", "0/10"),
			eventOf(event.Stored, "disk", "0/10"),
			eventOf(event.Stored, "peer", "0/10"),
			eventOf(event.Stored, "memory", "0/a/b"),
			eventOf(event.DirCreated, "", "0/d"),
			eventOf(event.Evicted, "memory", "0/10"),
			eventOf(event.Evicted, "peer", "0/10"),
			eventOf(event.Stored, "memory", "7f.bin"),
			eventOf(event.Removed, "", "0/10"),
			renamed(event.Renamed, "0/tmp.11", "0/12"), renamed(event.Renamed, "0/10", "0/12"),
		)
		want(t, r.next(10), "+CPU 0:16", "+STORAGE 0:16", "-CPU 0:16", "+CPU <nil>:127", "-CPU 0:16", "-STORAGE 0:16", "+STORAGE 0:18",
			"-CPU 0:16", "-STORAGE 0:16", "+STORAGE 0:18")
		if s := p.Stats(); s.Unmatched != 2 || s.Events != 10 || s.Subscribers != 1 || s.Dropped != 0 || s.Gaps != 0 {
			t.Errorf("%+v", s) // unmatched: the path of three parts, and the name that is not hexadecimal
		}
		// Close publishes the remaining log, to the end of a stream that the client sees.
		evlog.add(eventOf(event.Stored, "memory", "0/20"))
		if err := p.Close(testContext(t)); err != nil {
			t.Error(err)
		}
		want(t, r.next(1), "+CPU 0:32")
		if err := p.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestPublishTopics shows that only subscribers to a prefix of the topic get messages, and only
// while they subscribe.
func TestPublishTopics(t *testing.T) {
	evlog := newTestLog(1000)
	p := open(t, Options{Log: evlog, Topic: "kv@pod@model"})
	all := &receiver{t: t, sub: subscribe(t, p, ""), topic: "kv@pod@model", seq: -1}
	other := subscribe(t, p, "kv@")
	check(t, other.SetOption(zmq4.OptionSubscribe, "kv@x"))
	check(t, other.SetOption(zmq4.OptionUnsubscribe, "kv@"))
	eventually(t, "one subscriber is left", func() bool { return p.Stats().Subscribers == 1 })
	evlog.add(eventOf(event.Stored, "memory", "0/1"))
	want(t, all.next(1), "+CPU 0:1")
}

// TestPublishSnapshot shows that at the start, after a gap and after a renamed directory,
// subscribers are told to forget everything and then get all blocks, and that events during a
// snapshot follow it.
func TestPublishSnapshot(t *testing.T) {
	evlog := newTestLog(64)
	started, subscribed := make(chan struct{}), make(chan struct{})
	var rounds int
	snapshot := func(ctx context.Context, fn func(string, int64, []string) error) error {
		if rounds++; rounds == 1 {
			close(started)
			<-subscribed
			// A block is evicted after its visit, while the log turns over: its events are read
			// meanwhile, and published after the snapshot.
			if err := fn("0/1", 1, []string{"memory", "disk"}); err != nil {
				return err
			}
			evlog.add(eventOf(event.Evicted, "memory", "0/1"))
			for i := range 3 * snapshotSize {
				if err := fn(fmt.Sprintf("0/%x", 0x1000+i), 1, []string{"memory"}); err != nil {
					return err
				}
				if i%20 == 0 && i < snapshotSize {
					evlog.add(eventOf(event.Stored, "memory", "0/2"))
				}
			}
			for range 40 {
				evlog.add(eventOf(event.DirCreated, "", "0/d"))
			}
			return errors.New("the rest is not known")
		}
		return fn("0/5", 1, []string{"disk", "peer"})
	}
	p := open(t, Options{Log: evlog, Snapshot: snapshot})
	<-started // without a subscriber
	r := &receiver{t: t, sub: subscribe(t, p, ""), seq: -1}
	close(subscribed)
	list := r.next(2 + 3*snapshotSize)
	if !slices.Contains(list, "+CPU 0:1") || !slices.Contains(list, "+STORAGE 0:1") {
		t.Errorf("got %q", list)
	}
	for _, c := range list {
		if c[0] != '+' || c == "+CPU 0:2" {
			t.Fatalf("got %s within the snapshot", c)
		}
	}
	want(t, r.next(2), "-CPU 0:1", "+CPU 0:2")
	want(t, r.next(2), "clear", "+STORAGE 0:5") // again, as there was no subscriber at the start

	burst := make([]event.Event, 200)
	for i := range burst {
		burst[i] = eventOf(event.Stored, "memory", "0/9")
	}
	evlog.add(burst...)
	want(t, r.next(2), "clear", "+STORAGE 0:5")
	evlog.add(eventOf(event.DirRenamed, "", "0/d"), eventOf(event.Stored, "memory", "0/6")) // blocks below it have no events
	want(t, r.next(3), "+CPU 0:6", "clear", "+STORAGE 0:5")
	if s := p.Stats(); s.Gaps != 1 || s.Snapshots != 4 {
		t.Errorf("%+v", s)
	}
}

// TestPublishLargeSnapshot shows that a subscriber that reads as fast as others gets a whole
// snapshot that is larger than its queue.
func TestPublishLargeSnapshot(t *testing.T) {
	const blocks = 1_200_000
	subscribed := make(chan struct{})
	var told atomic.Bool
	p := open(t, Options{Log: newTestLog(10), Snapshot: func(_ context.Context, fn func(string, int64, []string) error) error {
		if told.Swap(true) {
			return nil // again, as there was no subscriber at the start
		}
		<-subscribed
		for i := range blocks {
			if err := fn(fmt.Sprintf("0/%016x", 0x9e3779b97f4a7c15*uint64(i+1)), 1, []string{"memory"}); err != nil {
				return err
			}
		}
		return nil
	}})
	c := dialSub(t, p.Stats().Endpoint, "")
	eventually(t, "the subscriber", func() bool { return p.Stats().Subscribers == 1 })
	close(subscribed)
	br := bufio.NewReader(c)
	check(t, skipHello(br))
	for want := int64(1); want <= blocks/snapshotSize; want++ {
		seq, _, err := readMessage(br)
		if err == nil && seq == 0 {
			seq, _, err = readMessage(br) // the first is of the start: a later subscriber does not get it
		}
		if err != nil || seq != want {
			t.Fatalf("message %d, %v; want %d", seq, err, want)
		}
	}
	if s := p.Stats(); s.Dropped != 0 || s.Gaps != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPublishOptions shows that all errors come at once, and that a port in use is an error.
func TestPublishOptions(t *testing.T) {
	_, err := Open(context.Background(), Options{
		Bind: "udp://x:1", Replay: "tcp://x", Buffer: -1, BlockSize: -1, Hash: "sha", Encoding: "xml", Templates: []string{"{hash}", "x"},
	})
	for _, part := range []string{"log", "bind", "replay", "buffer", "block_size", "hash", "encoding", "templates[1]"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in: %v", part, err)
		}
	}
	if !errors.Is(err, block.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	p := open(t, Options{Log: newTestLog(10)})
	for _, o := range []Options{{Bind: p.Stats().Endpoint}, {Bind: "tcp://127.0.0.1:*", Replay: p.Stats().Endpoint}} {
		o.Log = newTestLog(10)
		if _, err := Open(context.Background(), o); err == nil {
			t.Errorf("%+v: a port in use was bound", o)
		}
	}
}

// TestReplay shows that REQ-like and DEALER clients get lost messages that are still kept, that
// malformed requests are ignored, and that the frames are those of vLLM, with the topic that
// llm-d's router insists on, or of SGLang, without a topic.
func TestReplay(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprint("bare ", bare), func(t *testing.T) { testReplay(t, bare) })
	}
}

func testReplay(t *testing.T, bare bool) {
	evlog := newTestLog(1000)
	p := open(t, Options{Log: evlog, Replay: "tcp://127.0.0.1:0", Buffer: 4, Topic: "kv@pod@model", ReplayBare: bare})
	messages := uint64(1) // the message of the start
	eventually(t, "the start", func() bool { return p.Stats().Messages == messages })
	for i := range 6 {
		evlog.add(eventOf(event.Stored, "memory", fmt.Sprintf("0/%d", i)))
		messages++
		eventually(t, "the message", func() bool { return p.Stats().Messages == messages })
	}
	client := zmq4.NewDealer(context.Background())
	defer client.Close()
	check(t, client.Dial(p.Stats().ReplayEndpoint))
	send := func(frames ...string) {
		t.Helper()
		check(t, client.SendMulti(zmq4.NewMsgFromString(frames)))
	}
	send("", "short")
	send("12345678")
	send("", "12345678", "more")
	for _, c := range []struct {
		from uint64
		want []string
	}{
		{5, []string{"5 +CPU 0:4", "6 +CPU 0:5"}},
		{0, []string{"3 +CPU 0:2", "4 +CPU 0:3", "5 +CPU 0:4", "6 +CPU 0:5"}},
		{7, nil},
		{1 << 63, nil},
	} {
		send("", string(binary.BigEndian.AppendUint64(nil, c.from)))
		var got []string
		for {
			topic, seq, payload := replayed(t, client, bare)
			if seq == -1 {
				if topic != "" || len(payload) != 0 {
					t.Errorf("end with %q, %x", topic, payload)
				}
				break
			}
			if !bare && topic != "kv@pod@model" {
				t.Errorf("topic %q", topic)
			}
			got = append(got, fmt.Sprint(seq, " ", strings.Join(changes(t, payload), " ")))
		}
		want(t, got, c.want...)
	}
	if s := p.Stats(); s.Replays != 4 {
		t.Errorf("%+v", s)
	}
}

// replayed returns the next message of the answer to a request for a replay.
func replayed(t *testing.T, client zmq4.Socket, bare bool) (topic string, seq int64, payload []byte) {
	t.Helper()
	m, err := client.Recv()
	f := m.Frames
	if err != nil || len(f) == 0 || len(f[0]) != 0 {
		t.Fatalf("%q, %v", f, err)
	}
	if f = f[1:]; !bare && len(f) > 0 {
		topic, f = string(f[0]), f[1:]
	}
	if len(f) != 2 || len(f[0]) != 8 {
		t.Fatalf("%q", m.Frames)
	}
	return topic, int64(binary.BigEndian.Uint64(f[0])), f[1]
}

// TestHistory shows that messages are bounded by number and bytes.
func TestHistory(t *testing.T) {
	h := newHistory(3)
	add := func(size int) { h.add(&message{wire: make([]byte, size), number: 0}) }
	for range 5 {
		add(8)
	}
	if _, n := h.get(0, 99); n != 2 || h.mu.bytes != 24 {
		t.Errorf("first %d, %d bytes", n, h.mu.bytes)
	}
	add(historyBytes - 8)
	if _, n := h.get(0, 99); n != 4 || h.mu.bytes != historyBytes {
		t.Errorf("first %d, %d bytes", n, h.mu.bytes)
	}
	add(historyBytes + 1)
	if m, n := h.get(0, 99); n != 6 || m == nil {
		t.Errorf("first %d", n)
	}
}

// TestRefuse shows that another publisher can have the addresses of one that is about to close, while a subscriber still gets
// what that publishes.
func TestRefuse(t *testing.T) {
	evlog := newTestLog(1000)
	host := "tcp://" + ownHost()
	o := Options{Log: evlog, Bind: host + ":5557", Replay: host + ":5558"}
	p := open(t, o)
	r := &receiver{t: t, sub: subscribe(t, p, ""), seq: -1}
	p.Refuse()
	open(t, o)
	evlog.add(eventOf(event.Stored, "memory", "0/5"))
	check(t, p.Close(testContext(t)))
	want(t, r.next(1), "+CPU 0:5")
}
