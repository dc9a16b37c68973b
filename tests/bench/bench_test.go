package main

import (
	"sync/atomic"
	"testing"
	"time"
)

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
