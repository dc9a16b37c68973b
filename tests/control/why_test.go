package control

import (
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

// TestWhy shows the verdicts on names whose outcome one node decides alone (G5).
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

// TestWhyEvicted shows by which rule a block was evicted that no other tier had: memory was nearly full.
func TestWhyEvicted(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{
		MemorySize: "64MiB",
		Flags:      []string{"--memory-high-watermark", "0.5", "--memory-low-watermark", "0.3", "--mount-lookup-lease", "0s", "--memory-burst-gap", "0s"},
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
}
