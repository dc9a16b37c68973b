package control

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// progressLine is a line that comes before the answer.
type progressLine struct {
	Done  int   `json:"done"`
	Total int   `json:"total"`
	Bytes int64 `json:"bytes"`
}

// TestPrefetch brings blocks from disk into memory: results are in the order of the
// keys, whatever each is; progress is told; afterwards all are in memory, with the right
// bytes, and a second time there is nothing to do (A13, A42).
func TestPrefetch(t *testing.T) {
	d := diskMount(t, harness.Options{})
	const n, size = 60, 256 * kib
	keys := keysOf("g", hashes(n))
	coldBlocks(t, d, size, keys...)
	put(t, d.Path("g/hot"), []byte("hot"))
	writer := harness.NewActor(t, nil)
	_, err := writer.Open(d.Path("g/writing"), unix.O_WRONLY|unix.O_CREAT, 0o644)
	must(t, "open", err)
	c, q := talk(t, d, "prefetch"), talk(t, d, "query")
	before := d.Status().Secondary(t, "disk")

	asked := append([]string{"g/hot", "g/none", "g/writing"}, keys...)
	lines := c.lines(obj{"keys": asked, "request": "req-1", "progress": true})
	var a prefetchAnswer
	decode(t, lines[len(lines)-1], &a)
	if err := a.check(); err != nil {
		t.Error(err)
	}
	if want := "m.w" + strings.Repeat("l", n); a.Results != want || a.Bytes != n*size || len(a.Errors) != 0 {
		t.Errorf("got %+v, want %s and %d bytes", a, want, n*size)
	}
	last := progressLine{}
	for _, line := range lines[:len(lines)-1] {
		var p progressLine
		decode(t, line, &p)
		if p.Total != len(asked) || p.Done < last.Done || p.Bytes < last.Bytes || p.Done > p.Total {
			t.Errorf("progress: %+v after %+v", p, last)
		}
		last = p
	}
	wantStates(t, q, strings.Repeat("m", n), keys...)
	for _, key := range keys {
		wantBytes(t, d.Path(key), pattern(key, size))
	}
	after := d.Status().Secondary(t, "disk")
	if got := after.Promoted - before.Promoted; got != n {
		t.Errorf("%d blocks were promoted, want %d", got, n)
	}
	if got := after.Batches - before.Batches; got == 0 || got >= n {
		t.Errorf("%d batches for %d blocks, want fewer than blocks", got, n)
	}

	again := c.prefetch(obj{"group": "g", "hashes": hashes(n), "template": "{group}/{hash}"})
	if again.Results != strings.Repeat("m", n) || again.Bytes != 0 {
		t.Errorf("a second time: got %+v", again)
	}
	if got := c.prefetch(obj{"keys": []string{}}); got.Results != "" {
		t.Errorf("no keys: got %+v", got)
	}
	if got := c.prefetch(obj{"keys": []string{"g", ".kvfs/status", "none/none"}}); got.Results != "..." {
		t.Errorf("what cannot be: got %+v", got)
	}
	if lines := c.lines(obj{"keys": keys}); len(lines) != 1 {
		t.Errorf("without progress: %d lines", len(lines))
	}
}

// TestRequestLogged shows that the log line of a batch has the id of the request that asked
// for it, with the keys and bytes by tier (A42, B20).
func TestRequestLogged(t *testing.T) {
	d := diskMount(t, harness.Options{Flags: []string{"--log-tier-summary"}})
	keys := keysOf("g", hashes(5))
	coldBlocks(t, d, 50_000, keys...)
	talk(t, d, "prefetch").prefetch(obj{"keys": keys, "request": "req-logged"})
	harness.Poll(t, "a line of the log has the request", func() bool { return strings.Contains(d.LastLog(), "req-logged") })
	wantLine(t, d.LastLog(), "req-logged", "disk_keys", "success_keys")
}

// jobs reads .kvfs/jobs, which must be JSON.
func jobs(t testing.TB, d *harness.Daemon) string {
	t.Helper()
	b, err := os.ReadFile(d.Path(".kvfs/jobs"))
	must(t, "read of jobs", err)
	if !json.Valid(b) {
		t.Fatalf("jobs: %s", b)
	}
	return string(b)
}

// TestJobs shows the loads under way with the ids of the requests that asked for them:
// a prefetch and a query that promotes; none when they are done (A6, A42).
func TestJobs(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{})
	coldBlocks(t, d, 256*kib, "g/a", "g/b", "g/c")
	if got := jobs(t, d); strings.Contains(got, "req-") {
		t.Errorf("jobs before any: %s", got)
	}
	f := follow(t, d, nil)
	g.Hold()
	p := startAsker(t, d.Path(".kvfs/prefetch"), `{"keys":["g/a","g/b"],"request":"req-jobs-1"}`)
	harness.Poll(t, "the prefetch is under way", func() bool { return strings.Contains(jobs(t, d), "req-jobs-1") })
	talk(t, d, "query").exists(obj{"keys": []string{"g/c"}, "promote": true, "request": "req-jobs-2"})
	harness.Poll(t, "the promotion is under way", func() bool { return strings.Contains(jobs(t, d), "req-jobs-2") })
	g.Release()
	f.allStored("memory", "promoted", "g/a", "g/b", "g/c")
	harness.Poll(t, "no job is left", func() bool { return !strings.Contains(jobs(t, d), "req-jobs") })
	var a prefetchAnswer
	decode(t, receive(t, "the answer", p.lines), &a)
	if a.Results != "ll" {
		t.Errorf("prefetch: got %+v", a)
	}
}
