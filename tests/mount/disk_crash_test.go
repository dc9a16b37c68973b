package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

const (
	diskRoundsDefault  = 20 // KVFS_TEST_ROUNDS sets another number
	diskRoundsRace     = 8
	diskCrashNamesEach = 12
)

// diskRounds returns how many rounds to run.
func diskRounds(t *testing.T) int {
	t.Helper()
	n := diskRoundsDefault
	if harness.RaceEnabled {
		n = diskRoundsRace
	}
	if s := os.Getenv("KVFS_TEST_ROUNDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			t.Fatalf("KVFS_TEST_ROUNDS: %q", s)
		}
	}
	t.Logf("KVFS_TEST_ROUNDS=%d", n)
	return n
}

// diskName is a name with one writer, and what that writer knows of it.
type diskName struct {
	crashName
	store   func(n *diskName, p []byte) error
	durable uint64 // version that an fsync has confirmed; 0 if none since the last removal
}

// diskStores are the ways to store a version; those that sync say so by setting
// durable.
var diskStores = []struct {
	name    string
	inPlace bool
	store   func(n *diskName, p []byte) error
}{
	{"temp and rename", false, func(n *diskName, p []byte) error { return n.rename(p, false) }},
	{"in place", true, func(n *diskName, p []byte) error { return os.WriteFile(n.path, p, 0o644) }},
	{"temp, fsync and rename", false, func(n *diskName, p []byte) error {
		err := n.rename(p, true)
		if err == nil {
			n.durable = n.version
		}
		return err
	}},
	{"temp and rename, then fsync", false, func(n *diskName, p []byte) error {
		err := n.rename(p, false)
		if err == nil {
			err = n.fsync()
		}
		return err
	}},
	{"in place, fsync before close", true, func(n *diskName, p []byte) error {
		f, err := os.OpenFile(n.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(p)
		if err == nil {
			err = f.Sync()
		}
		if err == nil {
			n.durable = n.version
		}
		err = errors.Join(err, f.Close())
		if err == nil {
			n.durable = n.version
		}
		return err
	}},
	{"in place, then fsync", true, func(n *diskName, p []byte) error {
		err := os.WriteFile(n.path, p, 0o644)
		if err == nil {
			err = n.fsync()
		}
		return err
	}},
}

// rename stores p under a temporary name, which it may sync, and renames it.
func (n *diskName) rename(p []byte, sync bool) error {
	tmp := fmt.Sprintf("%s.tmp.%d", n.path, n.version)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, n.path)
}

