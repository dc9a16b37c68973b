package vllm

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// What the tier lacks, and kvfs gives to it as it is: a size, checksums, deadlines, and loads that stores do not stop.

// TestTenth stores ten times as much as memory and SSD hold together. Nothing fails, least of all with ENOSPC, no tier
// is ever over its size, nor the files on the SSD over theirs, and every hit is right (G4).
func TestTenth(t *testing.T) {
	const memory, disk = 16 << 20, 32 << 20
	d := replay.Mount(t, harness.Options{
		MemorySize: "16MiB", Disk: "32MiB", Flags: []string{"--disk-slab-size", "1MiB"},
	}, rootAt)
	c := replay.Chat{Seed: replay.Seed(t), Conversations: 40, Turns: 3, Concurrent: 16, TurnBlocks: 16, SharedBlocks: 8, BlockBytes: blockBytes}
	if c.Bytes() < 10*(memory+disk) {
		t.Fatalf("the chat has %d MiB, want ten times the mount", c.Bytes()>>20)
	}
	engine := replay.Start(t, "fs", d.Path(rootAt))
	engine.Begin(c)
	done := make(chan replay.Tally, 1)
	go func() { done <- engine.End() }() // ends with the chat
	var tally replay.Tally
	for running := true; running; {
		wantWithin(t, d, disk)
		select {
		case tally = <-done:
			running = false
		case <-time.After(20 * time.Millisecond): // between two looks
		}
	}
	tally.Want(t, "ten times the mount", true)
	_, counters := replay.Figures(t, d)
	s := d.Status().Secondary(t, "disk")
	if counters.NoSpace+counters.Poisoned > 0 || counters.Evicted == 0 || s.Evicted == 0 || tally.Loaded == 0 {
		t.Errorf("counters %+v, evicted from disk %d, loaded %d; want evictions, loads and no failures", counters, s.Evicted, tally.Loaded)
	}
}

// wantWithin fails the test if a tier is over its size now.
func wantWithin(t *testing.T, d *harness.Daemon, disk int64) {
	t.Helper()
	for _, tier := range d.Status().Tiers {
		if tier.UsedBytes > tier.CapacityBytes {
			t.Errorf("%s has %d bytes, its size is %d", tier.Name, tier.UsedBytes, tier.CapacityBytes)
		}
	}
	var used int64
	filepath.WalkDir(d.DiskDir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // gone already
		}
		if info, err := e.Info(); err == nil {
			used += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	if used > disk {
		t.Errorf("the files of the SSD tier take %d bytes, its size is %d", used, disk)
	}
}

// TestFlippedByte changes one byte of a block on the SSD. The block is a miss and is counted; the engine computes and
// stores it again, and has it from then on. The others are hits (F4).
func TestFlippedByte(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "64MiB", Disk: "256MiB"}, rootAt)
	c := replay.Chat{Seed: replay.Seed(t), Conversations: 8, Turns: 1, Concurrent: 4, TurnBlocks: 4, BlockBytes: blockBytes}
	engine := replay.Start(t, "fs", d.Path(rootAt))
	engine.Run(c).Want(t, "stored", false)
	replay.Settle(t, d)
	replay.Evict(t, d)
	last := len(c.Prompt(3, 0)) - 1
	flip(t, d.DiskDir, content(c.Prompt(3, 0)[last]))
	tally := engine.Run(c)
	tally.Want(t, "one is damaged", true)
	if got, all := tally.Loaded, c.Blocks(); got != all-1 || tally.Stored != 1 { // a read ahead may have found it before the look-up
		t.Errorf("%d of %d loaded, %d stored; want one to be a miss and stored again", got, all, tally.Stored)
	}
	if s := d.Status().Secondary(t, "disk"); s.Corrupt != 1 {
		t.Errorf("%d corrupt blocks are counted, want 1", s.Corrupt)
	}
	tally = engine.Run(c)
	tally.Want(t, "computed again", false)
	if tally.Loaded != c.Blocks() {
		t.Errorf("%d of %d loaded", tally.Loaded, c.Blocks())
	}
}

// flip changes one byte in the middle of p in the file of a directory that has it.
func flip(t *testing.T, dir string, p []byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		must(t, err)
		at := bytes.Index(text, p)
		if at < 0 {
			continue
		}
		at += len(p) / 2
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteAt([]byte{text[at] ^ 1}, int64(at))
		must(t, err)
		must(t, f.Sync())
		return
	}
	t.Fatal("the block is not on the SSD")
}

