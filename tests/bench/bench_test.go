package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMedian(t *testing.T) {
	for _, row := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		if got := median(row.in); got != row.want {
			t.Errorf("median(%v): got %v, want %v", row.in, got, row.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{"64KiB": 64 * kib, "16MiB": 16 * mib, "3GiB": 3 * gib} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q): got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "64", "64kb", "0MiB", "-1KiB", "9999999999GiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q): got %d, want an error", text, got)
		}
	}
}

// Every goal of the table is reachable under the keys that the rows use.
func TestThroughputGoals(t *testing.T) {
	for topic, sizes := range map[string][]int{"read": {64 * kib, 256 * kib, mib, 4 * mib, 16 * mib}, "fresh": {64 * kib, mib, 4 * mib}} {
		for _, size := range sizes {
			if throughputGoal(topic, 1, size) == 0 {
				t.Errorf("%s, 1 thread, %s: no goal", topic, sizeText(size))
			}
		}
	}
	if got := throughputGoal("read", 4, 4*mib); got != 1 {
		t.Errorf("read, 4 threads, 4 MiB: got %v, want 1", got)
	}
}

// A pass with once does each index once, on any number of threads. A pass without more time
// continues where the last one stopped.
func TestPassesCoverAllIndexes(t *testing.T) {
	p, err := newPool(3, kib)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	const count = 10
	var done [count]atomic.Int32
	w := newWork(3, count, func(_ *client, i int) error {
		done[i].Add(1)
		return nil
	})
	if err := p.once(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for i := range done {
		if got := done[i].Load(); got != 1 {
			t.Errorf("index %d: done %d times, want 1", i, got)
		}
	}
	for range count {
		if _, err := p.run(t.Context(), w, time.Nanosecond); err != nil {
			t.Fatal(err)
		}
	}
	for i := range done {
		if got := done[i].Load(); got < 2 {
			t.Errorf("index %d: done %d times after short passes, want 2 or more", i, got)
		}
	}
}

func TestPassStops(t *testing.T) {
	p, err := newPool(2, kib)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	w := newWork(2, 4, func(*client, int) error { cancel(); return nil })
	if _, err := p.run(ctx, w, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v, want %v", err, context.Canceled)
	}
	w = newWork(2, 4, func(*client, int) error { return unix.ENOENT })
	if _, err := p.run(t.Context(), w, time.Hour); !errors.Is(err, unix.ENOENT) {
		t.Errorf("failing: got %v, want %v", err, unix.ENOENT)
	}
}

// The client finds what it stored, and notices bytes of another block.
func TestBlocks(t *testing.T) {
	p, err := newPool(1, 64*kib)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	set, err := newBlockSet(&target{name: shmName, dir: t.TempDir()}, "group", 4*kib, 0, 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := set.fill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dir, err := unix.BytePtrFromString(set.dir)
	if err != nil {
		t.Fatal(err)
	}
	c := p.clients[0]
	if n, err := c.readDir(dir); n != 20 || err != nil {
		t.Errorf("readDir: got %d, %v, want 20", n, err)
	}
	if err := set.stat(c, 3); err != nil {
		t.Errorf("stat: %v", err)
	}
	if err := set.read(c, 3); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := c.verify(4, set.size); err == nil {
		t.Error("verify: took block 3 for block 4")
	}
	if err := set.remove(); err != nil {
		t.Errorf("remove: %v", err)
	}
}

func TestTable(t *testing.T) {
	table := &table{title: "T", note: "(n)", head: []string{"block", "GB/s"}}
	table.add("64 KiB", "1.00")
	var out strings.Builder
	table.print(&out)
	want := "**T** (n)\n\n| block  | GB/s |\n| ------ | ---: |\n| 64 KiB | 1.00 |\n"
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}
