package tiers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestMissesAreNotStores: a look-up counts as a miss unless its process makes the name, and began to at most 100 ms later.
func TestMissesAreNotStores(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), state.Options{Now: clock.now})
	defer w.close(false)
	must(t, w.mkdir("g"))
	last := w.e.Stats().Counters.LookupMisses
	misses := func(what string, want uint64) {
		t.Helper()
		clock.add(101 * time.Millisecond) // all is decided
		now := w.e.Stats()
		if got := now.Counters.LookupMisses - last; got != want || now.Summary.UnknownKeys != now.Counters.LookupMisses {
			t.Errorf("%s: %d misses, want %d; summary %d", what, got, want, now.Summary.UnknownKeys)
		}
		last = now.Counters.LookupMisses
	}
	look := func(pid uint32, names ...string) {
		for _, name := range names {
			if _, err := w.lookup(pid, name); err == nil {
				t.Errorf("%s is there", name)
			}
		}
	}
	look(10, "g/1", "g/1", "g/1.tmp")
	f := w.write(10, "g/1.tmp", "x")
	clock.add(time.Hour) // a slow write
	look(10, "g/1")
	must(t, f.close(), w.rename(10, "g/1.tmp", "g/1", false))
	misses("access, temporary file, rename", 0)

	look(10, "g/2")
	must(t, w.write(10, "g/2", "x").close())
	look(10, "g/dir")
	must(t, w.mkdirBy(10, "g/dir"))
	misses("in place, and a directory", 0)

	look(10, "g/3", "g/other")
	clock.add(101 * time.Millisecond) // to compute it
	look(10, "g/3")
	must(t, w.put(10, "g/3", []byte("x")))
	misses("computed, then stored", 2)

	look(20, "g/4")
	must(t, w.put(10, "g/4", []byte("x")))
	misses("stored by another process", 1)

	for i := range 100_000 {
		look(10, fmt.Sprint("g/none", i))
	}
	misses("many that nobody stores", 100_000)

	look(10, "g/5")
	if got := w.e.Stats().Counters.LookupMisses; got != last {
		t.Errorf("not decided yet: %d misses, want %d", got, last)
	}
	must(t, w.put(10, "g/5", []byte("x")))
	misses("stored, and looked at meanwhile", 0)
	look(10, "g/6")
	misses("a miss after that", 1)
}

// BenchmarkMiss measures look-ups of names that are not there.
func BenchmarkMiss(b *testing.B) {
	w := open(b, shmDir(b), state.Options{})
	defer w.close(false)
	names := make([]string, 1<<16)
	for i := range names {
		names[i] = fmt.Sprint("none", i)
	}
	i := 0
	for b.Loop() {
		w.e.Lookup(index.Root, names[i%len(names)], by(10))
		i++
	}
}
