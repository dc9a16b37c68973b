package main

import (
	"bytes"
	"errors"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

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
		cpu  float64
	}{
		{`{"end": {"sum_received": {"bits_per_second": 8e9}, "cpu_utilization_percent": {"host_total": 60, "remote_total": 90}}}`, 1e9, 1.5},
		{`{"end": {}, "error": "unable to connect"}`, 0, 0},
		{`{"end": {"sum_received": {"bits_per_second": 8e9}}, "error": "interrupt"}`, 0, 0},
		{``, 0, 0},
	} {
		got, cpu, err := iperfRate([]byte(c.text))
		if got != c.want || cpu != c.cpu || (err == nil) != (c.want != 0) {
			t.Errorf("%q: got %v, %v, %v, want %v, %v", c.text, got, cpu, err, c.want, c.cpu)
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

// TestRedisPeer shows that a Redis on one node answers the readers on the other one, and that its end is clean.
func TestRedisPeer(t *testing.T) {
	runtime.LockOSThread() // as in main: the store ends with the thread that started it
	defer runtime.UnlockOSThread()
	c := newPair(t)
	c.workDir = t.TempDir()
	c.pattern = make([]byte, 64*kib)
	fillPattern(c.pattern)
	var err error
	if c.readers, err = newPool(peerReaders, 64*kib); err != nil {
		t.Fatal(err)
	}
	defer c.readers.close()
	if _, err := exec.LookPath(wires()[0].program); err != nil {
		t.Skip(err)
	}
	l := &remoteBlocks{peers: c, set: &blockSet{size: 64 * kib, count: 20}}
	if l.redis, err = c.startRedis(t.Context(), 64*kib); err != nil {
		t.Fatal(err)
	}
	if err := l.fillRedis(t.Context()); err != nil {
		t.Error(err)
	}
	if result, err := c.readers.run(t.Context(), sequence(peerReaders, shuffled(l.set, 1), l.get), time.Hour); err != nil || result.ops != 20 {
		t.Errorf("got %d values, %v", result.ops, err)
	}
	if err := l.redis.stop(); err != nil {
		t.Error(err)
	}
}

// Each goal stands under the figures that it is about.
func TestPeerRows(t *testing.T) {
	b := &bench{report: newReport(false), config: &config{}}
	l := &remoteBlocks{peers: &peers{peerBench: &peerBench{bench: b, iperf: &iperf{missing: "x"}}}, set: &blockSet{size: mib}, one: &table{},
		noRedis: errors.New("not installed"), times: map[string][]time.Duration{
			sendfileName: {200e3}, kvfsName: {310e3, 290e3}, readName: {400e3, 500e3}}}
	l.rows()
	l.cpuRow(l.one, peerMode{"cubic", "cubic", false}, 0.5, 0.5, nil)
	l.cpuRow(l.one, peerMode{"bbr", "", false}, 0.7, 0.5, nil)
	l.cpuRow(l.one, peerMode{"TLS", "cubic", true}, 0.7, 0.5, nil)
	var got []string
	for _, cells := range l.one.rows {
		got = append(got, strings.Join(cells, "|"))
	}
	want := []string{
		"1 MiB|sendfile|200|200|200|1.00||",
		"1 MiB|kvfs|290|310|310|1.45|1.5 times|met",
		"1 MiB|kvfs, and read|400|500|500|2.00|400 us|met",
		"1 MiB|no Redis: not installed||||||",
		"cubic|0.50|no iperf3|1.00|0.40 s/GB|missed",
		"bbr|0.70|no iperf3|1.40||",
		"TLS|0.70|no iperf3|1.40|1.4 times|met",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A figure of the fleet is the mean of its nodes, beside the goal if it has one.
func TestFleetRows(t *testing.T) {
	b := &bench{report: newReport(false), config: &config{}}
	f := &fleet{peers: &peers{peerBench: &peerBench{bench: b}}, table: &table{}, locations: "all"}
	f.add("s", 12, 13)
	f.add("bytes", 28.5, 28, 29)
	f.add("descriptors", 0, 383)
	want := [][]string{{"s", "all", "13", "", "<= 12", "missed"}, {"bytes", "all", "28.5", "28.00-29.00", "<= 28.5", "met"},
		{"descriptors", "all", "383", "", "", ""}}
	if !slices.EqualFunc(f.table.rows, want, slices.Equal[[]string]) {
		t.Errorf("got %q, want %q", f.table.rows, want)
	}
}
