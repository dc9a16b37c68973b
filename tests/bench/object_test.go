package main

import (
	"strings"
	"testing"
)

// The topic runs from start to end against a real S3 server and mounts, and every row has its figures.
func TestObjectTopic(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: make bench-quick runs the topic")
	}
	b, out := runTopic(t, "object")
	if title := b.report.tables["object"][0].title; strings.HasPrefix(title, "Not measured") {
		t.Skip(out)
	}
	goals := map[string]float64{
		"GB/s, load": objectLoadGoal, "ms, first byte, p50": objectFirstGoal, "GB/s, store": objectStoreGoal, "blocks/s, store": objectPackGoal,
	}
	seen := map[string]int{}
	for _, r := range rowsOf(t, b, "object", kvfsName) {
		if strings.HasPrefix(r.Unit, "us, ") {
			continue // times of one block, for the plot
		}
		if r.Value <= 0 || len(r.Samples) != b.config.rounds || r.Goal == nil {
			t.Errorf("%+v", r)
			continue
		}
		seen[r.Unit]++
		if goal, ok := goals[r.Unit]; ok && (*r.Goal != goal || r.RatioTo[clientName] <= 0) {
			t.Errorf("%+v: want the goal %v, and a ratio", r, goal)
		}
	}
	for unit, rows := range map[string]int{
		"GB/s, load": 4, "ms, first byte, p50": 1, "GB/s, store": 1, "blocks/s, store": 1,
		"s, start until 20000 blocks are known": 1, "bytes a block, index of 20000 blocks": 1,
	} {
		if seen[unit] != rows {
			t.Errorf("%s: got %d rows, want %d", unit, seen[unit], rows)
		}
	}
	mustContain(t, out, "| hot read, a writer and its stores to the bucket |", "**Object storage, beside an S3 client**")
}

// A ratio of rates is to be large, one of times small.
func TestObjectRow(t *testing.T) {
	for _, c := range []struct {
		unit string
		kvfs float64
		goal float64
		want string
	}{{"GB/s", 9, 0.9, "met"}, {"GB/s", 8.9, 0.9, "missed"}, {"ms", 13, 1.3, "met"}, {"ms", 13.1, 1.3, "missed"}} {
		o := &objectBench{bench: &bench{report: newReport(false)}, table: &table{}}
		o.row("load", mib, 1, c.unit, series{kvfsName: {c.kvfs, 1, 1000}, clientName: {10}}, kvfsName, clientName, c.goal)
		if cells := o.table.rows[0]; cells[len(cells)-1] != c.want {
			t.Errorf("%v %s: got %q, want %s", c.kvfs, c.unit, cells, c.want)
		}
	}
}
