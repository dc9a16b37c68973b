package main

import (
	"bytes"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

// withPair calls f with the network that the topics of peers use.
func withPair(t *testing.T, f func(c *peers)) {
	t.Helper()
	if why := netns.Lacks(); why != "" {
		t.Skip(why)
	}
	runtime.LockOSThread() // as in main: a store ends with the thread that started it
	defer runtime.UnlockOSThread()
	j := newTestJob(t, peerReaders, mib)
	j.config, j.workDir = &config{quick: true, shmDir: t.TempDir()}, t.TempDir()
	if err := j.do(func(j *job) { f(&peers{job: j, net: j.network(2)}) }); err != nil {
		t.Error(err)
	}
}

func TestIperfRate(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64 // 0: an error
		cpu  float64
	}{
		{`{"end": {"sum_received": {"bits_per_second": 8e9}, "cpu_utilization_percent": {"host_total": 60, "remote_total": 90}}}`, 1, 1.5},
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

// The baseline runs with both numbers of streams, and the better one counts.
func TestIperf(t *testing.T) {
	if _, err := exec.LookPath(iperfName); err != nil {
		t.Skip(err)
	}
	withPair(t, func(c *peers) {
		perGB := series{}
		sides := c.iperf(c.net, "cubic", perGB)
		figs := c.rotate(0, 1, sides)
		best := bestIperf(figs)
		for _, s := range sides {
			if got := figs[s.name]; len(got) != 1 || got[0] <= 0 || got[0] > figs[best][0] || len(perGB[s.name]) != 1 {
				t.Errorf("%s: got %v GB/s, the better is %s with %v", s.name, got, best, figs[best])
			}
		}
	})
}

// The loop for comparison moves the bytes.
func TestBareLoop(t *testing.T) {
	withPair(t, func(c *peers) {
		bare := c.startBare(mib)
		for range 3 {
			got := make([]byte, mib)
			if bare.fetch(got); !bytes.Equal(got, c.pattern) {
				t.Error("other bytes arrived")
			}
		}
	})
}

// A Redis on one node answers the readers on the other one, and its end is clean.
func TestRedisPeer(t *testing.T) {
	if _, err := exec.LookPath(wires()[0].program); err != nil {
		t.Skip(err)
	}
	withPair(t, func(c *peers) {
		l := &remoteBlocks{peers: c, set: &blockSet{size: 64 * kib, count: 20}}
		l.redis = c.startRedis(64 * kib)
		l.fillRedis()
		l.inOrder(peerReaders, shuffled(l.set, 1), l.get)
	})
}

// Each goal stands under the figures that it is about.
func TestPeerRows(t *testing.T) {
	j := (&bench{config: &config{}}).newJob(t.Context(), "t")
	l := &remoteBlocks{peers: &peers{job: j}, set: &blockSet{size: mib}, times: map[string][]time.Duration{
		sendfileName: {200e3}, kvfsName: {310e3, 290e3}, readName: {400e3, 500e3}, redisName: {300e3}}}
	table := &table{head: make([]string, 7)}
	l.rows(table)
	var got []string
	for _, cells := range table.rows {
		got = append(got, strings.Join(cells, "|"))
	}
	want := []string{
		"1 MiB|sendfile|200|200|200|1.00|",
		"1 MiB|kvfs|290|310|310|1.45|1.5 times, met",
		"1 MiB|kvfs, and read|400|500|500|2.00|400 us, met",
		"1 MiB|Redis|300|300|300|1.50|",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A figure of the fleet is the mean of its nodes, beside the goal if it has one.
func TestFleetRows(t *testing.T) {
	j := (&bench{config: &config{}}).newJob(t.Context(), "t")
	f := &fleet{peers: &peers{job: j}, table: &table{head: make([]string, 5)}, locations: "all"}
	f.add("s", 12, 13)
	f.add("bytes", 28.5, 28, 29)
	f.add("descriptors", 0, 383)
	want := [][]string{{"s", "all", "13", "", "<= 12, missed"}, {"bytes", "all", "28.5", "28.00-29.00", "<= 28.5, met"},
		{"descriptors", "all", "383", "", ""}}
	if !slices.EqualFunc(f.table.rows, want, slices.Equal[[]string]) {
		t.Errorf("got %q, want %q", f.table.rows, want)
	}
}
