package mount

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Environment of TestDiffer.
const (
	differSeedEnv  = "KVFS_DIFFER_SEED"     // of the first sequence; the next one has the next number
	differMixEnv   = "KVFS_DIFFER_MIX"      // "whole" or "place"; both by default
	differCountEnv = "KVFS_DIFFER_N"        // sequences for each mix and configuration
	differFailsEnv = "KVFS_DIFFER_FAILURES" // after how many failures, each with another sign, a configuration ends
)

const (
	differCount       = 8                // sequences, unless the environment says otherwise
	differCrashEvery  = 3                // the daemon is killed after sequences whose seed is a multiple of it
	differShrinkLimit = 15 * time.Second // how long to look for a shorter sequence
)

// differConfigs are the configurations of kvfs. Each counts for all mixes.
var differConfigs = []struct {
	name string
	opts harness.Options
}{
	{"memory", harness.Options{}},
	{"memory, passthrough off", harness.Options{Flags: []string{"--memory-passthrough", "off"}}},
	{"disk", harness.Options{Disk: "1GiB"}},
	{"disk, passthrough off", harness.Options{Disk: "1GiB", Flags: []string{"--memory-passthrough", "off"}}},
}

// TestDiffer shows that kvfs behaves as ext4 does for two processes. It does random sequences of operations on kvfs
// and on a directory of the machine. It compares each answer, the view of a third process afterwards, and the files
// that are there after the daemon was killed. A failure prints the sequence, shortened, and the command that repeats
// it. With -short two of the configurations do half of the sequences each.
//
// The mixes leave out what kvfs does by rules of its own, files that are private before their commit: TestModel of
// package tiers is about those.
//
//	KVFS_DIFFER_SEED=7 KVFS_DIFFER_N=2000 go test -run '^TestDiffer$' -timeout 0 ./tests/mount
//	KVFS_DIFFER_MIX=place KVFS_DIFFER_SEED=7 go test -run '^TestDiffer$' ./tests/mount
func TestDiffer(t *testing.T) {
	seed, count, fails, only := uint64(1), differCount, 1, ""
	if harness.RaceEnabled {
		count /= 4
	}
	differEnv(t, differSeedEnv, &seed)
	differEnv(t, differCountEnv, &count)
	differEnv(t, differFailsEnv, &fails)
	differEnv(t, differMixEnv, &only)
	dir, kind := differReference(t)
	t.Logf("%s=%d, compared with %s", differSeedEnv, seed, kind)
	for i := range differMixes {
		mix := &differMixes[i]
		if only != "" && only != mix.name {
			continue
		}
		t.Run(mix.name, func(t *testing.T) {
			for i, c := range differConfigs {
				if testing.Short() && i%3 != 0 {
					continue // the first and the last differ in everything
				}
				t.Run(c.name, func(t *testing.T) {
					t.Parallel() // an eviction waits for files that are open
					d := &differ{t: t, mix: mix, config: c.name, seen: map[string]bool{}}
					d.kvfs = newDifferKvfs(t, c.opts)
					ref, err := os.MkdirTemp(dir, "")
					must(t, "directory of the reference", err)
					d.ref = newDifferWorld(t, ref)
					for n := 0; n < count && len(d.seen) < fails; n++ {
						if testing.Short() && only == "" && n%2 == i%2 {
							continue // the other configuration does it
						}
						d.sequence(seed + uint64(n))
					}
					d.kvfs.checkEnd()
				})
			}
		})
	}
}

// differEnv reads a variable into v, if it is set, and hides it from daemons: they
// take no variables that they do not know.
func differEnv(t *testing.T, name string, v any) {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return
	}
	if _, err := fmt.Sscan(s, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Setenv(name, s) // puts it back in the end
	os.Unsetenv(name)
}

// differReference returns a directory to compare with, and the type of its file system.
func differReference(t testing.TB) (dir, kind string) {
	t.Helper()
	if why := harness.LacksLoop("ext4"); why != "" {
		return t.TempDir(), "a plain directory (" + why + ")"
	}
	return harness.MountLoop(t, harness.LoopOptions{}).Dir, "ext4"
}

func newDifferKvfs(t testing.TB, opts harness.Options) *differWorld {
	t.Helper()
	d := harness.Mount(t, opts)
	dir := d.Path("differ")
	mkdir(t, dir)
	w := newDifferWorld(t, dir)
	if !d.Reference {
		w.d, w.disk = d, opts.Disk != ""
	}
	return w
}

