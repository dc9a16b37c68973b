package nixl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

const poolFiles = 96

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{"pool": startPool(poolFiles), "hicache": startHicache}))
}

// TestHicache has two instances of SGLang share the directory. The directories
// are made at the start of the engine only, so memory.keep is set: without it
// the empty ones would not come back after a clean stop.
func TestHicache(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB", Flags: []string{"--memory-keep"}}, storage)
	c := replay.Chat{
		Seed: replay.Seed(t), Conversations: replay.Scale(40), Turns: 3, Concurrent: 8, TurnBlocks: 2, BlockBytes: 256 << 10, Groups: 2,
	}
	replay.Life{Engine: "hicache", Dir: storage, Processes: 2, Chat: c}.Run(t, d)
	wantNotFull(t, d)

	replay.Settle(t, d)
	before := d.Status().Secondary(t, "disk").StoredBytes
	replay.Start(t, "hicache", d.Path(storage)).Run(c.Last()).Want(t, "loads alone", false)
	replay.Settle(t, d)
	if after := d.Status().Secondary(t, "disk").StoredBytes; after > before+uint64(c.Bytes()/10) {
		t.Errorf("opening for writing and only reading copied %d MiB to the SSD", (after-before)>>20)
	}
}

// wantNotFull fails if the engine's cleaner would begin, at 80 % in use.
func wantNotFull(t *testing.T, d *harness.Daemon) {
	t.Helper()
	var st unix.Statfs_t
	must(t, unix.Statfs(d.Path(storage), &st))
	if used := 1 - float64(st.Bavail)/float64(st.Blocks); used >= 0.8 {
		t.Errorf("the file system looks %.0f %% full", 100*used)
	}
}

// TestFullCache fills memory and SSD: the file system does not look full for it,
// so the engine's cleaner does not begin to remove what it finds.
func TestFullCache(t *testing.T) {
	harness.KvfsOnly(t, "statfs of a cache")
	d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "64MiB"}, storage)
	c := replay.Chat{
		Seed: replay.Seed(t), Conversations: 120, Turns: 2, Concurrent: 8, TurnBlocks: 2, BlockBytes: 256 << 10, Groups: 2,
	}
	tally := replay.Start(t, "hicache", d.Path(storage)).Run(c)
	tally.Want(t, "a cache that is full", true)
	replay.Settle(t, d)
	if s := d.Status().Secondary(t, "disk"); s.Evicted == 0 {
		t.Errorf("nothing was evicted from the SSD: %+v", s)
	}
	wantNotFull(t, d)
}

// pinned is the configuration that the recipe gives for pools.
const pinned = "groups: {nixl: {pinned: true, quota: 26MiB, block_size: 256KiB}, dynamo: {pinned: true, quota: 26MiB}}"

// beside runs fn, and HiCache on another group, on more than the rest of memory
// holds.
func beside(t *testing.T, fn func(d *harness.Daemon, seed uint64)) *harness.Daemon {
	t.Helper()
	harness.KvfsOnly(t, "pinned groups")
	d := replay.Mount(t, harness.Options{MemorySize: "96MiB", Disk: "1GiB", Config: pinned}, storage)
	for _, group := range []string{"nixl", "dynamo"} {
		must(t, os.Mkdir(d.Path(group), 0o777))
		must(t, os.Chmod(d.Path(group), 0o777)) // the umask
	}
	other := replay.Start(t, "hicache", d.Path(storage))
	c := replay.Chat{
		Seed: replay.Seed(t), Conversations: 60, Turns: 3, Concurrent: 8, TurnBlocks: 2, BlockBytes: 256 << 10, Groups: 2,
	}
	other.Begin(c)
	fn(d, c.Seed+1)
	other.End().Want(t, "the other engine", false)
	if _, counters := replay.Figures(t, d); counters.Evicted == 0 {
		t.Error("nothing was evicted: the working set is too small")
	}
	return d
}

// TestPool uses LMCache's pool while memory is short. A pool that exceeds the
// quota fails at its start, as the size of its blocks is known.
func TestPool(t *testing.T) {
	d := beside(t, func(d *harness.Daemon, seed uint64) {
		p := replay.Start(t, "pool", d.Path("nixl"))
		c := replay.Chat{Seed: seed, Conversations: 24, Turns: 3, Concurrent: 8, TurnBlocks: 2, BlockBytes: 256 << 10}
		for range 3 {
			tally := p.Run(c)
			tally.Want(t, "pool", false)
			if tally.Loaded == 0 || tally.Stored <= poolFiles {
				t.Errorf("loaded %d, stored %d: want files to be used again", tally.Loaded, tally.Stored)
			}
			c.Seed++
		}
	})
	if _, err := startPool(poolFiles)(d.Path("nixl")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a second pool: %v, want ENOSPC", err)
	}
}

// TestDynamo uses Dynamo's disk tier, while memory is short. A tier that exceeds
// the quota fails at its start.
func TestDynamo(t *testing.T) {
	beside(t, func(d *harness.Daemon, seed uint64) {
		const blocks, block = 12, 1 << 20
		for _, openDirect := range []bool{false, true} {
			if _, err := openDynamo(d.Path("dynamo"), 64<<20, openDirect); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("a tier of twice the quota: %v, want ENOSPC", err)
			}
			f, err := openDynamo(d.Path("dynamo"), blocks*block, openDirect)
			must(t, err)
			defer f.Close()
			swap(t, f, rand.New(rand.NewPCG(seed, 0)), blocks, block)
		}
	})
}

// swap writes and reads blocks at random.
func swap(t *testing.T, f replay.File, rng *rand.Rand, blocks, block int) {
	t.Helper()
	p := replay.Buffer(block)
	in := map[int]string{}
	var aio queue
	at := func(i int, write bool) []replay.Transfer {
		ts := split(f, write, p)
		for j := range ts {
			ts[j].Off += int64(i * block)
		}
		return ts
	}
	for n := range 200 {
		i := rng.IntN(blocks)
		if name, ok := in[i]; ok && rng.IntN(2) == 0 {
			must(t, aio.do(at(i, false)))
			must(t, replay.Check(p, name))
			continue
		}
		in[i] = fmt.Sprint(n)
		replay.Fill(p, in[i])
		must(t, aio.do(at(i, true)))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
