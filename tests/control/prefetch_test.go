package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// progressLine is a line that comes before the answer.
type progressLine struct {
	Done  int   `json:"done"`
	Total int   `json:"total"`
	Bytes int64 `json:"bytes"`
}

// damage flips a bit of a block's copy in the directory of an SSD tier.
func damage(t testing.TB, dir string, content []byte) {
	t.Helper()
	slabs, err := filepath.Glob(filepath.Join(dir, "slab-*"))
	must(t, "glob", err)
	for _, path := range slabs {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, "open", err)
		defer f.Close()
		b, err := os.ReadFile(path)
		must(t, "read", err)
		at := bytes.Index(b, content[:min(512, len(content))])
		if at < 0 {
			continue
		}
		at += len(content) / 2
		_, err = f.WriteAt([]byte{b[at] ^ 4}, int64(at))
		must(t, "write", err)
		must(t, "sync", f.Sync())
		return
	}
	t.Fatalf("no slab of %d has the block", len(slabs))
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

// TestPrefetchSame shows that a block which is named twice is loaded once.
func TestPrefetchSame(t *testing.T) {
	d := diskMount(t, harness.Options{})
	const size = 50_000
	coldBlocks(t, d, size, "g/a", "g/b")
	got := talk(t, d, "prefetch").prefetch(obj{"keys": []string{"g/a", "g/b", "g/a", "g/a", "g/none", "g/none"}})
	if strings.Trim(got.Results[:4], "ml") != "" || got.Results[4:] != ".." {
		t.Errorf("got %+v", got)
	}
	if s := d.Status().Secondary(t, "disk"); s.Promoted != 2 || s.Loaded != 2 {
		t.Errorf("%d blocks were promoted, %d loaded, want 2", s.Promoted, s.Loaded)
	}
	noneLeft(t, d)
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

// TestPrefetchRanks shows that a block of several ranks is loaded if all of its files are,
// and absent if one is.
func TestPrefetchRanks(t *testing.T) {
	d := diskMount(t, harness.Options{})
	cold := []string{vllmName(0, "0", hash(0)), vllmName(1, "0", hash(0)), vllmName(0, "0", hash(1)), vllmName(1, "0", hash(2))}
	coldBlocks(t, d, 20_000, cold...)
	put(t, d.Path(vllmName(0, "0", hash(2))), []byte("hot"))
	got := talk(t, d, "prefetch").prefetch(obj{"group": "0", "hashes": hashes(4), "template": vllmTemplate, "ranks": 2})
	if got.Results != "l.l." {
		t.Errorf("got %+v, want l.l.", got)
	}
	wantStates(t, talk(t, d, "query"), "mm", cold[0], cold[1])
}

// TestPrefetchFailed shows three causes of a failure: a copy is damaged on disk, a device fails, and memory is full
// of pinned blocks. Errors name the path. The other blocks are loaded.
func TestPrefetchFailed(t *testing.T) {
	t.Run("damaged", func(t *testing.T) {
		d := diskMount(t, harness.Options{Flags: []string{"--disk-scrub-rate", "0"}})
		keys := keysOf("g", hashes(5))
		coldBlocks(t, d, 100_000, keys...)
		damage(t, d.DiskDir, pattern(keys[2], 100_000))
		got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
		if got.Results != "ll!ll" || len(got.Errors) != 1 || got.Errors[0].Path != keys[2] || got.Errors[0].Error == "" {
			t.Errorf("got %+v, want the third to fail", got)
		}
		wantMiss(t, d.Path(keys[2]))
		wantBytes(t, d.Path(keys[3]), pattern(keys[3], 100_000))
	})
	t.Run("device", func(t *testing.T) {
		d, g := gateMount(t, harness.Options{})
		keys := keysOf("g", hashes(3))
		coldBlocks(t, d, 100_000, keys...)
		g.fail(true)
		got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
		if got.Results != "!!!" {
			t.Errorf("got %+v, want all to fail", got)
		}
	})
	t.Run("memory", func(t *testing.T) {
		d := diskMount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--mount-write-timeout", "100ms"}})
		keys := keysOf("g", hashes(3))
		coldBlocks(t, d, 8*mib, keys...)
		fillPinned(t, d, 60*mib)
		got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
		if got.Results != "!!!" || got.Errors[0].Error == "" {
			t.Errorf("got %+v, want all to fail", got)
		}
		wantStates(t, talk(t, d, "query"), "ddd", keys...)
	})
}

// fillPinned stores pinned blocks of that many bytes together.
func fillPinned(t testing.TB, d *harness.Daemon, n int) {
	t.Helper()
	for i := range n / (4 * mib) {
		p := d.Path(fmt.Sprintf("pinned/%d", i))
		store(t, p, pattern(p, 4*mib))
		setxattr(t, p, "user.kvfs.pinned", "1")
	}
}

// TestPrefetchCancel closes the descriptor while blocks are being loaded: what has not
// begun is not loaded, nothing hangs, and nothing stays pinned.
func TestPrefetchCancel(t *testing.T) {
	d, g := gateMount(t, harness.Options{MemorySize: "512MiB"})
	const n = 200
	keys := keysOf("g", hashes(n))
	coldBlocks(t, d, mib, keys...)
	g.hold()
	fd, err := openFile(d.Path(".kvfs/prefetch"), unix.O_RDWR)
	must(t, "open", err)
	request, err := json.Marshal(obj{"keys": keys, "request": "req-cancel", "progress": true})
	must(t, "request", err)
	must(t, "write", sendAll(fd, request))
	p := startAsker(t, d.Path(".kvfs/prefetch"), string(request)) // Reads, so that it begins.
	g.await(t)
	must(t, "close", unix.Close(fd))
	p.Kill()
	harness.Poll(t, "jobs tell of the request", func() bool { return strings.Contains(jobs(t, d), "req-cancel") })
	if d.Status().Tier(t, "memory").PinnedBytes == 0 {
		t.Error("nothing is pinned while it is being loaded: that nothing is afterwards would show nothing")
	}
	g.release()
	noneLeft(t, d)
	harness.Poll(t, "no job is left", func() bool { return !strings.Contains(jobs(t, d), "req-cancel") })
	states := talk(t, d, "query").states(keys...)
	if loaded := strings.Count(states, "m"); loaded == 0 || loaded == n || strings.Trim(states, "md") != "" {
		t.Errorf("%d of %d blocks are in memory, want some: %s", loaded, n, states)
	}
	if strings.Contains(states, "dm") {
		t.Errorf("not in order: %s", states)
	}
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

// TestPrefetchTwice runs two prefetches of one list at once, and opens of the same blocks:
// each block is loaded once (A16).
func TestPrefetchTwice(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	const n = 40
	keys := keysOf("g", hashes(n))
	coldBlocks(t, d, 64*kib, keys...)
	before := d.Status().Secondary(t, "disk")
	g.hold()
	answers := make(chan string, 2)
	for range 2 {
		c := talk(t, d, "prefetch")
		go func() { // Ends with the gate.
			request, _ := json.Marshal(obj{"keys": keys})
			if err := sendAll(c.fd, request); err != nil {
				answers <- err.Error()
				return
			}
			b, err := readAnswer(c.fd)
			if err != nil {
				b = []byte(err.Error())
			}
			answers <- string(b)
		}()
	}
	read := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path(keys[0]))
		read <- err
	}()
	g.await(t)
	g.release()
	loaded := 0
	for range 2 {
		var a prefetchAnswer
		decode(t, receive(t, "the answer", answers), &a)
		if strings.Trim(a.Results, "ml") != "" || a.Total != n {
			t.Errorf("got %+v", a)
		}
		loaded += a.Loaded
	}
	must(t, "read", receive(t, "the read", read))
	after := d.Status().Secondary(t, "disk")
	if after.Promoted-before.Promoted != n || after.Loaded-before.Loaded != n {
		t.Errorf("%d blocks promoted and %d loaded, want %d of each", after.Promoted-before.Promoted, after.Loaded-before.Loaded, n)
	}
	wantStates(t, talk(t, d, "query"), strings.Repeat("m", n), keys...)
	noneLeft(t, d)
}

