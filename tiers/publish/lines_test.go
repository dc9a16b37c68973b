package publish

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// TestLineFormat shows that lines are as documented, to the byte (A39).
func TestLineFormat(t *testing.T) {
	evicted := eventOf(event.Evicted, "memory", "g0/77aa")
	evicted.Reason, evicted.Time = outcome.ReasonCapacity, time.Unix(1795084801, 1000)
	moved := renamed(event.DirRenamed, "g0", "g1/new")
	moved.Size = 0
	cases := []struct {
		ev   event.Event
		want string
	}{
		{moved,
			`{"seq": 7, "time": 1795084800.123456, "event": "renamed", "group": "g1", "hash": "new", "size": 0, "from": "g0", "directory": true}`},
		{eventOf(event.Stored, "memory", "g0/9f08"),
			`{"seq": 7, "time": 1795084800.123456, "event": "stored", "tier": "memory", "group": "g0", "hash": "9f08", "size": 4096}`},
		{evicted,
			`{"seq": 7, "time": 1795084801.000001, "event": "evicted", "tier": "memory", "group": "g0", "hash": "77aa", "size": 4096, "reason": "capacity"}`},
		{renamed(event.Renamed, "g0/old", "g0/new"),
			`{"seq": 7, "time": 1795084800.123456, "event": "renamed", "group": "g0", "hash": "new", "size": 4096, "from": "g0/old"}`},
		{eventOf(event.Stored, "disk", "root<&>"),
			`{"seq": 7, "time": 1795084800.123456, "event": "stored", "tier": "disk", "group": "", "hash": "root<&>", "size": 4096}`},
	}
	for _, c := range cases {
		c.ev.Seq = 7
		if got := string(appendLine(nil, &c.ev)); got != c.want+"\n" {
			t.Errorf("got  %swant %s", got, c.want)
		}
	}
	if got, want := string(appendGap(nil, 9, 4)), "{\"event\": \"gap\", \"seq\": 9, \"missed\": 4}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLineNames shows with random bytes that any name gives valid JSON. It decodes to the name,
// with U+FFFD for bytes that are not UTF-8, within the bound that chunks rely on.
func TestLineNames(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := []string{"\x00\x1f\x7f\n\t\"\\/", "é😀\ufffd", "\xff\xfe\xc3", "\xed\xa0\x80", "\u2028<>&"}
	for range 2000 {
		b := make([]byte, rng.IntN(40))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		names = append(names, string(b))
	}
	for _, name := range names {
		ev := event.Event{Seq: 3, Kind: event.Renamed, Key: block.Key{Group: "g", Hash: block.Hash(name)},
			From: block.Key{Group: block.GroupID(name), Hash: "x"}}
		line := appendLine(nil, &ev)
		if len(line) > lineBound(&ev) {
			t.Fatalf("%q: line of %d bytes, bound %d", name, len(line), lineBound(&ev))
		}
		var got struct{ Hash, From string }
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%q: %v in %s", name, err, line)
		}
		want := string([]rune(name)) // replaces each byte that is not UTF-8
		wantFrom := "x"
		if name != "" {
			wantFrom = want + "/x"
		}
		if got.Hash != want || got.From != wantFrom {
			t.Fatalf("%q: got %q and %q", name, got.Hash, got.From)
		}
	}
}

// line is the part of a line that the tests check.
type line struct {
	Seq    uint64
	Event  string
	Group  string
	Hash   string
	Missed uint64
}

// readLines reads n lines with a buffer of some size.
func readLines(t testing.TB, f *Follower, n, size int) []line {
	t.Helper()
	ctx := testContext(t)
	var text []byte
	buf := make([]byte, size)
	for bytes.Count(text, []byte("\n")) < n {
		got, err := f.Read(ctx, buf)
		if err != nil {
			t.Fatalf("after %d lines: %v", bytes.Count(text, []byte("\n")), err)
		}
		text = append(text, buf[:got]...)
	}
	var list []line
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("%v in %s", err, sc.Bytes())
		}
		list = append(list, l)
	}
	return list
}

