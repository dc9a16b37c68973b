package mount

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// churner is one process's view of its own names: what each of them holds.
type churner struct {
	t     *testing.T
	dir   string
	rnd   *rand.Rand
	bytes map[string][]byte
	modes map[string]uint32
	steps int // at least, and then for as long as stop does not tell
	stop  <-chan struct{}
}

// TestDiskChurn does random operations to blocks, from several workers with names of their own. All blocks that the
// disk holds are evicted from memory again and again. Every read shows the bytes written last, also after a clean
// restart and after a crash that leaves only the disk. A worker that fails names the operation.
func TestDiskChurn(t *testing.T) {
	rnd := newRand(t)
	steps := 3 * diskRounds(t) / 4
	for _, c := range []struct {
		name string
		opts harness.Options
	}{
		{"plain", harness.Options{}},
		{"cascade sync, little memory", harness.Options{MemorySize: "16MiB", Flags: []string{"--disk-cascade", "sync"}}},
		{"promotion on lookup, one processor", harness.Options{Flags: []string{"--promotion-on", "lookup"}, Env: []string{"GOMAXPROCS=1"}}},
		{"passthrough off, pread", harness.Options{Flags: []string{"--memory-passthrough", "off", "--directio-engine", "pread"}}},
		{"no kernel caches", harness.Options{Flags: []string{"--mount-entry-timeout", "0s", "--mount-attr-timeout", "0s"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opts.Flags = append(c.opts.Flags, "--disk-slab-size", "8MiB")
			churn(t, diskMount(t, c.opts), rnd, steps)
		})
	}
}

func churn(t *testing.T, d *harness.Daemon, rnd *rand.Rand, steps int) {
	var all []*churner
	done, stop := make(chan struct{}), make(chan struct{})
	for w := range 4 {
		c := &churner{
			t: t, dir: d.Path(fmt.Sprint("worker", w)), rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)),
			bytes: make(map[string][]byte), modes: make(map[string]uint32), steps: steps, stop: stop,
		}
		mkdir(t, c.dir)
		all = append(all, c)
	}
	go func() { // ends with the workers
		defer close(done)
		parallel(len(all), func(w int) { all[w].run() })
	}()
	evictions := evictUntil(t, d, stop, done)
	s := diskStatus(t, d)
	t.Logf("%d evictions, %d blocks promoted, %d cascaded", evictions, s.Promoted, s.Cascaded)
	if t.Failed() {
		return
	}
	if s.Promoted < churnPromotions {
		t.Errorf("%d blocks were promoted, want %d: the test tests nothing", s.Promoted, churnPromotions)
	}
	check := func(when string) {
		t.Helper()
		for _, c := range all {
			c.checkAll(when)
		}
	}
	check("at the end")
	d.Restart()
	check("after a restart")
	for _, c := range all {
		for p := range c.bytes {
			fsyncPath(t, p)
		}
	}
	crashAll(d)
	check("after a crash")
	d.Stop()
	fsck(t, d.DiskDir, false, 0)
}

// evictUntil evicts until the workers are done. They are told to stop when enough has
// come back from the disk: where the command is slow, they would do all their steps
// between two evictions.
func evictUntil(t *testing.T, d *harness.Daemon, stop chan<- struct{}, done <-chan struct{}) (evictions int) {
	t.Helper()
	enough := sync.OnceFunc(func() { close(stop) })
	defer enough()
	deadline := time.Now().Add(harness.Deadline)
	for {
		select {
		case <-done:
			return evictions
		default:
		}
		harness.Kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
		evictions++
		if diskStatus(t, d).Promoted >= churnPromotions || time.Now().After(deadline) {
			enough()
		}
	}
}

// churnPromotions is how many blocks come back from the disk at least.
const churnPromotions = 20

func (c *churner) path() string { return filepath.Join(c.dir, fmt.Sprint("n", c.rnd.IntN(8))) }

// run does random steps until one fails, or it is told to stop and has done its number.
func (c *churner) run() {
	for i := 0; ; i++ {
		if i >= c.steps {
			select {
			case <-c.stop:
				return
			default:
			}
		}
		p := c.path()
		what, err := c.step(p)
		if err != nil && !errors.Is(err, unix.EINTR) {
			c.t.Errorf("step %d: %s %s: %v", i, what, filepath.Base(p), err)
			return
		}
		if c.t.Failed() {
			return
		}
	}
}

