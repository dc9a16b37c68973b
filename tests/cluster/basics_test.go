package cluster

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestBasics shows the files of one node on the other nodes, without and with keys (A43).
func TestBasics(t *testing.T) {
	for _, mode := range []struct {
		name   string
		secure bool
	}{{"plain", false}, {"secure", true}} {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, harness.ClusterOptions{Secure: mode.secure, PeerTimeout: patient})
			for _, c := range []struct {
				name string
				run  func(*testing.T, *world)
			}{
				{"read", basicRead}, {"sizes", basicSizes}, {"attributes", basicAttributes},
				{"directories", basicDirectories}, {"list", basicList}, {"remove", basicRemove},
				{"rename", basicRename}, {"overwrite", basicOverwrite}, {"open while replaced", basicOpen},
				{"many readers", basicReaders},
			} {
				t.Run(c.name, func(t *testing.T) {
					w.t = t
					c.run(t, w)
				})
			}
			w.t = t
			w.agree()
		})
	}
}

// basicRead: a file written on one node is there on the other nodes.
func basicRead(t *testing.T, w *world) {
	name := block("read")
	version := w.mustWrite(w.Nodes[0], name, 2*mib)
	w.wantEverywhere(name, version)
	for _, n := range w.Nodes {
		if st, err := os.Stat(n.Path(name)); err != nil || st.Size() != 2*mib {
			t.Errorf("stat on %s: got %v, %v, want %d bytes", n.Name, st, err, 2*mib)
		}
		if !slices.Contains(w.list(n, group), "read") {
			t.Errorf("%s does not list it", n.Name)
		}
	}
	if m := w.Nodes[1].Member(w.Nodes[0].Name); m.FetchedKeys == 0 || m.FetchedSize < 2*mib {
		t.Errorf("%s has fetched %d blocks, %d bytes, want 1 and %d or more", w.Nodes[1].Name, m.FetchedKeys, m.FetchedSize, 2*mib)
	}
}

// basicSizes: blocks of any size arrive whole, also an empty file.
func basicSizes(t *testing.T, w *world) {
	for _, size := range []int{headerBytes, 4095, 4096, 4097, 64*kib + 1, mib, 17*mib + 3} {
		name := block("size-%d", size)
		version := w.mustWrite(w.Nodes[2], name, size)
		w.wantVersion(w.Nodes[0], name, version)
		w.remove(w.Nodes[2], name)
	}
	empty := block("empty")
	must(t, os.WriteFile(w.Nodes[0].Path(empty), nil, 0o644))
	harness.Poll(t, "the empty file is there", func() bool { return w.exists(w.Nodes[1], empty) })
	if b, err := os.ReadFile(w.Nodes[1].Path(empty)); len(b) != 0 || err != nil {
		t.Errorf("empty file: got %d bytes, %v", len(b), err)
	}
	w.remove(w.Nodes[1], empty)
}

// basicAttributes: mode, owner, size and mtime are the same everywhere, also after
// they have changed.
func basicAttributes(t *testing.T, w *world) {
	name := block("attributes")
	w.mustWrite(w.Nodes[0], name, 10_000)
	path := w.Nodes[0].Path(name)
	mtime := time.Unix(1_700_000_000, 0)
	err := errors.Join(os.Chmod(path, 0o640), os.Chown(path, 1234, 2345), os.Chtimes(path, mtime, mtime))
	must(t, err)
	var want unix.Stat_t
	must(t, unix.Stat(path, &want))
	for _, n := range w.Nodes[1:] {
		var got unix.Stat_t
		harness.Poll(t, "the attributes on "+n.Name, func() bool {
			err := unix.Stat(n.Path(name), &got)
			return err == nil && got.Mode == want.Mode && got.Uid == want.Uid && got.Gid == want.Gid && got.Size == want.Size
		})
		w.wantVersion(n, name, w.mustRead(w.Nodes[0], name))
		harness.Poll(t, fmt.Sprintf("the mtime of the copy on %s is %d", n.Name, want.Mtim.Sec), func() bool {
			err := unix.Stat(n.Path(name), &got)
			return err == nil && got.Mtim.Sec == want.Mtim.Sec
		})
	}
}