func newLines(t testing.TB, size int) (*testLog, *Lines) {
	log := newTestLog(size)
	l := NewLines(log)
	t.Cleanup(l.Close)
	return log, l
}

func follow(t testing.TB, l *Lines, f Filter) *Follower {
	t.Helper()
	fo, err := l.Follow(f)
	check(t, err)
	t.Cleanup(fo.Close)
	return fo
}

// TestFollow shows what followers with and without filters get: events from then on, or from a
// number on. New directories are left out, but their numbers count. A follower of a group sees what
// is renamed out of it too: a block, a directory, or the whole group.
func TestFollow(t *testing.T) {
	log, l := newLines(t, 1000)
	log.add(eventOf(event.Stored, "memory", "g0/early"))
	cases := []struct {
		filter Filter
		want   []uint64
	}{
		{Filter{}, []uint64{2, 4, 6, 7, 8, 9, 10, 11}},
		{Filter{Since: 1}, []uint64{1, 2, 4, 6, 7, 8, 9, 10, 11}},
		{Filter{Groups: []string{"g0"}}, []uint64{2, 6, 9, 10, 11}},
		{Filter{Groups: []string{"g1"}}, []uint64{4, 7, 9, 10, 11}},
		{Filter{Events: []string{"removed", "gap"}}, []uint64{6}},
		{Filter{Since: 2, Groups: []string{"g1"}, Events: []string{"stored", "evicted"}}, []uint64{4, 7}},
	}
	followers := make([]*Follower, len(cases))
	for i, c := range cases {
		followers[i] = follow(t, l, c.filter)
	}
	log.add(
		eventOf(event.Stored, "memory", "g0/a"),
		eventOf(event.DirCreated, "", "g0/d"),
		eventOf(event.Stored, "disk", "g1/b"),
		eventOf(event.Changed, "", "g0/a"),
		eventOf(event.Removed, "", "g0/a"),
		eventOf(event.Evicted, "memory", "g1/b"),
		renamed(event.Renamed, "g3/b", "g2/b"),
		renamed(event.Renamed, "g0/a", "g1/a"),
		renamed(event.DirRenamed, "g0/d", "g1/d"),
		renamed(event.DirRenamed, "g0", "g1"),
	)
	wantSeqs := func(f *Follower, filter Filter, want ...uint64) {
		t.Helper()
		var got []uint64
		for _, l := range readLines(t, f, len(want), 4096) {
			got = append(got, l.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: got %v, want %v", filter, got, want)
		}
	}
	for i, c := range cases {
		wantSeqs(followers[i], c.filter, c.want...)
	}
	// A follower that begins amid lines that others have read skips the earlier ones and takes the rest.
	late := follow(t, l, Filter{Since: 3})
	wantSeqs(late, Filter{Since: 3}, 4, 6, 7, 8, 9, 10, 11)
	log.add(eventOf(event.Removed, "", "g0/b"))
	if wantSeqs(late, Filter{Since: 3}, 12); late.shared == nil {
		t.Error("the later one reads the log itself")
	}
	_, err := l.Follow(Filter{Events: []string{"stored", "born" + strings.Repeat("x", 1<<20)}})
	wrong, ok := errors.AsType[*FilterError](err)
	if !ok || wrong.Field() != "/events/1" || !errors.Is(err, block.ErrInvalid) {
		t.Fatalf("unknown event: %v", err)
	}
	if text := err.Error(); !strings.Contains(text, `events[1]: no event is called "born`) || len(text) > 200 {
		t.Errorf("unknown event: %d bytes: %.200s", len(text), text)
	}
}

// TestFollowAhead shows that a future number, which is one of an earlier daemon, gives a gap first,
// and then everything from now on.
func TestFollowAhead(t *testing.T) {
	log, l := newLines(t, 100)
	log.add(eventOf(event.Stored, "memory", "g0/a"))
	for _, filter := range []Filter{{Since: 1000}, {Since: 1000, Groups: []string{"g0"}}, {Since: 1000, Events: []string{"stored"}}} {
		present := log.Next()
		f := follow(t, l, filter)
		log.add(eventOf(event.Stored, "memory", "g0/b"))
		got := readLines(t, f, 2, 4096)
		if want := (line{Seq: present, Event: "gap"}); got[0] != want || got[1].Seq != present || got[1].Hash != "b" {
			t.Errorf("%+v: got %+v", filter, got)
		}
	}
	if got := readLines(t, follow(t, l, Filter{Since: log.Next() - 1}), 1, 4096)[0]; got.Event != "stored" {
		t.Errorf("the last one: got %+v", got)
	}
	f := follow(t, l, Filter{Since: log.Next()})
	log.add(eventOf(event.Stored, "memory", "g0/c"))
	if got := readLines(t, f, 1, 4096)[0]; got.Event != "stored" || got.Hash != "c" {
		t.Errorf("the next one: got %+v", got)
	}
}

// TestFollowSmallBuffer shows that lines that fit stay whole, and that others come in parts.
func TestFollowSmallBuffer(t *testing.T) {
	log, l := newLines(t, 1000)
	for _, filter := range []Filter{{}, {Events: []string{"stored"}}} {
		f := follow(t, l, filter)
		first := log.Next()
		for i := range 50 {
			log.add(eventOf(event.Stored, "memory", fmt.Sprintf("g0/%0*d", 1+i*4, i)))
		}
		for i, got := range readLines(t, f, 50, 150) {
			if got.Seq != first+uint64(i) {
				t.Fatalf("line %d has number %d", i, got.Seq)
			}
		}
		log.add(eventOf(event.Stored, "memory", "g0/x"), eventOf(event.Stored, "memory", "g0/y"))
		buf := make([]byte, 200)
		n, err := f.Read(testContext(t), buf)
		if err != nil || bytes.Count(buf[:n], []byte("\n")) != 1 || buf[n-1] != '\n' {
			t.Errorf("got %q, %v: want one whole line", buf[:n], err)
		}
		f.Close()
	}
}

// TestFollowGaps shows that a slow encoder, follower of the common text, or follower with a filter
// learns how many events it missed, so the numbers add up.
func TestFollowGaps(t *testing.T) {
	for _, filter := range []Filter{{}, {Events: []string{"stored"}}} {
		log, l := newLines(t, 100)
		f := follow(t, l, filter)
		long := strings.Repeat("n", 200)
		const rounds = 40
		for i := range rounds * 1000 {
			if log.add(eventOf(event.Stored, "memory", "g0/"+long)); i%500 == 0 {
				runtime.Gosched() // the encoder may read
			}
		}
		log.close()
		next, gaps := uint64(1), 0
		buf := make([]byte, 32<<10)
		for ctx := testContext(t); ; {
			n, err := f.Read(ctx, buf)
			if errors.Is(err, block.ErrClosed) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			for text := range bytes.Lines(buf[:n]) {
				var got line
				check(t, json.Unmarshal(text, &got))
				if got.Event == "gap" {
					gaps++
					if next += got.Missed; got.Seq != next || got.Missed == 0 {
						t.Fatalf("gap to %d of %d events, want to %d", got.Seq, got.Missed, next)
					}
					continue
				}
				if got.Seq != next {
					t.Fatalf("got event %d, want %d", got.Seq, next)
				}
				next++
			}
		}
		if next != rounds*1000+1 || gaps == 0 {
			t.Errorf("read up to %d with %d gaps", next, gaps)
		}
	}
}

// TestFollowBehind shows that a follower that leaves the common text too long continues from the
// log: it gets all that the log still has, and a gap only for what the log has lost.
func TestFollowBehind(t *testing.T) {
	const total = 1 << 14 // about 10 MiB of text
	for _, kept := range []int{1 << 15, 1 << 13} {
		t.Run(fmt.Sprint(kept), func(t *testing.T) {
			log, l := newLines(t, kept)
			begun, fresh, quick := follow(t, l, Filter{}), follow(t, l, Filter{}), follow(t, l, Filter{})
			list := make([]event.Event, total)
			for i := range list {
				list[i] = eventOf(event.Stored, "memory", strings.Repeat("g", 250)+"/"+strings.Repeat("x", 250))
			}
			log.add(list[0])
			wantRest(t, begun, 1, 1, 1)
			wantRest(t, quick, 1, 1, 1)
			// In parts, so that the encoder loses nothing.
			for part := range slices.Chunk(list[1:], 1<<12) {
				log.add(part...)
				next := log.Next()
				eventually(t, "all is encoded", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.mu.next == next })
				wantRest(t, quick, next-uint64(len(part)), next-1, 1)
			}
			for f, first := range map[*Follower]uint64{begun: 2, fresh: 1} {
				wantRest(t, f, first, total, uint64(max(1, total-kept+1)))
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.mu.shared != 1 || len(l.mu.chunks) != chunkCount {
				t.Errorf("%d share %d chunks, want the quick one only", l.mu.shared, len(l.mu.chunks))
			}
		})
	}
}

// wantRest reads the events from first to last; those before oldest are lost.
func wantRest(t *testing.T, f *Follower, first, last, oldest uint64) {
	t.Helper()
	if first < oldest {
		gap := readLines(t, f, 1, 60)[0]
		if gap.Event != "gap" || gap.Seq != oldest || gap.Missed != oldest-first {
			t.Fatalf("from %d on: got %+v, want a gap up to %d", first, gap, oldest)
		}
		first = oldest
	}
	ctx, buf := testContext(t), make([]byte, 1<<20)
	for first <= last {
		n, err := f.Read(ctx, buf)
		check(t, err)
		for text := range bytes.Lines(buf[:n]) { // decoding them would take most of the time
			if bytes.HasPrefix(text, []byte(gapPrefix)) || following(text) != first+1 {
				t.Fatalf("got %s, want event %d", text, first)
			}
			first++
		}
	}
}

// TestLinesEnds shows that the encoder runs only while there is a follower, and that waiting
// followers end with their context, with the log, and with Close.
func TestLinesEnds(t *testing.T) {
	log, l := newLines(t, 100)
	running := func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.mu.stop != nil }
	if running() {
		t.Error("an encoder runs for nobody")
	}
	for range 3 {
		f, g := follow(t, l, Filter{}), follow(t, l, Filter{})
		log.add(eventOf(event.Stored, "memory", "g0/a"))
		want := log.Next() - 1
		if got := readLines(t, f, 1, 4096); got[0].Seq != want {
			t.Fatalf("got %d, want %d", got[0].Seq, want)
		}
		f.Close()
		f.Close()
		if !running() {
			t.Error("no encoder runs for the other one")
		}
		g.Close()
		if running() {
			t.Error("an encoder runs for nobody")
		}
		if _, err := g.Read(testContext(t), make([]byte, 10)); !errors.Is(err, block.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
	}
	for _, filter := range []Filter{{}, {Groups: []string{"g9"}}} {
		f := follow(t, l, filter)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := f.Read(ctx, make([]byte, 10)); !errors.Is(err, context.Canceled) {
			t.Errorf("read with a dead context: %v", err)
		}
	}
	f, g := follow(t, l, Filter{}), follow(t, l, Filter{Groups: []string{"g9"}})
	errs := make(chan error, 2)
	for _, f := range []*Follower{f, g} {
		go func() {
			_, err := f.Read(context.Background(), make([]byte, 10))
			errs <- err
		}()
	}
	l.Close()
	for range 2 {
		if err := <-errs; !errors.Is(err, block.ErrClosed) {
			t.Errorf("read when closed: %v", err)
		}
	}
	if _, err := l.Follow(Filter{}); !errors.Is(err, block.ErrClosed) {
		t.Errorf("follow when closed: %v", err)
	}
}
