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

// TestExistsStates shows every state that one node alone can have: in memory, on disk,
// being written by another process under its final name, on its way into memory, and
// not there; also of names that cannot be blocks. Nothing of it waits, and asking
// changes nothing (A15, A16).
func TestExistsStates(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{})
	coldBlocks(t, d, 256*kib, "g/disk", "g/coming")
	put(t, d.Path("g/memory"), pattern("g/memory", 100_000))
	writer := harness.NewActor(t, nil)
	fd, err := writer.Open(d.Path("g/writing"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	must(t, "open by another process", err)
	_, err = writer.Write(fd, make([]byte, 5000))
	must(t, "write", err)
	c := talk(t, d, "query")
	keys := []string{"g/memory", "g/disk", "g/coming", "g/writing", "g/none", "none/none", "none"}
	wantStates(t, c, "mddw...", keys...)

	g.Hold()
	read := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path("g/coming"))
		read <- err
	}()
	g.Await(t)
	wantStates(t, c, "mdww...", keys...)
	got := c.exists(obj{"keys": keys})
	if got.States != "mdww..." || got.Hits != 2 || got.Pending != 2 || got.Misses != 3 || got.Prefix != 2 {
		t.Errorf("while a promotion is held up: got %+v", got)
	}
	g.Release()
	must(t, "the read that was held up", receive(t, "the read", read))
	must(t, "close", writer.Close(fd))
	wantStates(t, c, "mdmm...", keys...)
	unlink(t, d.Path("g/writing"))
	wantStates(t, c, ".", "g/writing")

	// Directories, names that are not below the mount, and such as cannot be.
	wantStates(t, c, "/", "g")
	for _, key := range []string{".kvfs/status", ".kvfs", "g/memory/x", "g/\n", "g/\x01", "g/ ", "g/" + strings.Repeat("x", 300), strings.Repeat("y/", 3000) + "y"} {
		wantStates(t, c, ".", key)
	}
	for _, key := range []string{"", ".", "..", "../g/memory", "g/..", "/", "/g/memory", "g/memory/", "g//none", "g/./memory", "a\x00b"} {
		request, err := json.Marshal(obj{"op": "exists", "keys": []string{"g/memory", key}})
		must(t, "request", err)
		answer := c.raw(string(request))
		if wantRefused(t, answer, "/keys/1"); t.Failed() {
			t.Fatalf("%.40q: %s", key, answer)
		}
	}
}

// TestRelease shows that a release ends the leases of a request, in all groups, and only those
// of the same user. (C16)
func TestRelease(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	d := harness.Mount(t, harness.Options{Flags: admitted})
	keys := []string{"g/a", "h/deep/b"}
	for _, key := range keys {
		store(t, d.Path(key), pattern(key, 4*kib))
	}
	c := talk(t, d, "query")
	c.exists(obj{"keys": append(keys, "none"), "request": "req-1"})
	c.exists(obj{"keys": keys[:1]}) // without a request: only the other lease ends
	const release = `{"op": "release", "request": "req-1"}`
	if got := askAs(t, engineUser, d.Path(".kvfs", "query"), release); got != "{\"op\": \"release\", \"released\": 0}\n" {
		t.Errorf("release by another user: %s", got)
	}
	for _, want := range []string{"1", "0"} {
		if got := string(c.raw(release)); got != "{\"op\": \"release\", \"released\": "+want+"}\n" {
			t.Errorf("got %s, want %s released", got, want)
		}
	}
	var loaded prefetchAnswer
	talk(t, d, "prefetch").ask(obj{"keys": keys, "request": "req-1"}, &loaded)
	if got := string(c.raw(release)); got != "{\"op\": \"release\", \"released\": 2}\n" {
		t.Errorf("after a prefetch: %s", got)
	}
}
