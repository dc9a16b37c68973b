package control

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// wantVerdict asks why about one path and compares the answer with want. The time of an event must be within this
// test, and the text must have a sentence in any case.
func wantVerdict(t testing.TB, c *dialogue, key string, want verdict) verdict {
	t.Helper()
	got := c.why(key)[0]
	short := got
	short.Text, short.Time, short.Age, short.Path, short.By = "", "", 0, "", ""
	want.By = ""
	if fmt.Sprintf("%+v", short) != fmt.Sprintf("%+v", want) {
		t.Errorf("why %s: got %+v, want %+v", key, got, want)
	}
	if got.Time != "" {
		at, err := time.Parse(time.RFC3339Nano, got.Time)
		if err != nil || at.After(time.Now().Add(time.Second)) || got.Age < 0 {
			t.Errorf("why %s: time %q, age %v: %v", key, got.Time, got.Age, err)
		}
	} else if slices.Contains([]string{"evicted", "expired", "removed", "renamed", "corrupt", "peer_gone", "deadline"}, want.Verdict) {
		t.Errorf("why %s: got %+v, want a time", key, got)
	}
	return got
}

// waitEvicted waits until a block is gone, having been dropped from memory.
func waitEvicted(f *follower, key, reason string) {
	f.t.Helper()
	f.until(key+" is evicted", func(e event) bool {
		return e.Event == "evicted" && e.Tier == "memory" && e.Reason == reason && e.Group+"/"+e.Hash == key
	})
}

// TestWhy shows the verdicts on names whose fate one node decides alone (G5).
func TestWhy(t *testing.T) {
	d := diskMount(t, harness.Options{})
	c := talk(t, d, "query")
	put(t, d.Path("g/here"), []byte("x"))
	coldBlocks(t, d, 20_000, "g/cold")
	writer := harness.NewActor(t, nil)
	_, err := writer.Open(d.Path("g/writing"), unix.O_WRONLY|unix.O_CREAT, 0o644)
	must(t, "open", err)
	waitOnDisk(t, d.Path("g/here"))
	store(t, d.Path("g/only"), []byte("x"))

	wantVerdict(t, c, "g/cold", verdict{Verdict: "present", Tier: "disk"})
	wantBytes(t, d.Path("g/here"), []byte("x"))
	wantVerdict(t, c, "g/here", verdict{Verdict: "present", Tier: "memory,disk"})
	wantVerdict(t, c, "g/writing", verdict{Verdict: "pending"})
	wantVerdict(t, c, "g/never", verdict{Verdict: "never_stored"})
	wantVerdict(t, c, "nowhere/never", verdict{Verdict: "never_stored"})

	put(t, d.Path("g/removed"), []byte("x"))
	must(t, "unlink by another process", writer.Unlink(d.Path("g/removed")))
	got := wantVerdict(t, c, "g/removed", verdict{Verdict: "removed", Rule: "unlink"})
	if got.By == "" || !strings.Contains(got.Text, got.By) {
		t.Errorf("removed: got %+v, want it to say by whom", got)
	}

	put(t, d.Path("g/old"), []byte("x"))
	must(t, "rename", os.Rename(d.Path("g/old"), d.Path("g/new")))
	wantVerdict(t, c, "g/old", verdict{Verdict: "renamed", To: "g/new"})
	unlink(t, d.Path("g/new"))
	wantVerdict(t, c, "g/new", verdict{Verdict: "removed", Rule: "unlink"})
	put(t, d.Path("g/old"), []byte("x"))
	waitOnDisk(t, d.Path("g/old"))
	wantVerdict(t, c, "g/old", verdict{Verdict: "present", Tier: "memory,disk"})

	put(t, d.Path("g/short"), []byte("x"))
	setxattr(t, d.Path("g/short"), "user.kvfs.ttl", "20ms")
	harness.Poll(t, "the block has expired", func() bool { return c.why("g/short")[0].Verdict == "expired" })
	harness.Poll(t, "and is gone", func() bool {
		var st unix.Stat_t
		return unix.Stat(d.Path("g/short"), &st) == unix.ENOENT
	})
	wantVerdict(t, c, "g/short", verdict{Verdict: "expired", Rule: c.why("g/short")[0].Rule})

	waitOnDisk(t, d.Path("g/only"))
	kvfs(t, "evict", "--tier", "memory", "--force", d.Path("g/only"))
	kvfs(t, "evict", "--tier", "disk", "--force", d.Path("g/only"))
	wantVerdict(t, c, "g/only", verdict{Verdict: "evicted", Tier: "disk", Rule: "request"})

	put(t, d.Path("a/same"), []byte("x"))
	put(t, d.Path("b/same"), []byte("x"))
	elsewhere := c.why("g/same")[0]
	slices.Sort(elsewhere.Groups)
	if elsewhere.Verdict != "elsewhere" || !slices.Equal(elsewhere.Groups, []string{"a", "b"}) {
		t.Errorf("the same hash in other groups: got %+v", elsewhere)
	}
	// Many at once, by hash; and none.
	var a whyAnswer
	c.ask(obj{"op": "why", "group": "g", "hashes": []string{"removed", "never", "here"}}, &a)
	if len(a.Verdicts) != 3 || a.Verdicts[0].Verdict != "removed" || a.Verdicts[1].Path != "g/never" || a.Verdicts[2].Verdict != "present" {
		t.Errorf("by hash: got %+v", a.Verdicts)
	}
	c.why()
	wantVerdict(t, c, strings.Repeat("x", 5000), verdict{Verdict: "never_stored"})
}

