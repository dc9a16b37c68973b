package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// TestRole is no test: it makes this program a child, as main does.
func TestRole(t *testing.T) {
	text := os.Getenv(roleEnv)
	if text == "" {
		return
	}
	if err := play(text); err != nil {
		t.Log(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The topic runs from start to end: an engine with a source of events, two kinds of audience, and
// writers.
func TestEventsTopic(t *testing.T) {
	b, out := runTopic(t, "events")
	for _, name := range []string{nobody, followers, subscribers} {
		for _, r := range rowsOf(t, b, "events", name) {
			if (r.Unit == "events/s that each got" || r.Unit == "events/s made" || r.Unit == "blocks/s") && r.Value == 0 {
				t.Errorf("%s: %+v\n%s", name, r, out)
			}
		}
	}
}

// Lines and gaps are counted wherever reads cut the text.
func TestFollowCounts(t *testing.T) {
	const text = `{"seq": 1, "event": "stored"}` + "\n" + gapLine + `, "seq": 9, "missed": 7}` + "\n" + `{"seq": 9, "event": "removed"}` + "\n"
	for name, from := range map[string]io.Reader{
		"at once":      strings.NewReader(text),
		"byte by byte": iotest.OneByteReader(strings.NewReader(text)),
		"halves":       iotest.HalfReader(strings.NewReader(text)),
	} {
		var l listener
		if err := l.follow(from); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if lines, gaps := l.units.Load(), l.gaps.Load(); lines != 3 || gaps != 1 {
			t.Errorf("%s: got %d lines, %d gaps, want 3 and 1", name, lines, gaps)
		}
	}
}

// A message has a topic, a number and events; a number that does not follow is a gap.
func TestSubscribeCounts(t *testing.T) {
	message := func(number byte) string {
		return "\x01\x09kv-events" + "\x01\x08\x00\x00\x00\x00\x00\x00\x00" + string(number) +
			"\x02\x00\x00\x00\x00\x00\x00\x01\x2c" + strings.Repeat("e", 300)
	}
	var l listener
	r := bufio.NewReader(strings.NewReader(message(1) + message(2) + message(4) + message(5)))
	if err := l.subscribe(r); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if messages, gaps := l.units.Load(), l.gaps.Load(); messages != 4 || gaps != 1 {
		t.Errorf("got %d messages, %d gaps, want 4 and 1", messages, gaps)
	}
}

func TestSpan(t *testing.T) {
	at := time.Now()
	before := reading{at: at, engineIn: time.Second,
		engine:   engineCounts{Made: 1000, Messages: 10, Published: 100},
		audience: audienceCounts{CPU: time.Second, Each: []listenerCounts{{5, 1}, {5, 0}}}}
	after := reading{at: at.Add(2 * time.Second), engineIn: time.Second + time.Millisecond,
		engine:   engineCounts{Made: 3000, Messages: 110, Published: 2100, Dropped: 4},
		audience: audienceCounts{CPU: time.Second + time.Millisecond, Each: []listenerCounts{{105, 3}, {85, 0}}}}
	want := span{made: 1000, got: 800, gaps: 6, engineTime: 500, audienceTime: 1e6 / 3600.0}
	if got := spanOf(before, after); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	before.audience.Each, after.audience.Each = nil, nil
	if got := spanOf(before, after); got.got != 0 || got.gaps != 4 || got.made != 1000 {
		t.Errorf("nobody: got %+v", got)
	}
}
