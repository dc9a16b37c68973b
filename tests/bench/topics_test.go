package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRole is no test: it makes this program a child, as main does.
func TestRole(t *testing.T) {
	if text := os.Getenv(roleEnv); text != "" {
		if err := play(text); err != nil {
			t.Log(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// tryTopic measures a topic, small, and returns what it reports. In any case nothing may be left in the directories.
func tryTopic(t *testing.T, topic string, flags ...string) (*report, string, error) {
	t.Helper()
	// As in main: a daemon gets SIGTERM when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	c, err := parseFlags(append([]string{"-quick", "-only", topic, "-timeout", "5m"}, flags...))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(fakeKVFSEnv) != "" {
		c.shmDir, c.diskBytes, c.recover = os.TempDir(), 4*mib, 500
	}
	b := newBench(c)
	err = try(b.setup)
	if err == nil {
		err = b.measure(t.Context())
	}
	if closeErr := b.close(); closeErr != nil {
		t.Errorf("close: %v", closeErr)
	}
	var out strings.Builder
	b.report.print(&out)
	return b.report, out.String(), err
}

// fakeKVFS makes a topic run with the fake daemon, which needs no mount, below a directory on a disk.
func useFake(t *testing.T) (flags []string) {
	t.Helper()
	dir := t.TempDir()
	if fsType(dir) == "tmpfs" {
		t.Skip("the directory for temporary files is on tmpfs: no disk to measure")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeKVFSEnv, "1")
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v %v", dir, left, err)
		}
	})
	return []string{"-kvfs", self, "-disk", dir, "-sizes", "64KiB,1MiB"}
}

func needMounts(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		t.Skipf("/dev/fuse: %v", err)
	}
}

var digits = regexp.MustCompile(`\d+`)

// pageTables returns the heads of the tables in the block of a topic on the page, by title. Numbers count as equal.
func pageTables(t *testing.T, topic string) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "<!-- bench: "+topic+" -->")
	block, _, _ = strings.Cut(block, "<!-- end -->")
	out, title := map[string]string{}, ""
	for line := range strings.Lines(block) {
		if rest, ok := strings.CutPrefix(line, "**"); ok {
			title, _, _ = strings.Cut(rest, "**")
		} else if strings.HasPrefix(line, "| ") && title != "" {
			out[digits.ReplaceAllString(title, "N")], title = normal(strings.Split(strings.Trim(line, "|\n"), "|")), ""
		}
	}
	return out
}

func normal(head []string) string {
	var cells []string
	for _, c := range head {
		cells = append(cells, digits.ReplaceAllString(strings.TrimSpace(c), "N"))
	}
	return strings.Join(cells, "|")
}

// checkTopic measures a topic and compares the tables with those of the page. Each must have rows, and no cell may be a
// figure that was not measured.
func checkTopic(t *testing.T, topic string, flags ...string) string {
	t.Helper()
	r, text, err := tryTopic(t, topic, flags...)
	if err != nil {
		t.Fatal(err)
	}
	if r.skipped[topic] {
		t.Skip(text)
	}
	want := pageTables(t, topic)
	if len(want) == 0 || len(want) != len(r.tables[topic]) {
		t.Errorf("%d tables, want %d", len(r.tables[topic]), len(want))
	}
	for _, table := range r.tables[topic] {
		if got := normal(table.head); got != want[digits.ReplaceAllString(table.title, "N")] || len(table.rows) == 0 {
			t.Errorf("%s: %d rows, head %s, want %v", table.title, len(table.rows), got, want)
		}
		for _, row := range table.rows {
			if slices.ContainsFunc(row, func(cell string) bool { return strings.Contains(cell, "NaN") || strings.Contains(cell, "Inf") }) {
				t.Errorf("%s: %q", table.title, row)
			}
		}
	}
	return text
}

// Topics run from start to end with real mounts, and their tables are those of the page. (Features B1, B30.)
func TestTopics(t *testing.T) {
	needMounts(t)
	for topic, rows := range map[string][]string{
		"query":    {"| exists, binary ", "| longest_hit, full, 3 windows, JSON "},
		"full":     {"|      huge tmpfs |", "| full, SSD below |"},
		"store":    {"| hot reads, 64 KiB", "| writes over existing names, 16 MiB"},
		"takeover": {"| 100 "},
		"prefetch": {"| prefetch, then 1 reader", "| cold reads, 8 readers"},
		"object":   {"| hot read, a writer and its stores to the bucket |", "| store, blocks a request "},
		"ttft":     {"| memory of kvfs", "| SSD of kvfs"},
	} {
		t.Run(topic, func(t *testing.T) {
			if testing.Short() && (topic == "object" || topic == "ttft") {
				t.Skip("-short: make bench-quick runs the topic")
			}
			mustContain(t, checkTopic(t, topic), rows...)
		})
	}
}

