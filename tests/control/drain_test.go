package control

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// storesUnderWay is the part of .kvfs/jobs about copies to the SSD.
func storesUnderWay(t testing.TB, d *harness.Daemon) (keys int, bytes int64, queued int) {
	t.Helper()
	var doc struct {
		Stores []struct {
			ID    uint64
			Tier  string
			Keys  int
			Bytes int64
		}
		Queued map[string]int
	}
	must(t, "jobs", json.Unmarshal([]byte(jobs(t, d)), &doc))
	for _, s := range doc.Stores {
		if s.ID == 0 || s.Tier != "disk" {
			t.Errorf("jobs: %+v", s)
		}
		keys, bytes = keys+s.Keys, bytes+s.Bytes
	}
	return keys, bytes, doc.Queued["disk"]
}

// TestDrain shows that stores under way are in the list of jobs (A6), and that kvfs drain waits for them,
// and no longer than it may (A46).
func TestDrain(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{})
	if out := kvfs(t, "drain", "--json", d.Dir); !strings.Contains(out, `"seconds": 0`) || kvfs(t, "drain", d.Dir) != "" { // nothing to do
		t.Errorf("drain --json: %s", out)
	}
	g.HoldWrites()
	paths := []string{d.Path("g/a"), d.Path("g/b")}
	for _, p := range paths {
		store(t, p, pattern(p, mib))
	}
	harness.Poll(t, "both are being stored", func() bool {
		keys, bytes, queued := storesUnderWay(t, d)
		return keys == 2 && bytes == 2*mib && queued == 0
	})
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"drain", "--timeout", "100ms", d.Dir}, 1, "kvfs: drain " + d.Dir + ": not done after 100ms\n"},
		{[]string{"drain", d.Path("g")}, 5, "is not a kvfs mount"},
		{[]string{"drain", "/proc"}, 5, "is not in a kvfs mount"},
		{[]string{"flush", "/proc"}, 5, "is not in a kvfs mount"},
		{[]string{"flush", d.Path("none")}, 1, "none: no such file or directory"},
	} {
		if _, stderr, code := harness.Kvfs(t, c.args...); code != c.code || !strings.Contains(stderr, c.text) {
			t.Errorf("kvfs %q: code %d, %s want %d, %q", c.args, code, stderr, c.code, c.text)
		}
	}
	done := make(chan string, 1)
	go func() { // Ends with the command.
		_, stderr, _ := harness.Kvfs(t, "drain", "--timeout", harness.Deadline.String(), d.Dir)
		done <- stderr
	}()
	g.Release()
	if stderr := receive(t, "the end of the drain", done); stderr != "" {
		t.Errorf("drain: %s", stderr)
	}
	for _, p := range paths {
		if got := tierOf(p); got != "memory,disk" {
			t.Errorf("%s is in %q after a drain", p, got)
		}
	}
	if keys, _, queued := storesUnderWay(t, d); keys+queued != 0 {
		t.Errorf("jobs after a drain: %s", jobs(t, d))
	}
}

// TestFlushNowhere shows that kvfs flush fails, and says why, if no tier keeps blocks. (A46)
func TestFlushNowhere(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	store(t, d.Path("a"), pattern("a", kib))
	for _, args := range [][]string{{"flush", d.Dir}, {"flush", "--json", d.Path("a")}} {
		stdout, stderr, code := harness.Kvfs(t, args...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, "no tier keeps blocks") {
			t.Errorf("kvfs %q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// TestFlush shows that kvfs flush makes blocks durable at a path or below it, and no others. The test takes the
// memory away, as a power cut does. (A46)
func TestFlush(t *testing.T) {
	d := diskMount(t, harness.Options{Flags: []string{"--disk-cascade", "off"}})
	keys := []string{"a/x", "a/y/z", "b/x", "b/y", "c/x"}
	for _, key := range keys {
		store(t, d.Path(key), pattern(key, 64*kib))
	}
	kvfs(t, "flush", d.Path("a"), d.Path("b/x"))
	tiers := func() (all []string) {
		for _, key := range keys {
			all = append(all, tierOf(d.Path(key)))
		}
		return all
	}
	if got := strings.Join(tiers(), " "); got != "memory,disk memory,disk memory,disk memory memory" {
		t.Errorf("after a flush of a and b/x the blocks are in %s", got)
	}
	d.Kill()
	d.DropMemory()
	d.Restart()
	for i, key := range keys {
		if i < 3 {
			wantBytes(t, d.Path(key), pattern(key, 64*kib))
		} else {
			wantMiss(t, d.Path(key))
		}
	}
	store(t, d.Path("c/x"), pattern("c/x", 64*kib))
	if out := kvfs(t, "flush", "--json", d.Dir); !strings.Contains(out, `"flushed": 1`) {
		t.Errorf("flush --json: %s", out)
	}
	if got := tierOf(d.Path("c/x")); got != "memory,disk" {
		t.Errorf("after a flush of the mount a block is in %s", got)
	}
}
