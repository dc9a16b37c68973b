package replay

import (
	"errors"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// storeSoon is how long after a look-up of a name its store may begin, so that the look-up is no miss: docs/metrics.md.
const storeSoon = 100 * time.Millisecond

// Misses has one worker of an engine store blocks, read them, and miss others that it then computes and stores. The
// daemon must count what the engine asked for: what an engine looks up in order to store it is no miss.
func Misses(t *testing.T, d *harness.Daemon, maker Maker, dir string) {
	t.Helper()
	workers, err := maker(d.Path(dir))
	if err != nil {
		t.Fatal(err)
	}
	e := workers(0)
	c := Chat{Seed: Seed(t), Conversations: 2, Turns: 1, TurnBlocks: 20, BlockBytes: 64 << 10}
	p, before, late := Buffer(c.BlockBytes), d.Status().Reads, int64(0)
	store := func(b Block) {
		Fill(p, b.Name())
		began := time.Now()
		if err := e.Store(b, p); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > storeSoon { // a busy machine
			late += 10
		}
	}
	want := func(what string, hits, misses int64) {
		t.Helper()
		time.Sleep(2 * storeSoon) // reason: only time decides that no store follows a look-up
		r := d.Status().Reads
		if h, m := r.Served-before.Served, r.Misses-before.Misses; h != hits || m < misses || m > misses+late {
			t.Errorf("%s: %d hits and %d misses, want %d and %d", what, h, m, hits, misses)
		}
	}
	stored, missed := c.Prompt(0, 0), c.Prompt(1, 0)
	for _, b := range stored {
		store(b)
	}
	want("stored", 0, 0)
	for _, b := range stored {
		if err := errors.Join(e.Load(b, p), Check(p, b.Name())); !e.Lookup(b) || err != nil {
			t.Errorf("%s: %v", b.Name(), err)
		}
	}
	want("read", 20, 0)
	for _, b := range missed {
		if e.Lookup(b) {
			t.Errorf("%s is there", b.Name())
		}
	}
	want("looked up", 20, 20)
	for _, b := range missed {
		store(b)
	}
	want("computed and stored", 20, 20)
}