// The topics of the disk tier run from start to end against a daemon with the right interface:
// files are stored, drained, evicted, read and recovered, and everything made is removed. (Features
// A13, A14, B35.)
func TestDiskTopics(t *testing.T) {
	for topic, want := range map[string][]string{
		"cold":       {"| 64 KiB |       8 |", "| 1 MiB  |       1 |"},
		"drain":      {"0.90, quick", "|    100 |"},
		"hotcascade": {"0.90, quick"},
		"recovery": {"eviction of all from memory", "with the index, after a clean stop", "with the index, after SIGKILL",
			"under 5", "under 0.5", "under 1", "recovery_seconds 0.25", " 100 "},
	} {
		t.Run(topic, func(t *testing.T) { mustContain(t, checkTopic(t, topic, useFake(t)...), want...) })
	}
}

func mustContain(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// Blocks left in memory for the next daemon are freed also if that daemon does not start, or does
// not store them. (Feature A13.)
func TestDrainFreesWhatItLeft(t *testing.T) {
	for env, want := range map[string]string{failDiskEnv: "no disk tier today", failDrainEnv: "did not take 1 blocks"} {
		t.Run(env, func(t *testing.T) {
			if _, err := exec.LookPath(fioName); err != nil {
				t.Skip(err)
			}
			t.Setenv(env, "1")
			_, _, err := tryTopic(t, "drain", append(useFake(t), "-sizes", "64KiB")...) // the fake shows what is left
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// What is missing is left out and said: fio that is not there or fails, stores, a disk.
func TestMissing(t *testing.T) {
	bin := t.TempDir() // a PATH without the programs
	t.Run("fio", func(t *testing.T) {
		flags := useFake(t)
		t.Setenv("PATH", bin)
		_, text, err := tryTopic(t, "cold,drain", flags...)
		if err != nil {
			t.Fatal(err)
		}
		mustContain(t, text, "Not measured: cold", "Not measured: drain", `exec: "fio": executable file not found`)
	})
	t.Run("stores", func(t *testing.T) {
		flags := useFake(t)
		t.Setenv("PATH", bin)
		_, text, err := tryTopic(t, "rivals", flags...)
		if err != nil {
			t.Fatal(err)
		}
		mustContain(t, text, "Not measured: rivals")
		for _, w := range wires() {
			mustContain(t, text, "no "+w.name, "apt-get install "+w.program)
		}
	})
	t.Run("disk", func(t *testing.T) {
		if kind := fsType("/dev/shm"); kind != "tmpfs" {
			t.Skip("/dev/shm is " + kind)
		}
		_, text, err := tryTopic(t, "cold,recovery", "-kvfs", "none", "-disk", "/dev/shm")
		if err != nil {
			t.Fatal(err)
		}
		mustContain(t, text, "Not measured: cold", "Not measured: recovery", "skipped: /dev/shm is on tmpfs")
	})
}

// A job ends at its first failure, undoes in reverse order what it did, and tells the line.
func TestJob(t *testing.T) {
	var order []string
	j := (&bench{config: &config{}}).newJob(t.Context(), "t")
	err := j.do(func(j *job) {
		j.later(func() { order = append(order, "first") })
		j.scope(func(j *job) {
			j.later(func() { order = append(order, "inner"); must(unix.EBUSY) })
			must(nil)
		})
		order = append(order, "not reached")
	})
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "topics_test.go:") || !slices.Equal(order, []string{"inner", "first"}) {
		t.Errorf("got %v, %q", err, order)
	}
}

// Each round begins with another side, and the warm-up does not count.
func TestRotate(t *testing.T) {
	j := (&bench{config: &config{}}).newJob(t.Context(), "t")
	var order []string
	one := func(name string) side {
		return side{name, func(round int) float64 { order = append(order, name); return float64(round) }}
	}
	figs := j.rotate(1, 3, []side{one("a"), one("b")})
	if strings.Join(order, "") != "abab"+"ba"+"ab" || !slices.Equal(figs["a"], samples{0, 1, 2}) || figs.over("a", "b") != 1 {
		t.Errorf("got %q, %v", order, figs)
	}
	err := try(func() { j.rotate(0, 1, []side{{"c", func(int) float64 { must(unix.EIO); return 0 }}}) })
	if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "c: ") {
		t.Errorf("got %v", err)
	}
}
