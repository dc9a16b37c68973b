package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// Lines and gaps are counted wherever reads cut the text.
func TestFollowCounts(t *testing.T) {
	const text = `{"seq": 1, "event": "stored"}` + "\n" + gapLine + `, "seq": 9, "missed": 7}` + "\n" + `{"seq": 9, "event": "removed"}` + "\n"
	for name, from := range map[string]io.Reader{
		"at once":      strings.NewReader(text),
		"byte by byte": iotest.OneByteReader(strings.NewReader(text)),
		"halves":       iotest.HalfReader(strings.NewReader(text)),
	} {
		var l listener
		if err := try(func() { l.follow(from) }); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if lines, gaps := l.units.Load(), l.gaps.Load(); lines != 3 || gaps != 1 {
			t.Errorf("%s: got %d lines, %d gaps, want 3 and 1", name, lines, gaps)
		}
	}
}

func TestSpan(t *testing.T) {
	at := time.Now()
	before := reading{at: at, engineCPU: time.Second,
		engine:     engineCounts{Made: 1000},
		audienceIn: time.Second,
		audience:   audienceCounts{Each: []listenerCounts{{5, 1}, {5, 0}}}}
	after := reading{at: at.Add(2 * time.Second), engineCPU: time.Second + time.Millisecond,
		engine:     engineCounts{Made: 3000},
		audienceIn: time.Second + time.Millisecond,
		audience:   audienceCounts{Each: []listenerCounts{{105, 3}, {85, 0}}}}
	want := span{made: 1000, got: 40, gaps: 2, engineTime: 500, audienceTime: 1e6 / 180.0}
	if got := spanOf(before, after); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	before.audience.Each, after.audience.Each = nil, nil
	if got := spanOf(before, after); got.got != 0 || got.gaps != 0 || got.made != 1000 {
		t.Errorf("nobody: got %+v", got)
	}
}
