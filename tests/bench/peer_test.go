package main

import (
	"bytes"
	"testing"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

// newPair makes the network that the topics of peers use.
func newPair(t *testing.T) *peers {
	t.Helper()
	if why := netns.Lacks(); why != "" {
		t.Skip(why)
	}
	n, err := netns.New(2)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{config: &config{quick: true}, shmDir: t.TempDir()}
	c := &peers{peerBench: &peerBench{bench: b, iperf: findIperf(t.Context())}, net: n}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestIperfRate(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64 // 0: an error
	}{
		{`{"end": {"sum_received": {"bits_per_second": 8e9}}}`, 1e9},
		{`{"end": {}, "error": "unable to connect"}`, 0},
		{`{"end": {"sum_received": {"bits_per_second": 8e9}}, "error": "interrupt"}`, 0},
		{``, 0},
	} {
		got, err := iperfRate([]byte(c.text))
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%q: got %v, %v, want %v", c.text, got, err, c.want)
		}
	}
}

// TestIperfRound shows that the baseline runs with both numbers of streams, and that the better one
// counts.
func TestIperfRound(t *testing.T) {
	c := newPair(t)
	if c.iperf.missing != "" {
		t.Skip(c.iperf.missing)
	}
	perSec := series{}
	if err := c.iperfRound(t.Context(), perSec, peerMode{congestion: "cubic"}); err != nil {
		t.Fatal(err)
	}
	name := baseLine(perSec)
	for _, streams := range iperfStreams() {
		got := perSec[iperfTitle(streams)]
		if len(got) != 1 || got[0] < 1e6 || got[0] > perSec[name][0] {
			t.Errorf("%d streams: got %v bytes a second, the better is %s with %v", streams, got, name, perSec[name])
		}
	}
}

// TestBareLoop shows that the loop for comparison moves the bytes.
func TestBareLoop(t *testing.T) {
	c := newPair(t)
	const size = mib
	c.pattern = make([]byte, size)
	fillPattern(c.pattern)
	bare, err := c.startBare(size)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got := make([]byte, size)
		if err := bare.fetch(got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, c.pattern) {
			t.Error("other bytes arrived")
		}
	}
	if err := bare.close(); err != nil {
		t.Error(err)
	}
}
