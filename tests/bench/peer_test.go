package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

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
