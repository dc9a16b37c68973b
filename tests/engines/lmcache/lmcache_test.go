package lmcache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

const (
	diskMax = 24 << 20 // max_local_disk_size
	pool    = "groups: {lmcache-disk: {pinned: true, quota: 28MiB}}"
)

func TestMain(m *testing.M) {
	os.Exit(replay.Main(m, map[string]replay.Maker{
		"fs":            startFS(""),
		"fs-tmp":        startFS("tmp"),
		"disk":          startDisk(diskMax, false),
		"disk-odirect":  startDisk(diskMax, true),
		"native":        startNative(false),
		"native-direct": startNative(true),
	}))
}

// TestTwoEngines has two processes store and load the same chunks by FSConnector,
// with the same temporary names.
func TestTwoEngines(t *testing.T) {
	for _, engine := range []string{"fs", "fs-tmp"} {
		t.Run(engine, func(t *testing.T) {
			d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB", Flags: keep(engine == "fs-tmp")}, remote)
			c := replay.Chat{
				Seed: replay.Seed(t), Conversations: replay.Scale(32), Turns: 3, Concurrent: 8, TurnBlocks: 2, SharedBlocks: 2, BlockBytes: 512 << 10,
			}
			replay.Life{Engine: engine, Dir: remote, Processes: 2, Chat: c}.Run(t, d)
			names, err := filepath.Glob(d.Path(remote, "*.data"))
			if err != nil || len(names) < c.Blocks() {
				t.Errorf("glob *.data: %d names, %v; want at least %d", len(names), err, c.Blocks())
			}
			prompt := c.Prompt(5, 2)
			for i := range prompt {
				prompt[i].Hash = prompt[i].Hash[:16]
			}
			replay.Template(t, d, "lmcache.md", Template, prompt)
		})
	}
}

// keep returns the flags of a daemon whose engines have made a directory for
// temporary files at their start, and never will again: without memory.keep an
// empty directory is gone after a clean stop.
func keep(tmpDir bool) []string {
	if tmpDir {
		return []string{"--memory-keep"}
	}
	return nil
}

// TestNative runs the native adapter, 4 workers, with and without O_DIRECT, of a model with two groups.
func TestNative(t *testing.T) {
	for engine, size := range map[string]int{"native": 512<<10 + 28, "native-direct": 512 << 10} {
		t.Run(engine, func(t *testing.T) {
			d := replay.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "1GiB", Flags: keep(true)}, remote)
			c := replay.Chat{Seed: replay.Seed(t), Conversations: replay.Scale(16), Turns: 3, Concurrent: 4, TurnBlocks: 2, BlockBytes: size, Groups: 2}
			replay.Life{Engine: engine, Dir: remote, Processes: 1, Chat: c}.Run(t, d)
			replay.Template(t, d, "lmcache.md", TemplateMP, c.Prompt(5, 2))
		})
	}
}

// TestLocalDisk keeps the index in the memory of the engine and the files in a
// pinned group, while another process fills the rest of memory. The engine
// evicts by itself and never misses a file; nor does it after the daemon was
// killed, or stopped with memory.keep.
func TestLocalDisk(t *testing.T) {
	harness.KvfsOnly(t, "pinned groups")
	for _, engine := range []string{"disk", "disk-odirect"} {
		t.Run(engine, func(t *testing.T) {
			d := replay.Mount(t, harness.Options{
				MemorySize: "64MiB", Disk: "1GiB", Config: pool, Flags: []string{"--memory-keep"},
			}, remote)
			must(t, os.Mkdir(d.Path("lmcache-disk"), 0o777))
			must(t, os.Chmod(d.Path("lmcache-disk"), 0o777)) // the umask
			disk := replay.Start(t, engine, d.Path("lmcache-disk"))
			other := replay.Start(t, "fs", d.Path(remote))
			c := replay.Chat{
				Seed: replay.Seed(t), Conversations: 24, Turns: 3, Concurrent: 8, TurnBlocks: 2, BlockBytes: 256 << 10,
			}
			more := c
			more.Conversations, more.Seed = 48, c.Seed+1
			run := func(what string) {
				t.Helper()
				other.Begin(more)
				for range 2 {
					tally := disk.Run(c)
					tally.Want(t, what, false)
					if tally.Loaded == 0 {
						t.Errorf("%s: nothing was loaded", what)
					}
					c.Seed += 2
				}
				other.End().Want(t, "the other engine", false)
				more.Seed += 2
			}
			run("first time")
			for _, stop := range []string{"SIGKILL", "SIGTERM"} {
				if stop == "SIGKILL" {
					d.Kill()
				}
				d.Restart()
				before := c
				before.Seed -= 2
				disk.Run(before).Want(t, "what was stored before "+stop, false)
				run("after " + stop)
			}
			if got := total(t, d.Path("lmcache-disk")); got > diskMax || got < diskMax/2 {
				t.Errorf("%d bytes are left, want at most %d, and at least half of it", got, diskMax)
			}
			// An engine that starts anew knows of no file: what is left has to be
			// removed, or it takes up the quota.
			must(t, os.RemoveAll(d.Path("lmcache-disk")))
			must(t, os.Mkdir(d.Path("lmcache-disk"), 0o777))
			must(t, os.Chmod(d.Path("lmcache-disk"), 0o777)) // the umask
			replay.Start(t, engine, d.Path("lmcache-disk")).Run(c).Want(t, "a new engine", false)
		})
	}
}

func total(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	names, err := replay.Scan(dir)
	must(t, err)
	for _, n := range names {
		st, err := replay.Stat(dir + "/" + n)
		must(t, err)
		bytes += st.Size
	}
	return bytes
}

// TestOutsideEviction shows why local disk needs a pinned group: in another one
// kvfs evicts what the index has, and the engine fails.
func TestOutsideEviction(t *testing.T) {
	harness.KvfsOnly(t, "eviction")
	d := harness.Mount(t, harness.Options{MemorySize: "16MiB", Flags: []string{
		"--mount-lookup-lease", "0", "--mount-entry-timeout", "0", "--mount-attr-timeout", "0", "--memory-burst-gap", "0s",
	}})
	workers, err := startDisk(diskMax, false)(d.Path("plain"))
	must(t, err)
	e := workers(0)
	c := replay.Chat{Seed: replay.Seed(t), Turns: 1, TurnBlocks: 80, BlockBytes: 256 << 10}
	p := replay.Buffer(c.BlockBytes)
	blocks := c.Prompt(0, 0)
	for _, b := range blocks {
		replay.Fill(p, b.Name())
		must(t, e.Store(b, p))
	}
	if !e.Lookup(blocks[0]) {
		t.Fatal("the index has lost a block")
	}
	if err := e.Load(blocks[0], p); !errors.Is(err, unix.ENOENT) || errors.Is(err, replay.ErrMiss) {
		t.Errorf("load of an evicted block: %v, want ENOENT, which is no miss", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