// TestJobs shows the loads under way with the ids of the requests that asked for them:
// a prefetch and a query that promotes; none when they are done (A6, A42).
func TestJobs(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	coldBlocks(t, d, 256*kib, "g/a", "g/b", "g/c")
	if got := jobs(t, d); strings.Contains(got, "req-") {
		t.Errorf("jobs before any: %s", got)
	}
	f := follow(t, d, nil)
	g.hold()
	p := startAsker(t, d.Path(".kvfs/prefetch"), `{"keys":["g/a","g/b"],"request":"req-jobs-1"}`)
	harness.Poll(t, "the prefetch is under way", func() bool { return strings.Contains(jobs(t, d), "req-jobs-1") })
	talk(t, d, "query").exists(obj{"keys": []string{"g/c"}, "promote": true, "request": "req-jobs-2"})
	harness.Poll(t, "the promotion is under way", func() bool { return strings.Contains(jobs(t, d), "req-jobs-2") })
	g.release()
	f.allStored("memory", "promoted", "g/a", "g/b", "g/c")
	harness.Poll(t, "no job is left", func() bool { return !strings.Contains(jobs(t, d), "req-jobs") })
	var a prefetchAnswer
	decode(t, receive(t, "the answer", p.lines), &a)
	if a.Results != "ll" {
		t.Errorf("prefetch: got %+v", a)
	}
}

