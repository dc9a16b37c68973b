package control

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// vllmTemplate is how vLLM's file tier names blocks.
const vllmTemplate = "meta-llama_Llama_c78c9e79d404_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"

// vllmName returns the path of a block in vLLM's tree below the mount.
func vllmName(rank int, group, hash string) string {
	return filepath.Join(fmt.Sprintf("meta-llama_Llama_c78c9e79d404_r%d", rank), hash[0:3], hash[3:5]+"_g"+group, hash+".bin")
}

// TestExistsNames shows how requests name blocks: paths, hashes in groups, the trees of
// engines by their templates, ranks, and a group that nothing was said about (C22).
func TestExistsNames(t *testing.T) {
	d := diskMount(t, harness.Options{})
	coldBlocks(t, d, 8*kib, vllmName(1, "0", hash(2)))
	for i := range 6 {
		put(t, d.Path("g0", hash(i)), []byte("g0"))
		store(t, d.Path(vllmName(0, "0", hash(i))), []byte("rank 0"))
		if i != 2 && i != 4 {
			store(t, d.Path(vllmName(1, "0", hash(i))), []byte("rank 1"))
		}
	}
	put(t, d.Path("g1", hash(3)), []byte("g1"))
	put(t, d.Path("flat-"+hash(1)+"-end"), []byte("flat"))
	put(t, d.Path("g/Größe ü"), []byte("not ASCII"))
	put(t, d.Path("g/ Größe"), []byte("not ASCII"))
	put(t, d.Path("g/\U0001f600\"\\\t"), []byte("to be escaped"))
	put(t, d.Path("g/raw\xff\xfe"), []byte("not UTF-8"))
	c := talk(t, d, "query")
	if got := c.binaryExists(binaryRequest{group: "g", flags: textHashes, hashes: []string{"raw\xff\xfe", "raw\xfe\xff"}}); got.States != "m." {
		t.Errorf("names that are not UTF-8, in binary: got %q, want m.", got.States)
	}
	var escaped existsAnswer
	decode(t, string(c.raw(`{"\u006fp":"exi\u0073ts","keys":["\u0067\/ Gr\u00f6\u00dfe","g/\ud83d\ude00\"\\\t"]}`)), &escaped)
	if escaped.States != "mm" {
		t.Errorf("names with escapes: got %+v, want mm", escaped)
	}
	hs := hashes(7)
	for _, row := range []struct {
		name    string
		request obj
		want    string
	}{
		{"paths", obj{"keys": []string{"g0/" + hash(0), "g1/" + hash(0), "g1/" + hash(3)}}, "m.m"},
		{"names that are not ASCII", obj{"keys": []string{"g/Größe ü", "g/Große ü"}}, "m."},
		{"hashes in a group", obj{"hashes": hs, "group": "g0"}, "mmmmmm."},
		{"another group", obj{"hashes": hs, "group": "g1"}, "...m..."},
		{"a group that does not exist", obj{"hashes": hs, "group": "g2"}, "......."},
		{"the same hash twice", obj{"hashes": []string{hash(0), hash(6), hash(0)}, "group": "g0"}, "m.m"},
		{"a template without a directory", obj{"hashes": hs, "template": "flat-{hash}-end"}, ".m....."},
		{"vLLM's tree, rank 0", obj{"hashes": hs, "group": "0", "template": strings.Replace(vllmTemplate, "{rank}", "0", 1)}, "mmmmmm."},
		{"vLLM's tree, one rank", obj{"hashes": hs, "group": "0", "template": vllmTemplate}, "mmmmmm."},
		{"vLLM's tree, both ranks: the slowest counts", obj{"hashes": hs, "group": "0", "template": vllmTemplate, "ranks": 2}, "mmdm.m."},
		{"vLLM's tree, a rank too many", obj{"hashes": hs, "group": "0", "template": vllmTemplate, "ranks": 3}, "......."},
		{"vLLM's tree, another group", obj{"hashes": hs, "group": "1", "template": vllmTemplate}, "......."},
		{"a hash that is too short for its template", obj{"hashes": []string{"ab", hash(0)}, "group": "0", "template": vllmTemplate}, ".m"},
		{"no hashes", obj{"hashes": []string{}, "group": "g0"}, ""},
		{"no keys", obj{"keys": []string{}}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.request["request"] = "req-1"
			if got := c.exists(row.request); got.States != row.want {
				t.Errorf("got %q, want %q", got.States, row.want)
			}
		})
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