// fsync syncs the committed block.
func (n *diskName) fsync() error {
	f, err := os.Open(n.path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if err == nil {
		n.durable = n.version
	}
	return errors.Join(err, f.Close())
}

// step stores the next version or, in one of ten cases, removes the block.
func (n *diskName) step(src *rand.Rand) error {
	n.version++
	n.attempted.Store(int64(n.version))
	gone := src.IntN(10) == 0
	var err error
	if gone {
		n.durable = 0
		if err = os.Remove(n.path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	} else {
		err = n.store(n, crashContent(n.path, n.version))
	}
	if err == nil {
		n.committed, n.gone = n.version, gone
	}
	return err
}

// crashTally counts what a crash may bring but is worth knowing.
type crashTally struct{ present, absent, reappeared, superseded int }

// TestDiskCrash kills the daemon at random points under writers of all kinds
// and readers, again and again. After each restart every readable block is one
// whole version of its name; nothing that an fsync confirmed is lost or has
// become older; with memory kept, the last committed version is there. In every
// third round the memory is thrown away, so that only the disk counts.
func TestDiskCrash(t *testing.T) {
	rounds := diskRounds(t)
	rnd := newRand(t)
	// Room enough: what fsync promises ends where capacity evicts.
	d := diskMount(t, harness.Options{Disk: "1GiB", Flags: []string{"--disk-slab-size", "4MiB"}})
	var names []*diskName
	for i := range diskCrashNamesEach * len(diskStores) {
		how := diskStores[i/diskCrashNamesEach]
		dir := d.Path(fmt.Sprintf("group%d", i%5))
		must(t, "mkdir", os.MkdirAll(dir, 0o777))
		n := &diskName{store: how.store}
		n.path, n.inPlace = fmt.Sprintf("%s/%d.bin", dir, i), how.inPlace
		names = append(names, n)
	}
	var tally crashTally
	for round := range rounds {
		lossy := round%3 == 2
		diskCrashRound(t, d, rnd, names)
		if lossy {
			d.DropMemory()
		}
		d.Restart()
		for _, n := range names {
			n.check(t, lossy, &tally)
		}
		if lossy { // else they stay, as they are
			wantNoTemporaries(t, d)
		}
		if t.Failed() {
			t.Fatalf("round %d of %d, memory lost: %t", round, rounds, lossy)
		}
	}
	t.Logf("%d rounds: %+v", rounds, tally)
	if d.Stop(); !t.Failed() {
		fsck(t, d.DiskDir, false, 0)
	}
}

// diskCrashRound writes and reads until the daemon, which is killed after a
// random number of steps, is gone.
func diskCrashRound(t *testing.T, d *harness.Daemon, rnd *rand.Rand, names []*diskName) {
	t.Helper()
	var steps atomic.Int64
	killAt := int64(10 + rnd.IntN(250))
	enough := make(chan struct{})
	var wg sync.WaitGroup
	for w := range diskStores {
		mine := names[w*diskCrashNamesEach : (w+1)*diskCrashNamesEach]
		src := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		wg.Go(func() {
			for {
				if err := mine[src.IntN(len(mine))].step(src); err != nil {
					wantDead(t, "writer", err)
					return
				}
				if steps.Add(1) == killAt {
					close(enough)
				}
			}
		})
	}
	for range 3 {
		src := rand.New(rand.NewPCG(rnd.Uint64(), 2))
		wg.Go(func() {
			for {
				n := names[src.IntN(len(names))]
				if n.inPlace {
					continue // this process sees its own uncommitted bytes
				}
				if err := crashRead(t, &n.crashName); err != nil {
					wantDead(t, "reader", err)
					return
				}
			}
		})
	}
	select {
	case <-enough:
	case <-d.Exited():
		t.Error("the daemon ended by itself")
	}
	d.Kill()
	wg.Wait()
}

// check compares the blocks after a restart with those that the writer knows.
func (n *diskName) check(t *testing.T, lossy bool, tally *crashTally) {
	t.Helper()
	name := filepath.Base(n.path)
	b, err := os.ReadFile(n.path)
	v, whole := wholeVersion(n.path, b)
	switch {
	case errors.Is(err, os.ErrNotExist):
		n.checkAbsent(t, lossy, tally)
		n.committed, n.gone, n.durable = n.version, true, 0
		return
	case err != nil:
		t.Errorf("%s: %v", name, err)
		return
	case !whole && !n.partial(b):
		t.Errorf("%s: %d bytes that are no version", name, len(b))
		return
	case !whole:
		v = n.version
	}
	tally.present++
	switch {
	case v > n.version:
		t.Errorf("%s: version %d, but only %d was begun", name, v, n.version)
	case v < n.durable:
		t.Errorf("%s: version %d, but fsync confirmed %d (begun %d, memory lost: %t)", name, v, n.durable, n.version, lossy)
	case !lossy && v != n.version && n.gone:
		tally.reappeared++
	case !lossy && v != n.version && v != n.committed:
		t.Errorf("%s: version %d; committed %d, begun %d, and memory was kept", name, v, n.committed, n.version)
	}
	wantSize(t, n.path, int64(len(b)))
	if n.durable != v {
		n.durable = 0
	}
	n.committed, n.gone = v, false
}

// partial reports whether b may be what an fsync in place stored: all that had
// been written of the version that was under way. These writers write once, so
// only an empty file is less than all.
func (n *diskName) partial(b []byte) bool {
	return n.inPlace && len(b) == 0 && n.version != n.committed
}

func (n *diskName) checkAbsent(t *testing.T, lossy bool, tally *crashTally) {
	t.Helper()
	tally.absent++
	name := filepath.Base(n.path)
	switch {
	case n.durable > 0 && n.durable == n.version:
		t.Errorf("%s: lost version %d, which fsync had confirmed (memory lost: %t)", name, n.durable, lossy)
	case !lossy && n.committed > 0 && !n.gone && n.version == n.committed:
		t.Errorf("%s: lost version %d, whose store had returned, and memory was kept", name, n.committed)
	case n.durable > 0:
		tally.superseded++ // a later version took its place and was lost with the memory
	}
}

func wantNoTemporaries(t *testing.T, d *harness.Daemon) {
	t.Helper()
	must(t, "walk", filepath.WalkDir(d.Dir, func(p string, _ fs.DirEntry, err error) error {
		if strings.Contains(filepath.Base(p), ".tmp") {
			t.Errorf("%s is left of a store that was cut off", filepath.Base(p))
		}
		return err
	}))
}
