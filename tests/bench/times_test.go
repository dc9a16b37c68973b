package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// The ratio is of the p99, and only the goal of new names judges it.
func TestTimesRow(t *testing.T) {
	times := map[string][]time.Duration{kvfsName: {10000, 30000, 20000}, hugeName: {10000}, shmName: {1}}
	for _, c := range []struct {
		targets []string
		size    int
		want    string // the row, without spaces
	}{
		{[]string{shmName, hugeName, kvfsName}, 4 * mib, "|4MiB|20.0|20.0/30.0/30.0|10.0|10.0/10.0/10.0|3.00|2.0,missed|"},
		{[]string{shmName, hugeName, kvfsName}, mib, "|1MiB|20.0|20.0/30.0/30.0|10.0|10.0/10.0/10.0|3.00||"},
		{[]string{shmName, kvfsName}, mib, "|1MiB|20.0|20.0/30.0/30.0|0.0|0.0/0.0/0.0|30000.00||"},
	} {
		j := (&bench{config: &config{}, report: newReport()}).newJob(t.Context(), "fresh")
		for _, name := range c.targets {
			j.targets = append(j.targets, &target{name: name})
		}
		j.timesRow("T", c.size, func(t *target) []time.Duration { return times[t.name] })
		var out strings.Builder
		j.report.print(&out)
		if got := strings.ReplaceAll(out.String(), " ", ""); !strings.Contains(got, c.want) {
			t.Errorf("%v, %d: got\n%s", c.targets, c.size, out.String())
		}
	}
}

// The ratio of a rate is to the best reference, and its goal is that of the topic, the threads and the size.
func TestRateCells(t *testing.T) {
	j := (&bench{config: &config{}}).newJob(t.Context(), "read")
	for _, name := range []string{shmName, diskName, kvfsName, loopbackName} {
		j.targets = append(j.targets, &target{name: name})
	}
	perSec := series{shmName: {1000, 2000, 3000}, diskName: {4000}, kvfsName: {3600, 3600, 1}, loopbackName: {400}}
	for threads, goal := range map[int]string{1: "0.95, missed", 2: "", 4: "1.00, missed"} {
		table := &table{head: make([]string, 9)}
		table.row(j.rateCells(4*mib, threads, perSec)...)
		want := []string{"4 MiB", fmt.Sprint(threads), "8.39 (3.00)", "16.78", "15.10", "0.90", goal, "1.68", "0.10"}
		if got := table.rows[0]; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if len(j.points) != 3 {
		t.Errorf("got %v, want the targets but the loopback, with one thread", j.points)
	}
}
