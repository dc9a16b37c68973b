package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/lane"
)

func TestParseFio(t *testing.T) {
	doc := func(errno, read, write int) string {
		text, err := json.Marshal(map[string]any{"jobs": []any{map[string]any{
			"error": errno,
			"read":  map[string]any{"io_bytes": read, "bw_bytes": read / 2},
			"write": map[string]any{"io_bytes": write, "bw_bytes": write / 4},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, c := range []struct {
		name, output string
		want         float64 // 0: an error
	}{
		{"read", doc(0, 1000, 0), 500},
		{"write", doc(0, 0, 1000), 250},
		{"a note before", "fio: a note\n" + doc(0, 1000, 0), 500},
		{"failed", doc(5, 1000, 0), 0},
		{"short", doc(0, 999, 0), 0},
		{"nothing moved", doc(0, 0, 0), 0},
		{"no job", `{"jobs": []}`, 0},
		{"cut off", `{"jobs": [`, 0},
		{"no JSON", "fio: engine io_uring not loadable", 0},
		{"empty", "", 0},
	} {
		got := 0.0
		err := try(func() { got = parseFio([]byte(c.output), 1000) })
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}

// Fio itself takes the arguments, lays out a file and reads it.
func TestFioRuns(t *testing.T) {
	if _, err := exec.LookPath(fioName); err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	layOut(t.Context(), file, 4*mib)
	if info, err := os.Stat(file); err != nil || info.Size() != 4*mib {
		t.Errorf("laid out: got %v, %v, want %d bytes", info, err, 4*mib)
	}
	if speed := fio(t.Context(), file, "randread", mib, 4*mib, 1); speed <= 0 {
		t.Errorf("randread: got %v", speed)
	}
	if try(func() { fio(t.Context(), file+"/below", "write", mib, mib, 1) }) == nil {
		t.Error("a file for a directory: got no error")
	}
}

func TestFitBytes(t *testing.T) {
	for _, c := range []struct {
		name            string
		want, free, mem int
		onDisk, inMem   float64
		got             int
	}{
		{"all", gib, 100 * gib, 100 * gib, 4, 2, gib},
		{"disk", gib, 2000 * mib, 100 * gib, 4, 2, 450 * mib},
		{"memory", gib, 100 * gib, 1000 * mib, 4, 2, 330 * mib},
		{"none", gib, -5, gib, 4, 2, 0},
	} {
		if got := fitBytes(c.want, c.free, c.mem, c.onDisk, c.inMem); got != c.got {
			t.Errorf("%s: got %d MiB, want %d MiB", c.name, got/mib, c.got/mib)
		}
	}
}

// A byte that changed anywhere, a page of another block or a swapped page shows.
func TestVerifyPages(t *testing.T) {
	const size = 10 * kib // The last page is not full.
	pattern := make([]byte, 16*kib)
	fillPattern(pattern)
	block := func(i int) []byte {
		buf := bytes.Clone(pattern[:size])
		stampPages(buf, i)
		return buf
	}
	wrong := func(buf []byte) bool { return try(func() { verifyPages(buf, pattern, 7) }) != nil }
	if wrong(block(7)) {
		t.Error("intact: taken for another")
	}
	for at := range size {
		buf := block(7)
		buf[at] ^= 1
		if !wrong(buf) {
			t.Fatalf("byte %d changed: not noticed", at)
		}
	}
	foreign := block(7)
	copy(foreign[pageBytes:2*pageBytes], block(8)[pageBytes:])
	swapped := slices.Concat(block(7)[pageBytes:2*pageBytes], block(7)[:pageBytes], block(7)[2*pageBytes:])
	for name, buf := range map[string][]byte{"foreign page": foreign, "swapped pages": swapped, "other block": block(8)} {
		if !wrong(buf) {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// fakeMount is a directory with a status file, as a mount without a daemon.
func fakeMount(t *testing.T, status string) *target {
	t.Helper()
	m := &target{name: kvfsName, dir: t.TempDir(), tier: "disk"}
	if err := os.Mkdir(m.dir+"/.kvfs", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.dir+"/.kvfs/status", []byte(status), 0o644); err != nil {
		t.Fatal(err)
	}
	return m
}

// Status is read under the names that the daemon uses. A tier that is not fit for a measurement,
// and blocks that it did not take, are errors.
func TestTierStatus(t *testing.T) {
	j := (&bench{config: &config{}}).newJob(t.Context(), "t")
	m := fakeMount(t, `{"secondaries": [{"name": "peer"}, {"name": "disk", "state": "online", "queued_blocks": 0,
		"cascaded_blocks": 7, "cascaded_bytes": 700, "cascade_dropped_blocks": 1, "promoted_blocks": 3, "detail": {"x": 1}}]}`)
	s := m.lower()
	if s.Cascaded != 7 || s.CascadedBytes != 700 || s.Promoted != 3 || lost(s) != 1 {
		t.Errorf("got %+v", s)
	}
	if err := try(func() { j.drained(m, s, 0, nil) }); err != nil {
		t.Errorf("drained: %v", err)
	}
	if err := try(func() { j.drained(m, &lane.Stats{}, 7, nil) }); err == nil {
		t.Error("drained: a dropped block was not noticed")
	}
	for _, text := range []string{
		`{"secondaries": []}`, `{}`, `{`,
		`{"secondaries": [{"name": "disk", "state": "degraded", "reason": "one of 2 directories is offline"}]}`,
	} {
		if err := try(func() { fakeMount(t, text).lower() }); err == nil {
			t.Errorf("%s: want an error", text)
		}
	}
	if got := m.told("x") + m.told("y"); got != "1" {
		t.Errorf("details: got %q", got)
	}
}

func TestDrainRates(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name         string
		points       []drainPoint
		perSec, left float64
	}{
		{"over when status first answered", []drainPoint{{2 * s, 100}}, 50, 0},
		{"over, seen twice", []drainPoint{{2 * s, 100}, {4 * s, 100}}, 50, 0},
		{"little left", []drainPoint{{8 * s, 60}, {9 * s, 80}, {10 * s, 100}}, 10, 0.4},
		// A store was half done at 2 s: 30 at 3 s is no figure, 70 in 7 s is.
		{"most left", []drainPoint{{2 * s, 20}, {3 * s, 30}, {9 * s, 90}, {10 * s, 100}}, 10, 0.8},
		{"faster than the start", []drainPoint{{6 * s, 0}, {6 * s, 0}, {7 * s, 20}, {9 * s, 100}, {12 * s, 100}}, 40, 1},
		{"one leap", []drainPoint{{1 * s, 0}, {2 * s, 100}, {5 * s, 100}}, 50, 1},
		{"nothing", []drainPoint{{1 * s, 0}}, 0, 0},
	} {
		perSec, left := drainRates(c.points)
		if math.Abs(perSec-c.perSec) > 1e-9 || math.Abs(left-c.left) > 1e-9 {
			t.Errorf("%s: got %v a second, %v left, want %v and %v", c.name, perSec, left, c.perSec, c.left)
		}
	}
}
