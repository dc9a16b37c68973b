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
)

// TestExistsStates shows every state that one node alone can have: in memory, on disk,
// being written by another process under its final name, on its way into memory, and
// not there; also of names that cannot be blocks. Nothing of it waits, and asking
// changes nothing (A15, A16).
func TestExistsStates(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
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

	g.hold()
	read := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path("g/coming"))
		read <- err
	}()
	g.await(t)
	wantStates(t, c, "mdww...", keys...)
	got := c.exists(obj{"keys": keys})
	if got.States != "mdww..." || got.Hits != 2 || got.Pending != 2 || got.Misses != 3 || got.Prefix != 2 {
		t.Errorf("while a promotion is held up: got %+v", got)
	}
	g.release()
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

// TestExistsRanksPending shows that a block is pending while one of its ranks is being written, and a miss if one of
// its ranks is, in whatever state the other ranks are.
func TestExistsRanksPending(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	harness.KvfsOnly(t, "a control directory")
	put(t, d.Path("r0/a"), []byte("x"))
	put(t, d.Path("r0/b"), []byte("x"))
	put(t, d.Path("r2/b"), []byte("x"))
	writer := harness.NewActor(t, nil)
	must(t, "mkdir", writer.Mkdir(d.Path("r1"), 0o755))
	open := func(name string) {
		t.Helper()
		_, err := writer.Open(d.Path(name), unix.O_WRONLY|unix.O_CREAT, 0o644)
		must(t, "open", err)
	}
	c := talk(t, d, "query")
	want := func(states string, ranks int) {
		t.Helper()
		got := c.exists(obj{"hashes": []string{"a", "b"}, "template": "r{rank}/{hash}", "ranks": ranks})
		if got.States != states {
			t.Errorf("%d ranks: got %q, want %q", ranks, got.States, states)
		}
	}
	open("r1/a")
	want("mm", 1)
	want("w.", 2)
	want("..", 3)
	open("r1/b")
	want("ww", 2)
	want(".w", 3)
}

// TestExistsMany asks for 10,000 blocks of which two thirds are there, and for as many
// as are allowed, 1,000,000, and one more, in JSON and in binary (A41).
func TestExistsMany(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	const n = 10_000
	hs := hashes(n)
	must(t, "mkdir", unix.Mkdir(d.Path("g0"), 0o755))
	want := make([]byte, n)
	for i, h := range hs {
		if want[i] = '.'; i%3 != 1 {
			want[i] = 'm'
			put(t, d.Path("g0", h), []byte{1})
		}
	}
	c := talk(t, d, "query")
	for range 2 {
		if got := c.exists(obj{"hashes": hs, "group": "g0"}); got.States != string(want) || got.Prefix != 1 {
			t.Errorf("10,000 hashes: got %d hits, prefix %d, want %d and 1", got.Hits, got.Prefix, n-n/3)
		}
	}
	if got := c.binaryExists(binaryRequest{group: "g0", hashes: hs}); got.States != string(want) {
		t.Errorf("10,000 hashes in binary: got %d hits, want %d", got.Hits, n-n/3)
	}
	put(t, d.Path("g0/a"), []byte{1})
	many := func(n int) string { return strings.TrimSuffix(strings.Repeat(`"a",`, n), ",") }
	const most = 1_000_000
	var a existsAnswer
	decode(t, string(c.raw(`{"op":"exists","group":"g0","hashes":[`+many(most)+`]}`)), &a)
	if a.Hits != most || a.Prefix != most || len(a.States) != most {
		t.Errorf("%d hashes: got %d hits, %d states, %+v", most, a.Hits, len(a.States), a.refusal)
	}
	wantRefused(t, c.raw(`{"op":"exists","group":"g0","hashes":[`+many(most+1)+`]}`), "/hashes", "1000000")
	wantRefused(t, c.raw(`{"op":"exists","keys":[`+many(most+1)+`]}`), "/keys", "1000000")
	if got := c.binaryExists(binaryRequest{group: "g0", flags: textHashes, hashes: strings.Split(strings.Repeat("a", most), "")}); got.Hits != most {
		t.Errorf("%d hashes in binary: got %d hits", most, got.Hits)
	}
	if err := c.binaryRefused(binaryRequest{group: "g0", flags: textHashes, hashes: strings.Split(strings.Repeat("a", most+1), "")}.bytes()); err != nil {
		t.Error(err)
	}
	wantStates(t, c, "m.", "g0/"+hash(0), "g0/"+hash(1))
}