// step does one random thing to p.
func (c *churner) step(p string) (what string, err error) {
	old, exists := c.bytes[p]
	fresh := make([]byte, c.rnd.IntN(400_000))
	for i := range fresh {
		fresh[i] = byte(c.rnd.Uint32())
	}
	if !exists {
		return "store", c.store(p, fresh)
	}
	switch c.rnd.IntN(10) {
	case 0:
		return "store", c.store(p, fresh)
	case 1:
		c.bytes[p] = fresh
		return "write in place", os.WriteFile(p, fresh, 0o644)
	case 2:
		tail := fresh[:len(fresh)/20]
		c.bytes[p] = append(bytes.Clone(old), tail...)
		return "append", c.edit(p, int64(len(old)), tail)
	case 3:
		at := c.rnd.IntN(len(old) + 1)
		patch := fresh[:min(len(fresh), len(old)-at, 5000)]
		c.bytes[p] = bytes.Clone(old)
		copy(c.bytes[p][at:], patch)
		return "patch", c.edit(p, int64(at), patch)
	case 4:
		n := c.rnd.IntN(len(old)*5/4 + 1)
		now := make([]byte, n)
		copy(now, old)
		c.bytes[p] = now
		return fmt.Sprintf("truncate from %d to %d", len(old), n), c.truncate(p, int64(n))
	case 5:
		return c.rename(p)
	case 6:
		delete(c.bytes, p)
		delete(c.modes, p)
		return "unlink", again(func() error { return unix.Unlink(p) })
	case 7:
		mode := uint32(0o400 + c.rnd.IntN(0o200))
		c.modes[p] = mode
		return "chmod", again(func() error { return unix.Chmod(p, mode) })
	default:
		c.check(p, "read")
		return "read", nil
	}
}

func (c *churner) store(p string, b []byte) error {
	c.bytes[p] = b
	delete(c.modes, p)
	if err := os.WriteFile(p+".tmp", b, 0o644); err != nil {
		return err
	}
	return again(func() error { return unix.Rename(p+".tmp", p) })
}

// edit writes b at off. An append, too, is at an offset, so that what is there
// already tells.
func (c *churner) edit(p string, off int64, b []byte) error {
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, off)
	return errors.Join(err, f.Close())
}

// truncate tries again while a handle is open that was closed already: the kernel
// tells the daemon a little later.
func (c *churner) truncate(p string, n int64) error {
	deadline := time.Now().Add(harness.Deadline)
	for {
		err := unix.Truncate(p, n)
		if err != unix.EINTR && err != unix.EBUSY || time.Now().After(deadline) {
			return err
		}
		runtime.Gosched()
	}
}

func (c *churner) rename(p string) (string, error) {
	to := c.path()
	if to == p {
		return "rename to itself", nil
	}
	c.bytes[to] = c.bytes[p]
	delete(c.bytes, p)
	delete(c.modes, to)
	if mode, ok := c.modes[p]; ok {
		c.modes[to] = mode
		delete(c.modes, p)
	}
	return "rename to " + filepath.Base(to), again(func() error { return unix.Rename(p, to) })
}

// check reads p and compares bytes and mode.
func (c *churner) check(p, when string) {
	name := filepath.Join(filepath.Base(c.dir), filepath.Base(p))
	got, err := readWhole(p)
	if err != nil {
		c.t.Errorf("%s: %s: %s", when, name, errnoName(err))
		return
	}
	sameBytes(c.t, when+": "+name, got, c.bytes[p])
	if mode, ok := c.modes[p]; ok {
		if st := stat(c.t, p); st.Mode&0o7777 != mode {
			c.t.Errorf("%s: mode of %s: got %#o, want %#o", when, name, st.Mode&0o7777, mode)
		}
	}
}

// checkAll is check of all names, and that there are no others.
func (c *churner) checkAll(when string) {
	for p := range c.bytes {
		c.check(p, when)
	}
	for _, name := range listNames(c.t, c.dir) {
		if _, ok := c.bytes[filepath.Join(c.dir, name)]; !ok {
			c.t.Errorf("%s: %s is there, but was removed", when, filepath.Join(filepath.Base(c.dir), name))
		}
	}
}
