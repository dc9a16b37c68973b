package main

import (
	"context"
	"errors"
	"slices"
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

// newTestJob is a job with a pool.
func newTestJob(t *testing.T, threads, bufferBytes int) *job {
	t.Helper()
	b := &bench{config: &config{}, report: newReport(), pool: newPool(threads, bufferBytes), pattern: make([]byte, bufferBytes)}
	fillPattern(b.pattern)
	t.Cleanup(b.pool.close)
	return b.newJob(t.Context(), "t")
}

// A pass with once does each index once, on any number of threads. A pass without more time
// continues where the last one stopped.
func TestPassesCoverAllIndexes(t *testing.T) {
	j := newTestJob(t, 3, kib)
	const count = 10
	var done [count]atomic.Int32
	w := newWork(3, count, func(_ *client, i int) { done[i].Add(1) })
	j.whole(w)
	for i := range done {
		if got := done[i].Load(); got != 1 {
			t.Errorf("index %d: done %d times, want 1", i, got)
		}
	}
	for range count {
		j.pass(w, time.Nanosecond)
	}
	for i := range done {
		if got := done[i].Load(); got < 2 {
			t.Errorf("index %d: done %d times after short passes, want 2 or more", i, got)
		}
	}
}

func TestPassStops(t *testing.T) {
	j := newTestJob(t, 2, kib)
	var cancel context.CancelFunc
	j.ctx, cancel = context.WithCancel(t.Context())
	err := try(func() { j.pass(newWork(2, 4, func(*client, int) { cancel() }), time.Hour) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v, want %v", err, context.Canceled)
	}
	j.ctx = t.Context()
	err = try(func() { j.pass(newWork(2, 4, func(*client, int) { must(unix.ENOENT) }), time.Hour) })
	if !errors.Is(err, unix.ENOENT) {
		t.Errorf("failing: got %v, want %v", err, unix.ENOENT)
	}
}

// The client finds what it stored, and notices bytes of another block.
func TestBlocks(t *testing.T) {
	j := newTestJob(t, 1, 64*kib)
	set := newBlockSet(&target{name: shmName, dir: t.TempDir()}, "group", 4*kib, 0, 20)
	j.fill(set)
	c := j.pool.clients[0]
	if n := c.readDir(set.dir); n != 20 {
		t.Errorf("readDir: got %d, want 20", n)
	}
	set.stat(c, 3)
	set.read(c, 3)
	if err := try(func() { checkMarks(c.buf[:set.size], 4) }); err == nil {
		t.Error("took block 3 for block 4")
	}
	if err := try(func() { set.read(c, 3); verifyFirst(c.buf, 3) }); err == nil {
		t.Error("took marks of a block for those of a page")
	}
	j.storeMarked(set)
	j.once(1, set.count, j.readWhole(set))
	set.remove()
}

func TestTable(t *testing.T) {
	table := &table{title: "T", note: "(n)", head: []string{"block", "GB/s"}}
	table.row("64 KiB", samples{3, 1, 0.5})
	var out strings.Builder
	table.print(&out)
	want := "**T** (n)\n\n| block  | GB/s |\n| ------ | ---: |\n| 64 KiB | 1.00 |\n"
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// A pass over a queue does each index once and then ends.
func TestSequence(t *testing.T) {
	order := []int{5, 3, 1, 0, 2, 4, 6}
	done := make(chan int, 2*len(order))
	newTestJob(t, 4, kib).inOrder(4, order, func(_ *client, i int) { done <- i })
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

func TestFlags(t *testing.T) {
	c, err := parseFlags([]string{"-quick", "-only", "cold,drain"})
	if err != nil || c.recover != 20_000 || c.diskBytes > 64*mib || !slices.Equal(c.only, []string{"cold", "drain"}) {
		t.Errorf("-quick: got %+v, %v, want a smoke test's", c, err)
	}
	for _, args := range [][]string{{"-rounds", "0"}, {"-only", "warm"}, {"-only", ""}, {"-sizes", "7"}, {"-threads", "65"}, {"-docs", "x", "-quick"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v: want an error", args)
		}
	}
}
