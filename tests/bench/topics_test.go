package main

import (
	"os"
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

func mustContain(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