// TestExistsLease shows that blocks which exists has found stay readable while others
// are written over the capacity, as after stat, and that those which it found without a
// lease go, being the oldest.
func TestExistsLease(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	for _, lease := range []bool{true, false} {
		t.Run(fmt.Sprintf("lease %v", lease), func(t *testing.T) {
			d := harness.Mount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--mount-lookup-lease", "10m"}})
			keys := keysOf("g", hashes(8))
			for _, key := range keys {
				store(t, d.Path(key), pattern(key, mib))
			}
			c := talk(t, d, "query")
			request := obj{"keys": keys}
			if !lease {
				request["lease"] = false
			}
			if got := c.exists(request).States; got != "mmmmmmmm" {
				t.Fatalf("before: got %q", got)
			}
			for i := range 40 {
				store(t, d.Path(fmt.Sprintf("other/%d", i)), pattern("other", 4*mib))
			}
			want := "mmmmmmmm"
			if !lease {
				want = "........"
			}
			wantStates(t, c, want, keys...)
			if lease {
				for _, key := range keys {
					wantBytes(t, d.Path(key), pattern(key, mib))
				}
			}
		})
	}
}

// TestExistsPromote shows that a query with promote brings what is on disk into memory,
// nothing else, without an open.
func TestExistsPromote(t *testing.T) {
	d := diskMount(t, harness.Options{})
	keys := keysOf("g", hashes(20))
	coldBlocks(t, d, 64*kib, keys...)
	store(t, d.Path("g/hot"), []byte("hot"))
	f := follow(t, d, nil)
	c := talk(t, d, "query")
	asked := append([]string{"g/none", "g/hot"}, keys[:10]...)
	got := c.exists(obj{"keys": asked, "promote": true, "request": "req-promote"})
	if got.States != ".m"+strings.Repeat("d", 10) {
		t.Errorf("got %q, want what was there before", got.States)
	}
	f.allStored("memory", "promoted", keys[:10]...)
	wantStates(t, c, strings.Repeat("m", 10)+strings.Repeat("d", 10), keys...)
	for _, key := range keys {
		wantBytes(t, d.Path(key), pattern(key, 64*kib))
	}
}

// TestAfterRestart shows that a daemon answers for blocks that its SSD tier had before, and that its memory of events
// begins anew.
func TestAfterRestart(t *testing.T) {
	d := diskMount(t, harness.Options{})
	keys := keysOf("g", hashes(10))
	coldBlocks(t, d, 20_000, keys...)
	put(t, d.Path("g/removed"), []byte("x"))
	unlink(t, d.Path("g/removed"))
	d.Restart()
	c := talk(t, d, "query")
	wantStates(t, c, "dddddddddd.", append(keys, "g/removed")...)
	hit := c.longestHit(obj{"spec": specOf([]layer{{"g", "full", 0}}), "hashes": hashes(12)})
	if hit.Tokens != 10*tokensPerBlock {
		t.Errorf("longest_hit: got %+v", hit)
	}
	if got := c.why("g/removed")[0]; got.Verdict != "never_stored" || got.Time == "" {
		t.Errorf("why: got %+v, want never_stored, since when it remembers", got)
	}
	f := follow(t, d, obj{"since": 1})
	if got := talk(t, d, "prefetch").prefetch(obj{"keys": keys}).Results; got != "llllllllll" {
		t.Errorf("prefetch: %q", got)
	}
	f.allStored("memory", "promoted", keys...)
	for _, key := range keys {
		wantBytes(t, d.Path(key), pattern(key, 20_000))
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