// TestWhyAttribute shows the attribute of files that are there: it is listed, and has the
// text that the query gives.
func TestWhyAttribute(t *testing.T) {
	d := diskMount(t, harness.Options{})
	coldBlocks(t, d, 20_000, "g/cold")
	put(t, d.Path("g/hot"), []byte("x"))
	waitOnDisk(t, d.Path("g/hot"))
	c := talk(t, d, "query")
	for _, key := range []string{"g/cold", "g/hot"} {
		text, err := getxattr(d.Path(key), "user.kvfs.why")
		if v := c.why(key)[0]; err != nil || text != v.Verdict+": "+v.Text || v.Verdict != "present" {
			t.Errorf("%s: got %q, %v, want that of %+v", key, text, err, v)
		}
		buf := make([]byte, 4096)
		n, err := unix.Listxattr(d.Path(key), buf)
		if err != nil || !slices.Contains(strings.Split(string(buf[:n]), "\x00"), "user.kvfs.why") {
			t.Errorf("%s: attributes %q, %v", key, buf[:max(n, 0)], err)
		}
		if err := unix.Setxattr(d.Path(key), "user.kvfs.why", []byte("because"), 0); err == nil {
			t.Errorf("%s: the attribute can be set", key)
		}
	}
	if _, err := getxattr(d.Path("g/none"), "user.kvfs.why"); err != unix.ENOENT {
		t.Errorf("of what is not there: %v", err)
	}
}

// TestWhyEvicted shows by which rule blocks were evicted that no other tier had: memory was
// full, nearly full, the quota of the group was used up, or a command evicted it.
func TestWhyEvicted(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	t.Run("capacity, quota and request", func(t *testing.T) {
		d := harness.Mount(t, harness.Options{
			MemorySize: "64MiB", Config: "groups: {small: {quota: 16MiB}}\n",
			Flags: []string{"--memory-high-watermark", "1", "--mount-lookup-lease", "0s"},
		})
		c, f := talk(t, d, "query"), follow(t, d, nil)
		for i := range 6 {
			store(t, d.Path(fmt.Sprintf("small/%d", i)), pattern("x", 4*mib))
		}
		waitEvicted(f, "small/0", "quota")
		wantVerdict(t, c, "small/0", verdict{Verdict: "evicted", Tier: "memory", Rule: "quota"})
		for i := range 20 {
			store(t, d.Path(fmt.Sprintf("g/%d", i)), pattern("x", 4*mib))
		}
		waitEvicted(f, "g/0", "capacity")
		got := wantVerdict(t, c, "g/0", verdict{Verdict: "evicted", Tier: "memory", Rule: "capacity"})
		if got.Age < 0 || got.Age > 600 {
			t.Errorf("age: %v s", got.Age)
		}
		kvfs(t, "evict", "--tier", "memory", "--force", d.Path("g/19"))
		wantVerdict(t, c, "g/19", verdict{Verdict: "evicted", Tier: "memory", Rule: "request"})
		store(t, d.Path("g/0"), []byte("again"))
		wantVerdict(t, c, "g/0", verdict{Verdict: "present", Tier: "memory"})
	})
	t.Run("watermark", func(t *testing.T) {
		d := harness.Mount(t, harness.Options{
			MemorySize: "64MiB", Flags: []string{"--memory-high-watermark", "0.5", "--memory-low-watermark", "0.3", "--mount-lookup-lease", "0s"},
		})
		c := talk(t, d, "query")
		for i := range 12 {
			store(t, d.Path(fmt.Sprintf("g/%d", i)), pattern("x", 4*mib))
		}
		harness.Poll(t, "what has rested for a while is evicted", func() bool {
			put(t, d.Path("g/new"), []byte("x")) // Writes wake the evictor.
			return c.states("g/0") == "."
		})
		wantVerdict(t, c, "g/0", verdict{Verdict: "evicted", Tier: "memory", Rule: "watermark"})
	})
}