// differ compares sequences of one mix on one configuration.
type differ struct {
	t         *testing.T
	mix       *differMix
	config    string
	seed      uint64 // of the sequence under way
	ref, kvfs *differWorld
	seen      map[string]bool // signs of failures
}

// differFailure says where kvfs went wrong.
type differFailure struct {
	sign string // what kind of failure it is: that of a shorter sequence is the same
	step int    // len(steps) or more: in what comes after the sequence
	text string
}

// sequence runs the sequence of a seed, and complains about a failure with a
// shorter one, unless another had the same sign.
func (d *differ) sequence(seed uint64) {
	d.t.Helper()
	d.seed = seed
	steps := differSequence(d.mix, seed, d.kvfs.disk)
	crash := seed%differCrashEvery == 0
	f := d.run(steps, crash)
	if f == nil || d.seen[f.sign] {
		return
	}
	steps, f = d.shrink(steps[:min(f.step+1, len(steps))], crash, f)
	d.seen[f.sign] = true
	d.t.Errorf("%s\n%s\t-- %s\n%v", f.sign, differText(steps), f.text, d)
}

// String says which sequence is under way, and how to repeat it.
func (d *differ) String() string {
	return fmt.Sprintf("seed %d, mix %s, %s; repeat with:\n%s=%d %s=%s %s=1 go test -tags=giouring -ldflags=-checklinkname=0 -run '^TestDiffer$/%s/^%s$' ./tests/mount",
		d.seed, d.mix.name, d.config, differSeedEnv, d.seed, differMixEnv, d.mix.name, differCountEnv, d.mix.name, strings.ReplaceAll(d.config, " ", "_"))
}

// shrink returns fewer steps that fail with the same sign, found by leaving out
// ever smaller pieces. The first ones, on which the others rest, stay.
func (d *differ) shrink(steps []differStep, crash bool, f *differFailure) ([]differStep, *differFailure) {
	d.t.Helper()
	end := time.Now().Add(differShrinkLimit)
	for size := (len(steps) + 1) / 2; size > 0; {
		shorter := false
		for at := d.mix.fixed; at < len(steps) && time.Now().Before(end); {
			rest := slices.Concat(steps[:at], steps[min(at+size, len(steps)):])
			if g := d.run(rest, crash); g != nil && g.sign == f.sign {
				steps, f, shorter = rest, g, true
			} else {
				at += size
			}
		}
		if !shorter || size > 1 {
			size /= 2
		}
	}
	return steps, f
}

// run does the steps, looks at everything, closes all, looks again, and, with
// crash, does so once more after the daemon was killed. It returns the first
// failure, or nil.
func (d *differ) run(steps []differStep, crash bool) *differFailure {
	d.t.Helper()
	d.ref.begin()
	d.kvfs.begin()
	all := slices.Concat(steps, differCloseAll(), differWalk(d.mix, differWalker))
	if crash {
		all = slices.Concat(all, []differStep{{{Do: "crash"}}}, differWalk(d.mix, differWalker))
	}
	f := d.compare(all)
	must(d.t, "remove the reference", d.ref.end())
	if err := d.kvfs.end(); err != nil && f == nil {
		f = &differFailure{sign: "rm -rf", step: len(all), text: fmt.Sprintf("rm -rf of the directory: %v", err)}
	}
	return f
}

// compare does the steps in both worlds and returns the first difference.
func (d *differ) compare(steps []differStep) *differFailure {
	d.t.Helper()
	ops := slices.Concat(steps...)
	want, err := d.ref.run(ops)
	if err != nil {
		d.t.Fatalf("%v on the reference: %v", ops[len(want)], err)
	}
	got, err := d.kvfs.run(ops)
	if err != nil {
		d.t.Fatalf("%s\t-- %v\n%v", differText([]differStep{ops[:len(got)+1]}), err, d)
	}
	i := 0
	for at, step := range steps {
		for _, op := range step {
			if !got[i].matches(want[i]) {
				return newDifferFailure(op, at, got[i], want[i])
			}
			i++
		}
	}
	return nil
}

func newDifferFailure(op differOp, step int, got, want differResult) *differFailure {
	what := "a wrong answer"
	if got.Errno != want.Errno {
		what = fmt.Sprintf("%s for %s", differErrno(got.Errno), differErrno(want.Errno))
	} else if got.Stat.Size != want.Stat.Size {
		what = "a wrong size"
	}
	return &differFailure{
		sign: op.Do + ": " + what,
		step: step,
		text: fmt.Sprintf("%v: got %v, want %s", op, got, want),
	}
}

func differErrno(e syscall.Errno) string {
	if e == 0 {
		return "success"
	}
	return unix.ErrnoName(e)
}