// basicDirectories: directories are seen everywhere, go everywhere, and do not go
// while a block is in them anywhere.
func basicDirectories(t *testing.T, w *world) {
	a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	must(t, os.MkdirAll(a.Path("dirs", "deep", "er"), 0o750))
	harness.Poll(t, "the directories are on the others", func() bool {
		return w.exists(b, "dirs/deep/er") && w.exists(c, "dirs/deep/er")
	})
	if st, err := os.Stat(b.Path("dirs", "deep")); err != nil || !st.IsDir() || st.Mode().Perm() != 0o750 {
		t.Errorf("directory on %s: got %v, %v", b.Name, st, err)
	}
	if err := os.Mkdir(b.Path("dirs"), 0o755); !errors.Is(err, unix.EEXIST) {
		t.Errorf("mkdir of what another node has: got %v, want EEXIST", err)
	}
	name := "dirs/deep/er/block"
	version := w.mustWrite(c, name, 100_000) // In a directory that only another node made.
	w.wantEverywhere(name, version)
	if err := os.Remove(b.Path("dirs", "deep", "er")); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("rmdir with a block of another node: got %v, want ENOTEMPTY", err)
	}
	w.remove(a, name)
	w.wantEverywhere(name, 0)
	for _, dir := range []string{"dirs/deep/er", "dirs/deep", "dirs"} {
		must(t, os.Remove(b.Path(dir)))
		for _, n := range w.Nodes {
			harness.Poll(t, dir+" is gone on "+n.Name, func() bool { return !w.exists(n, dir) })
		}
	}
}

// basicList: a listing has the names of all nodes, each once.
func basicList(t *testing.T, w *world) {
	var want []string
	for i := range 30 {
		n := w.Nodes[i%len(w.Nodes)]
		name := fmt.Sprintf("list-%02d", i)
		w.mustWrite(n, block("%s", name), 5000)
		want = append(want, name)
	}
	w.mustRead(w.Nodes[0], block("list-01")) // On two nodes now.
	for _, n := range w.Nodes {
		var got []string
		harness.Poll(t, "the listing of "+n.Name, func() bool {
			got = slices.DeleteFunc(w.list(n, group), func(s string) bool { return len(s) != len("list-00") || s[:5] != "list-" })
			return len(got) >= len(want)
		})
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %q, want %q", n.Name, got, want)
		}
	}
	for i, name := range want {
		n := w.Nodes[(i+1)%len(w.Nodes)]
		// A listing may be ahead of what the node knows by itself.
		harness.Poll(t, name+" is on "+n.Name, func() bool { return w.exists(n, block("%s", name)) })
		w.remove(n, block("%s", name))
	}
	for _, n := range w.Nodes {
		harness.Poll(t, n.Name+" lists none of the removed", func() bool {
			return !slices.ContainsFunc(w.list(n, group), func(s string) bool { return slices.Contains(want, s) })
		})
	}
}

// basicRemove: a removal on one node removes everywhere, copies included, and the name
// can be used again.
func basicRemove(t *testing.T, w *world) {
	name := block("remove")
	for _, remover := range w.Nodes {
		version := w.mustWrite(w.Nodes[0], name, 300_000)
		w.wantEverywhere(name, version) // Each has a copy now.
		w.remove(remover, name)
		if w.exists(remover, name) {
			t.Errorf("still there on %s, which removed it", remover.Name)
		}
		w.wantEverywhere(name, 0)
	}
	if err := os.Remove(w.Nodes[1].Path(name)); !errors.Is(err, unix.ENOENT) {
		t.Errorf("second removal: got %v, want ENOENT", err)
	}
}

// basicRename: a block that another node holds, too, can be moved, over another one too; one that only others hold
// cannot, but mv copies it.
func basicRename(t *testing.T, w *world) {
	for _, over := range []bool{false, true} {
		from, to := block("from-%v", over), block("to-%v", over)
		version := w.mustWrite(w.Nodes[0], from, 200_000)
		w.wantVersion(w.Nodes[2], from, version)
		if over {
			w.wantEverywhere(to, w.mustWrite(w.Nodes[2], to, 100_000))
		}
		harness.Poll(t, "the block is on "+w.Nodes[1].Name, func() bool { return w.exists(w.Nodes[1], from) })
		if err := os.Rename(w.Nodes[1].Path(from), w.Nodes[1].Path(to)); !errors.Is(err, unix.EXDEV) {
			t.Errorf("rename of a block of others: %v, want EXDEV", err)
		}
		w.wantVersion(w.Nodes[1], from, version)
		w.rename(w.Nodes[1], from, to)
		w.wantEverywhere(from, 0)
		w.wantEverywhere(to, version)
		w.remove(w.Nodes[0], to)
		w.wantEverywhere(to, 0)
	}
}