// TestWhyDisk shows what becomes of blocks that only the disk has: a damaged copy, a device
// that fails, and memory that is full of what may not be evicted.
func TestWhyDisk(t *testing.T) {
	d, g := gateMount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--mount-write-timeout", "100ms"}})
	coldBlocks(t, d, 8*mib, "g/corrupt", "g/crowded", "g/failing")
	c := talk(t, d, "query")
	damage(t, d.DiskDir, pattern("g/corrupt", 8*mib))
	wantMiss(t, d.Path("g/corrupt"))
	wantVerdict(t, c, "g/corrupt", verdict{Verdict: "corrupt", Tier: "disk", Rule: c.why("g/corrupt")[0].Rule})

	fillPinned(t, d, 60*mib)
	wantMiss(t, d.Path("g/crowded"))
	wantVerdict(t, c, "g/crowded", verdict{Verdict: "no_room", Tier: "disk", Rule: "capacity"})
	wantStates(t, c, "d", "g/crowded")
	kvfs(t, "unpin", d.Path("pinned"))
	kvfs(t, "evict", "--tier", "memory", "--force", d.Path("pinned"))
	wantBytes(t, d.Path("g/crowded"), pattern("g/crowded", 8*mib))
	if got := c.why("g/crowded")[0]; got.Verdict != "present" {
		t.Errorf("after it was read: got %+v", got)
	}

	g.fail(true)
	wantMiss(t, d.Path("g/failing"))
	wantVerdict(t, c, "g/failing", verdict{Verdict: "unreachable", Tier: "disk", Rule: c.why("g/failing")[0].Rule})
}

// TestWhyBounded shows that the daemon remembers the last 65,536 verdicts and forgets those
// before.
func TestWhyBounded(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	if testing.Short() || harness.RaceEnabled {
		harness.Skip(t, "66,000 renames take a while")
	}
	const n = 66_000
	d := harness.Mount(t, harness.Options{})
	name := func(i int) string { return fmt.Sprintf("r/%d", i) }
	put(t, d.Path(name(0)), []byte("x"))
	for i := range n {
		must(t, "rename", again(func() error { return unix.Rename(d.Path(name(i)), d.Path(name(i+1))) }))
	}
	c := talk(t, d, "query")
	wantVerdict(t, c, name(n-1), verdict{Verdict: "renamed", To: name(n)})
	wantVerdict(t, c, name(n-65_000), verdict{Verdict: "renamed", To: name(n - 65_000 + 1)})
	forgotten := wantVerdict(t, c, name(0), verdict{Verdict: "never_stored"})
	if forgotten.Time == "" {
		t.Errorf("forgotten: got %+v, want it to say since when it remembers", forgotten)
	}
}

// TestWhyJSON shows that the answer is one line of JSON with the paths as they were asked.
func TestWhyJSON(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	lines := talk(t, d, "query").lines(obj{"op": "why", "keys": []string{"g/ü\"\n", "x"}})
	if len(lines) != 1 || !json.Valid([]byte(lines[0])) {
		t.Errorf("got %q", lines)
	}
}