// TestPrefetchLease shows that prefetched blocks stay in memory, as after stat, while other blocks are written over
// the capacity.
func TestPrefetchLease(t *testing.T) {
	d := diskMount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--mount-lookup-lease", "10m"}})
	keys := keysOf("g", hashes(8))
	coldBlocks(t, d, mib, keys...)
	if got := talk(t, d, "prefetch").prefetch(obj{"keys": keys}).Results; got != "llllllll" {
		t.Fatalf("prefetch: %q", got)
	}
	for i := range 30 {
		p := d.Path(fmt.Sprintf("other/%d", i))
		store(t, p, pattern("other", 4*mib))
		waitOnDisk(t, p)
	}
	for _, key := range keys {
		wantBytes(t, d.Path(key), pattern(key, mib))
	}
}

// TestPrefetchCancelOne kills one of two processes that prefetch the same list: the other
// gets all of it.
func TestPrefetchCancelOne(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	const n = 50
	keys := keysOf("g", hashes(n))
	coldBlocks(t, d, 256*kib, keys...)
	request := jsonText(obj{"keys": keys})
	g.hold()
	first := startAsker(t, d.Path(".kvfs/prefetch"), request)
	g.await(t)
	second := startAsker(t, d.Path(".kvfs/prefetch"), request)
	first.Kill()
	g.release()
	var a prefetchAnswer
	decode(t, receive(t, "the answer", second.lines), &a)
	if strings.Trim(a.Results, "ml") != "" || a.Total != n {
		t.Errorf("got %+v, want all blocks", a)
	}
	wantStates(t, talk(t, d, "query"), strings.Repeat("m", n), keys...)
	noneLeft(t, d)
}

// TestPrefetchTooMuch asks for more than memory holds: it ends, each block was loaded or
// said to have failed, nothing is lost and nothing stays pinned.
func TestPrefetchTooMuch(t *testing.T) {
	d := diskMount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--mount-write-timeout", "100ms"}})
	const n = 50
	keys := keysOf("g", hashes(n))
	for _, key := range keys {
		store(t, d.Path(key), pattern(key, 2*mib))
		waitOnDisk(t, d.Path(key))
	}
	got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
	if strings.Trim(got.Results, "ml!") != "" || got.Total != n {
		t.Errorf("got %+v", got)
	}
	if states := talk(t, d, "query").states(keys...); strings.Trim(states, "md") != "" || strings.Count(states, "m") > 32 {
		t.Errorf("afterwards: %q", states)
	}
	noneLeft(t, d)
	for _, key := range keys {
		wantBytes(t, d.Path(key), pattern(key, 2*mib))
	}
}

// TestStopWhileAsked stops the daemon while processes wait for answers: all of their reads
// end, and it ends as it should.
func TestStopWhileAsked(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	keys := keysOf("g", hashes(30))
	coldBlocks(t, d, 256*kib, keys...)
	g.hold()
	var waiting []*askingProcess
	for range 3 {
		waiting = append(waiting, startAsker(t, d.Path(".kvfs/prefetch"), jsonText(obj{"keys": keys, "progress": true})))
	}
	waiting = append(waiting, startAsker(t, d.Path(".kvfs/events"), `{"since":1}`))
	g.await(t)
	must(t, "SIGTERM", unix.Kill(d.Pid, unix.SIGTERM))
	within(t, "all reads end", func() {
		for _, p := range waiting {
			for range p.lines { // To its end.
			}
		}
	})
	g.release()
	receive(t, "the end of the daemon", closedAsEvent(d.Exited()))
	if d.ExitCode != 0 {
		t.Errorf("exit code %d", d.ExitCode)
	}
}
