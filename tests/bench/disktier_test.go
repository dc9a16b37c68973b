package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// runFake measures topics with the fake daemon, small, and returns the report.
func runFake(t *testing.T, topic string, flags ...string) (*bench, string) {
	t.Helper()
	b, err := tryFake(t, topic, flags...)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	b.report.print(&out)
	return b, out.String()
}

// tryFake returns the error of the measurement. In any case nothing may be left behind.
func tryFake(t *testing.T, topic string, flags ...string) (*bench, error) {
	t.Helper()
	dir := t.TempDir()
	if strings.HasPrefix(fsType(dir), "tmpfs") {
		t.Skip("the directory for temporary files is on tmpfs: no disk to measure")
	}
	// As in main: the daemon gets SIGTERM when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Setenv(fakeKVFSEnv, "1")
	t.Setenv("TMPDIR", dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseFlags(append([]string{"-quick", "-kvfs", self, "-disk", dir, "-shm", dir, "-only", topic,
		"-sizes", "64KiB,1MiB", "-disk-bytes", "4MiB", "-recover", "500", "-timeout", "2m"}, flags...))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{config: c, report: newReport(c.quick), closing: make(chan struct{})}
	err = b.setup(t.Context())
	if err == nil {
		b.pool, err = newPool(c.maxThreads, mib)
	}
	if err == nil {
		err = b.measure(t.Context())
	}
	if closeErr := b.close(); closeErr != nil {
		t.Errorf("close: %v", closeErr)
	}
	left, readErr := os.ReadDir(dir)
	if readErr != nil || len(left) > 0 {
		t.Errorf("left in %s: %v %v", dir, left, readErr)
	}
	return b, err
}

// rowsOf returns the rows of a topic for a target, which must exist.
func rowsOf(t *testing.T, b *bench, topic, target string) []row {
	t.Helper()
	rows := slices.DeleteFunc(slices.Clone(b.report.rows), func(r row) bool {
		return r.Topic != topic || r.Target != target
	})
	if len(rows) == 0 {
		t.Errorf("no rows of topic %q for %q", topic, target)
	}
	for _, r := range rows {
		if r.Value < 0 {
			t.Errorf("%+v: negative", r)
		}
	}
	return rows
}

// The topics of the disk tier run from start to end against a daemon with the right interface:
// files are stored, drained, evicted, read and recovered, and everything made is removed. (Features
// A13, A14, B35.)
func TestDiskTopics(t *testing.T) {
	t.Run("cold", func(t *testing.T) {
		b, text := runFake(t, "cold")
		// For each size: the rates with 1, 2 and 8 readers, mean, p50, p99 and max of one, the rate beside the disk, processor time.
		if rows := rowsOf(t, b, "cold", kvfsName); len(rows) != 2*(3+4+2) {
			t.Errorf("got %d rows, want %d: %+v", len(rows), 2*(3+4+2), rows)
		}
		if len(rowsOf(t, b, "cold", diskName)) != 2 {
			t.Error("want a row of the plain directory for each size")
		}
		mustContain(t, text, "**Cold reads**", "| 64 KiB |", "| 1 MiB  |", "daemon s/GB", "disk tier: ",
			"**Cold reads by 8 readers, beside plain files**")
	})
	t.Run("drain", func(t *testing.T) {
		b, text := runFake(t, "drain")
		for _, r := range rowsOf(t, b, "drain", kvfsName) {
			if r.Value == 0 {
				t.Errorf("%+v: no rate", r)
			}
			if strings.HasPrefix(r.Unit, "% left") && r.Value < 100*backlogShare {
				t.Errorf("%+v: the daemon starts without what the one before left", r)
			}
		}
		mustContain(t, text, "**Cascade to the disk**", "drain GB/s", "writers GB/s", "in all GB/s", "0.90")
	})
	t.Run("hotcascade", func(t *testing.T) {
		b, text := runFake(t, "hotcascade")
		for _, state := range []string{quietState, writerState, cascadeState, "cascade"} {
			if got := rowsOf(t, b, "hotcascade", state); len(got) != 2 {
				t.Errorf("%s: got %d rows, want one for each size", state, len(got))
			}
		}
		mustContain(t, text, "**Hot reads while a cascade runs**", "to no disk tier", "0.90")
	})
	t.Run("recovery", func(t *testing.T) {
		b, text := runFake(t, "recovery")
		judged := 0
		for _, r := range rowsOf(t, b, "recovery", kvfsName) {
			if r.Goal != nil {
				judged++
			}
		}
		if judged != 3 {
			t.Errorf("got %d rows with a goal, want an eviction, and a start with and without an index", judged)
		}
		mustContain(t, text, "eviction of all from memory", "with the index, after a clean stop", "without it, after SIGKILL",
			"under 5", "under 0.5", "under 1", "recovery_seconds 0.25", " 100 ")
	})
}

func mustContain(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// Without fio the other figures are measured, and the report says what is missing.
func TestNoFio(t *testing.T) {
	bin := t.TempDir() // A PATH without fio.
	t.Setenv("PATH", bin)
	for _, topic := range []string{"cold", "drain"} {
		b, text := runFake(t, topic)
		mustContain(t, text, "skipped: install fio", "apt-get install fio")
		for _, r := range rowsOf(t, b, topic, kvfsName) {
			if _, ok := r.RatioTo[fioName]; ok {
				t.Errorf("%+v: a ratio to nothing", r)
			}
		}
	}
	// A fio that fails counts as missing.
	script := "#!/bin/sh\n[ \"$1\" = --version ] && echo fio-0.0 && exit\necho 'io_uring denied' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, fioName), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	_, text := runFake(t, "drain")
	mustContain(t, text, "skipped: fio fails", "io_uring denied")
}

func TestDiskTopicsOnTmpfs(t *testing.T) {
	if kind := fsType("/dev/shm"); kind != "tmpfs, NOT A DISK" {
		t.Skip("/dev/shm is " + kind)
	}
	c, err := parseFlags([]string{"-disk", "/dev/shm", "-only", "cold,recovery"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{config: c, report: newReport(false)}
	if err := b.measureDiskTier(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	b.report.print(&out)
	mustContain(t, out.String(), "Not measured: cold", "Not measured: recovery", "skipped: /dev/shm is on tmpfs")
}

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
		got, err := parseFio([]byte(c.output), 1000)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}

// Fio itself takes the arguments, lays out a file and reads it.
func TestFioRuns(t *testing.T) {
	dir := t.TempDir()
	f := findFio(t.Context(), dir)
	if f.missing != "" {
		t.Skip(f.missing)
	}
	file := filepath.Join(dir, "file")
	if err := f.layOut(t.Context(), file, 4*mib); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 4*mib {
		t.Errorf("laid out: got %v, %v, want %d bytes", info, err, 4*mib)
	}
	rate, err := f.run(t.Context(), fioJob{file: file, pattern: "randread", blockBytes: mib, totalBytes: 4 * mib})
	if err != nil || rate <= 0 {
		t.Errorf("randread: got %v, %v", rate, err)
	}
	_, err = f.run(t.Context(), fioJob{file: file + "/below", pattern: "write", blockBytes: mib, totalBytes: mib})
	if err == nil {
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
	if err := verifyPages(block(7), pattern, 7); err != nil {
		t.Errorf("intact: %v", err)
	}
	for at := range size {
		buf := block(7)
		buf[at] ^= 1
		if verifyPages(buf, pattern, 7) == nil {
			t.Fatalf("byte %d changed: not noticed", at)
		}
	}
	foreign := block(7)
	copy(foreign[pageBytes:2*pageBytes], block(8)[pageBytes:])
	swapped := slices.Concat(block(7)[pageBytes:2*pageBytes], block(7)[:pageBytes], block(7)[2*pageBytes:])
	for name, buf := range map[string][]byte{"foreign page": foreign, "swapped pages": swapped, "other block": block(8)} {
		if verifyPages(buf, pattern, 7) == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// The goals of the issue stand under the sizes of the rows.
func TestDiskGoals(t *testing.T) {
	for size, want := range map[int][]float64{64 * kib: {0.70, 0.80, 0.80}, mib: {0.80, 0.95, 0.95}, 4 * mib: {0.95, 1, 0.95}, 16 * mib: {0, 0, 0.95}, 2 * mib: {0, 0, 0}} {
		for i, readers := range coldDepths() {
			if got := coldGoal(size, readers); got != want[i] {
				t.Errorf("coldGoal(%s, %d): got %v, want %v", sizeText(size), readers, got, want[i])
			}
		}
	}
	if got := coldDiskGoal(4 * mib); got != 1.5 {
		t.Errorf("coldDiskGoal(4 MiB): got %v, want 1.5", got)
	}
}

func TestVersus(t *testing.T) {
	b := &bench{report: newReport(false)}
	perSec := series{kvfsName: {8, 9, 10}, fioName: {10, 10, 10}}
	for _, c := range []struct {
		goal float64
		want []string
	}{
		{0.95, []string{"0.90", "0.95", "missed"}},
		{0.90, []string{"0.90", "0.90", "met"}},
		{0, []string{"0.90", "", ""}},
	} {
		r := row{Target: kvfsName}
		if got := b.versus(&r, perSec, fioName, c.goal); !slices.Equal(got, c.want) {
			t.Errorf("goal %v: got %q, want %q", c.goal, got, c.want)
		}
		if r.RatioTo[fioName] != 0.9 {
			t.Errorf("ratio in the row: got %v, want 0.9", r.RatioTo)
		}
	}
}

// A pass over a queue does each index once, in order, and then ends.
func TestSequence(t *testing.T) {
	p, err := newPool(4, kib)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	order := []int{5, 3, 1, 0, 2, 4, 6}
	done := make(chan int, len(order))
	w := sequence(4, order, func(_ *client, i int) error { done <- i; return nil })
	tally, err := p.run(t.Context(), w, time.Hour)
	if err != nil || tally.ops != len(order) {
		t.Fatalf("got %d operations, %v, want %d", tally.ops, err, len(order))
	}
	close(done)
	var got []int
	for i := range done {
		got = append(got, i)
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6}) {
		t.Errorf("indexes: got %v, want each once", got)
	}
}

// fakeMount is a directory with a status file, as a mount without a daemon.
func fakeMount(t *testing.T, status string) *tierMount {
	t.Helper()
	m := &tierMount{tierName: "disk", target: target{name: kvfsName, dir: t.TempDir()}}
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
	m := fakeMount(t, `{"secondaries": [{"name": "peer"}, {"name": "disk", "state": "online", "queued_blocks": 0,
		"cascaded_blocks": 7, "cascaded_bytes": 700, "cascade_dropped_blocks": 1, "promoted_blocks": 3, "detail": {"x": 1}}]}`)
	s, err := m.tier()
	if err != nil || s.Cascaded != 7 || s.CascadedBytes != 700 || s.Promoted != 3 || s.lost() != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	if err := m.drained(t.Context(), s, 0, nil); err != nil {
		t.Errorf("drained: %v", err)
	}
	if err := m.drained(t.Context(), &tierStatus{}, 7, nil); err == nil {
		t.Error("drained: a dropped block was not noticed")
	}
	for _, text := range []string{
		`{"secondaries": []}`, `{}`, `{`,
		`{"secondaries": [{"name": "disk", "state": "degraded", "reason": "one of 2 directories is offline"}]}`,
	} {
		if s, err := fakeMount(t, text).tier(); err == nil {
			t.Errorf("%s: got %+v, want an error", text, s)
		}
	}
}

func TestRecoveryTold(t *testing.T) {
	s := &status{Secondaries: []tierStatus{{Name: "disk", Detail: json.RawMessage(
		`{"Dirs": [{"Path": "/d", "Recovery": {"Seconds": 0.5, "Index": true}, "RecoveredBlocks": 9}], "Other": 1}`)}}}
	log := "started\ndisk tier recovered 9 blocks | 1 s\n"
	want := "RecoveredBlocks 9; Recovery.Index true; Recovery.Seconds 0.5; disk tier recovered 9 blocks / 1 s"
	if got := recoveryTold(s, log); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := recoveryTold(&status{}, ""); got != "nothing" {
		t.Errorf("silent: got %q", got)
	}
}

func TestDiskFlags(t *testing.T) {
	c, err := parseFlags([]string{"-quick", "-only", "cold,drain,hotcascade,recovery"})
	if err != nil {
		t.Fatal(err)
	}
	if c.recover != 20_000 || c.diskBytes > 64*mib {
		t.Errorf("-quick: got %d blocks to recover, %d bytes, want a smoke test's", c.recover, c.diskBytes)
	}
	if c.wants(hotTopics()...) || !c.wants("drain") {
		t.Errorf("-only: got %v", c.only)
	}
	for _, args := range [][]string{{"-recover", "0"}, {"-disk-bytes", "7"}, {"-only", "warm"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v: want an error", args)
		}
	}
	all := slices.Sorted(slices.Values(topics()))
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("a topic is there twice: %v", all)
	}
}
