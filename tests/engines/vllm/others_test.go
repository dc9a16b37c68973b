package vllm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

// pinnedPools is the configuration that the recipe gives for what must not be
// evicted.
const pinnedPools = "groups: {prompts: {pinned: true, quota: 12MiB}, swap: {pinned: true, quota: 16MiB}}"

// churn runs the file system tier over more than memory holds until stop is
// closed, and returns what waits for its end.
func churn(t *testing.T, d *harness.Daemon, stop <-chan struct{}) (wait func()) {
	t.Helper()
	p := replay.Start(t, "fs", d.Path(rootAt))
	c := replay.Chat{Seed: replay.Seed(t), Conversations: 32, Turns: 3, Concurrent: 8, TurnBlocks: 4, BlockBytes: blockBytes}
	var wg sync.WaitGroup
	wg.Go(func() { // ends after the chat in which stop is closed
		for {
			tally := p.Run(c)
			if tally.Failed > 0 {
				t.Errorf("churn: %q", tally.Errors)
			}
			c.Seed++
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	return wg.Wait
}

// TestExampleConnector saves prompts as directories in a pinned group, beside a
// group that is evicted all the time. A directory that is there has all of its
// layers. When the quota is used up saving fails; the operator removes the
// oldest directory as a whole.
func TestExampleConnector(t *testing.T) {
	harness.KvfsOnly(t, "pinned groups")
	d := replay.Mount(t, harness.Options{MemorySize: "48MiB", Disk: "1GiB", Config: pinnedPools}, rootAt)
	stop := make(chan struct{})
	wait := churn(t, d, stop)
	e := exampleConnector{root: d.Path("prompts"), layers: 4, bytes: 512<<10 + 1000}
	oldest, full := 0, 0
	for prompt := range 24 {
		err := e.save(prompt)
		for errors.Is(err, unix.ENOSPC) && oldest < prompt {
			full++
			must(t, os.RemoveAll(e.dir(oldest)))
			oldest++
			must(t, os.RemoveAll(e.dir(prompt)))
			err = e.save(prompt)
		}
		must(t, err)
		for p := range prompt + 1 {
			if e.exists(p) != (p >= oldest) {
				t.Errorf("directory of prompt %d: %v, want %v", p, e.exists(p), p >= oldest)
			}
			if p >= oldest {
				must(t, e.load(p))
			}
		}
	}
	close(stop)
	wait()
	if full == 0 {
		t.Error("the quota was never used up")
	}
	d.Kill() // what is in memory is taken over, pinned groups too
	d.Restart()
	for p := oldest; p < 24; p++ {
		must(t, e.load(p))
	}
}

// TestDiskBackend keeps blocks in the slots of one large pinned file, which two
// threads read and write in random order, while another group is evicted all
// the time.
func TestDiskBackend(t *testing.T) {
	harness.KvfsOnly(t, "pinned groups")
	const slots, slot = 32, 512 << 10
	d := replay.Mount(t, harness.Options{MemorySize: "48MiB", Disk: "1GiB", Config: pinnedPools}, rootAt)
	if _, err := openDisk(d.Path("swap"), 2*slots, slot, 32); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a file of twice the quota: %v, want ENOSPC at its start", err)
	}
	back, err := openDisk(d.Path("swap"), slots, slot, 32)
	must(t, err)
	stop := make(chan struct{})
	wait := churn(t, d, stop)
	seed := replay.Seed(t)
	var wg sync.WaitGroup
	for thread := range 2 {
		wg.Go(func() { swapSlots(t, back, rand.New(rand.NewPCG(seed, uint64(thread))), thread, slots, slot) })
	}
	wg.Wait()
	close(stop)
	wait()
	must(t, back.end())
	// The kernel tells the daemon of the last close in its own time.
	harness.Poll(t, "after the end nothing is used", func() bool { return groupBytes(t, d, "swap") == 0 })
}

// swapSlots stores and loads in every second slot.
func swapSlots(t *testing.T, back *diskBackend, rng *rand.Rand, thread, slots, slot int) {
	p := replay.Buffer(slot)
	in := map[int]string{}
	for i := range 300 {
		s := rng.IntN(slots/2)*2 + thread
		if name, ok := in[s]; ok && rng.IntN(2) == 0 {
			if err := errors.Join(back.load(s, p), replay.Check(p, name)); err != nil {
				t.Errorf("slot %d: %v", s, err)
			}
			continue
		}
		in[s] = fmt.Sprint(thread, i)
		replay.Fill(p, in[s])
		if err := back.store(s, p); err != nil {
			t.Errorf("slot %d: %v", s, err)
		}
	}
}

// groupBytes returns what a group uses, by the status.
func groupBytes(t *testing.T, d *harness.Daemon, name string) int64 {
	t.Helper()
	groups, _ := d.Status().Raw["groups"].([]any)
	for _, g := range groups {
		if m, _ := g.(map[string]any); m["name"] == name {
			used, _ := m["used_bytes"].(float64)
			return int64(used)
		}
	}
	return 0
}
