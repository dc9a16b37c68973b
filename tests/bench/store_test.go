package main

import (
	"slices"
	"strings"
	"testing"
)

// The topic runs from start to end against an embedded mount, a mount of a standalone store (B1,
// B30) and kvfs run: every size is read and written through both, and every row has its figures.
func TestStoreTopic(t *testing.T) {
	b, out := runTopic(t, "store")
	for _, name := range []string{embeddedName, standaloneName} {
		rows := rowsOf(t, b, "store", name)
		if want := 2 * len(b.config.sizes); len(rows) != want {
			t.Errorf("%s: got %d rows, want %d", name, len(rows), want)
		}
		for _, r := range rows {
			standalone, reads := name == standaloneName, strings.HasSuffix(r.Unit, "hot reads")
			if r.Value == 0 || len(r.Samples) != storeFiner*b.config.rounds ||
				(len(r.RatioTo) == 1) != standalone || (r.Goal != nil) != (standalone && reads) {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	for _, name := range []string{runName, runStandaloneName} {
		for _, r := range rowsOf(t, b, "store", name) {
			if r.Value == 0 || r.Goal == nil || *r.Goal != startGoal {
				t.Errorf("%s: %+v", name, r)
			}
		}
		mustContain(t, out, "| "+name+" -- "+startCommand)
	}
	mustContain(t, out, "| hot reads, 64 KiB", "| writes over existing names, 16 MiB", "**A standalone store")
}

// Both mounts get the settings of -kvfs-args, and memory is the store's.
func TestStoreFlags(t *testing.T) {
	b := &bench{config: &config{memoryMiB: 64, kvfsArgs: []string{"--further"}}, kvfsPath: "kvfs"}
	s := &storeBench{bench: b, socket: "/socket"}
	for _, c := range []struct{ got, want []string }{
		{s.owner().argv, []string{"kvfs", "serve", "--memory-size", "64MiB", "--store-socket", "/socket", "--ready-fd", "3", "--further"}},
		{s.attached("/dir").argv, []string{"kvfs", "mount", "--ready-fd", "3", "--mode", "standalone-store", "--store-socket", "/socket",
			"--further", "/dir"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got  %q\nwant %q", c.got, c.want)
		}
	}
}

// The goal of a start is for the time that it adds to the command.
func TestStartRow(t *testing.T) {
	for _, c := range []struct {
		run  float64
		want string
	}{{310, "met"}, {311, "missed"}} {
		s := &storeBench{bench: &bench{report: newReport(false)}, table: &table{}}
		s.startRow(runName, series{aloneName: {10, 11, 12}, runName: {c.run, 1, 1000}})
		if got := s.table.rows[0]; got[len(got)-1] != c.want {
			t.Errorf("%v ms: got %q, want %s", c.run, got, c.want)
		}
	}
}