// TestHangingDevice has a device that answers neither reads nor writes. All loads of the 32 threads that want blocks
// from it are misses, stores go on, and so do loads from memory. Once the device answers again, its blocks are hits (F4).
func TestHangingDevice(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{Flags: []string{"--promotion-open-deadline", "200ms"}})
	engine := replay.Start(t, "fs", ownDir(t, d.Dir))
	c := replay.Chat{Seed: replay.Seed(t), Conversations: 64, Turns: 1, Concurrent: 32, TurnBlocks: 2, BlockBytes: blockBytes}
	engine.Run(c).Want(t, "stored", false)
	replay.Settle(t, d)
	replay.Evict(t, d)
	g.Hold()
	g.HoldWrites()
	tally := within(t, "the loads from the hanging device", engine, c)
	tally.Want(t, "the device hangs", true)
	if tally.Loaded != 0 || tally.Broken != c.Conversations {
		t.Errorf("%d loaded, %d misses, want none and %d", tally.Loaded, tally.Broken, c.Conversations)
	}
	other := c
	other.Seed++
	within(t, "the stores", engine, other).Want(t, "stored beside it", false)
	tally = within(t, "the loads from memory", engine, other)
	tally.Want(t, "from memory", false)
	if tally.Loaded != other.Blocks() {
		t.Errorf("%d of %d loaded from memory", tally.Loaded, other.Blocks())
	}
	g.Release()
	harness.Poll(t, "the blocks on the device are hits again", func() bool {
		tally := engine.Run(c)
		return tally.Failed == 0 && tally.Loaded == c.Blocks()
	})
}

// ownDir makes a directory of the engine's, which runs as another user.
func ownDir(t *testing.T, dir string) string {
	t.Helper()
	dir = filepath.Join(dir, rootAt)
	must(t, os.Mkdir(dir, 0o777))
	must(t, os.Chmod(dir, 0o777))
	return dir
}

// within runs a chat that must not hang.
func within(t *testing.T, what string, engine *replay.Process, c replay.Chat) replay.Tally {
	t.Helper()
	engine.Begin(c)
	done := make(chan replay.Tally, 1)
	go func() { done <- engine.End() }() // ends with the chat, or with the process at the end of the test
	select {
	case tally := <-done:
		return tally
	case <-time.After(harness.Deadline):
		t.Fatalf("%s: not back after %v", what, harness.Deadline)
	}
	panic("unreachable")
}

// TestSlowDevice stores without a pause to an SSD that moves 64 MiB a second in the order in which it is asked, and
// meanwhile loads from it. Every block comes. The log says how much longer the loads take than without stores, on kvfs
// and with the tier on the device itself: docs/engines/vllm.md has the factors of a quiet machine (F4).
func TestSlowDevice(t *testing.T) {
	const rate = 64 << 20
	for _, c := range []struct {
		name, memory string
		queued       int64 // bytes that wait for the SSD when the loads begin
	}{{"kvfs", "1GiB", 1}, {"kvfs, memory full", "64MiB", 8 << 20}} {
		t.Run(c.name, func(t *testing.T) {
			d, g := gate.Mount(t, harness.Options{MemorySize: c.memory, Disk: "1GiB", Flags: []string{"--mount-write-timeout", "1m"}})
			cold := func() {
				replay.Settle(t, d)
				replay.Evict(t, d)
			}
			besideStores(t, g, ownDir(t, d.Dir), rate, cold, func() bool { return d.Status().Secondary(t, "disk").QueuedBytes > c.queued })
			s, n := replay.Figures(t, d)
			if s.DiskHits == 0 || s.Failed+n.NoSpace+n.Poisoned > 0 {
				t.Errorf("%d hits on the SSD, %d failed, %+v", s.DiskHits, s.Failed, n)
			}
		})
	}
	t.Run("the device itself", func(t *testing.T) {
		g := gate.New(t)
		besideStores(t, g, ownDir(t, g.Dir), rate, func() {}, func() bool { return g.Behind() > 0 })
	})
}

// besideStores loads blocks from a slow device, alone and beside stores. After cold only the device has them; busy says
// that the stores are ahead of it.
func besideStores(t *testing.T, g *gate.Gate, root string, rate int64, cold func(), busy func() bool) {
	t.Helper()
	loads, stores := replay.Start(t, "fs", root), replay.Start(t, "fs", root)
	c := replay.Chat{Seed: replay.Seed(t), Conversations: 16, Turns: 1, Concurrent: 1, TurnBlocks: 4, BlockBytes: blockBytes}
	other := c
	other.Seed++
	for _, chat := range []replay.Chat{c, other} {
		loads.Run(chat).Want(t, "stored", false)
	}
	cold()
	g.Slow(rate)
	load := func(what string, c replay.Chat) time.Duration {
		t.Helper()
		began := time.Now()
		tally := within(t, what, loads, c)
		took := time.Since(began)
		tally.Want(t, what, false)
		if tally.Loaded != c.Blocks() {
			t.Errorf("%s: %d of %d loaded", what, tally.Loaded, c.Blocks())
		}
		return took
	}
	alone := load("loads alone", c)
	storm := c
	storm.Seed += 2
	storm.Conversations, storm.Concurrent = 320, 16
	stores.Begin(storm)
	harness.Poll(t, "the stores are ahead of the device", busy)
	beside := load("loads beside stores", other)
	t.Logf("%d MiB loaded in %v alone and in %v beside stores: factor %.1f; the device is still busy: %v",
		c.Bytes()>>20, alone, beside, beside.Seconds()/alone.Seconds(), busy())
	stores.End().Want(t, "stores", false)
}