// basicOverwrite: after one node writes over the block of another one, all read the new bytes.
func basicOverwrite(t *testing.T, w *world) {
	name := block("overwrite")
	for i := range 9 { // Both ways of writing on each node.
		version := w.mustWrite(w.Nodes[i%len(w.Nodes)], name, 50_000+i)
		w.wantEverywhere(name, version)
	}
}

// basicOpen: a file that is open keeps its bytes when another node replaces or removes
// it.
func basicOpen(t *testing.T, w *world) {
	name := block("open")
	version := w.mustWrite(w.Nodes[0], name, mib)
	w.wantEverywhere(name, version)
	f, err := os.Open(w.Nodes[1].Path(name))
	must(t, err)
	defer f.Close()
	next := w.mustWrite(w.Nodes[2], name, mib+1)
	w.wantEverywhere(name, next)
	w.remove(w.Nodes[0], name)
	w.wantEverywhere(name, 0)
	b := make([]byte, mib)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := versionOf(name, b); got != version || err != nil {
		t.Errorf("open file: got version %d, %v, want %d", got, err, version)
	}
}

// basicReaders: many readers of one block that has to be fetched all get it, and it is
// fetched once.
func basicReaders(t *testing.T, w *world) {
	name := block("readers")
	version := w.mustWrite(w.Nodes[0], name, 8*mib)
	reader := w.Nodes[2]
	harness.Poll(t, "the block is known", func() bool { return w.exists(reader, name) })
	before := reader.Member(w.Nodes[0].Name).FetchedKeys
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { // Ends with its read.
			if got, err := w.read(reader, name); got != version || err != nil {
				t.Errorf("got version %d, %v, want %d", got, err, version)
			}
		})
	}
	all.Wait()
	if got := reader.Member(w.Nodes[0].Name).FetchedKeys - before; got != 1 {
		t.Errorf("fetched %d times, want once", got)
	}
}

// TestMembers shows the members that a node lists, and that a clean stop differs from a kill (E6).
func TestMembers(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{})
	a, b, c := w.Nodes[0], w.Nodes[1], w.Nodes[2]
	members := a.Members()
	if len(members) != 3 || !members[0].Self || members[0].Name != a.Name {
		t.Fatalf("members of %s: %+v", a.Name, members)
	}
	for _, m := range members[1:] {
		if m.Version == "" || m.ControlAddr == "" || m.BulkAddr == "" || len(m.Features) == 0 || len(m.Missing) != 0 || m.Breaker != "closed" {
			t.Errorf("member: %+v", m)
		}
		harness.Poll(t, m.Name+" has told its clock", func() bool { return member(a, m.Name).ClockError != 0 })
		if m := member(a, m.Name); m.SettingsDiffer || math.Abs(m.ClockAhead) > m.ClockError { // one machine, one clock
			t.Errorf("member: %+v", m)
		}
	}
	if code := b.Stop(); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
	c.Kill()
	a.WaitState(b, "left")
	a.WaitState(c, "failed")
	b.Restart()
	c.Restart()
	w.WaitJoined()
	out, errs, code := harness.Kvfs(t, "members", a.Dir)
	if code != 0 {
		t.Fatalf("kvfs members: exit code %d: %s", code, errs)
	}
	for _, n := range w.Nodes {
		if !containsLine(out, n.Name, "alive") {
			t.Errorf("kvfs members: no line with %s and alive:\n%s", n.Name, out)
		}
	}
}

// member returns what a node knows of another one; the zero Member if that is nothing.
func member(n *harness.Node, name string) harness.Member {
	for _, m := range n.Members() {
		if m.Name == name {
			return m
		}
	}
	return harness.Member{}
}
