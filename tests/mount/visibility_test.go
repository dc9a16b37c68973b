package mount

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestVisibility is section 3.4 of the contract: what other processes see before, at and after the commit of a block.
func TestVisibility(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "512MiB"})
	runRows(t, d, slices.Concat(commitRows, killRows, raceRows))
}

const hiding = "uncommitted bytes are hidden from other processes"

var commitRows = []row{
	{"P0 a new block in place: ENOENT for others until the last close (llama.cpp, LMCache)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, hiding)
		want := pattern("x", 4*mib)
		f := open(t, e.path("x"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		wantAbsent(t, e.process(), e.path("x"))
		f.write(want[:100])
		wantAbsent(t, e.process(), e.path("x"))
		f.write(want[100:])
		wantAbsent(t, e.process(), e.path("x"))
		if names, err := e.process().Names(e.dir); err != nil || slices.Contains(names, "x") {
			t.Errorf("others list %q, %v before the commit", names, err)
		}
		f.close()
		wantSeen(t, e.process(), e.path("x"), want)
	}},
	{"P0 a rewrite with O_TRUNC: others see nothing until close (llama.cpp, LMCache)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, hiding)
		old, want := pattern("old", 3*mib), pattern("new", 4*mib)
		put(t, e.path("x"), old)
		wantSeen(t, e.process(), e.path("x"), old)
		f := open(t, e.path("x"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		wantAbsent(t, e.process(), e.path("x"))
		f.write(want[:mib])
		wantAbsent(t, e.process(), e.path("x"))
		wantErrno(t, "access", e.process().Access(e.path("x"), unix.R_OK), unix.ENOENT)
		f.write(want[mib:])
		f.close()
		wantSeen(t, e.process(), e.path("x"), want)
	}},
	{"P0 a rewrite without O_TRUNC is in place: others see each write (NIXL)", func(t *testing.T, e *env) {
		old := pattern("old", 4*mib)
		put(t, e.path("x"), old)
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
		wantSeen(t, e.process(), e.path("x"), old)
		f.pwrite(aligned(t, pattern("new", mib)), 0)
		wantSeen(t, e.process(), e.path("x"), slices.Concat(pattern("new", mib), old[mib:]))
		f.pwrite(aligned(t, pattern("new", 4*mib)[mib:]), mib)
		f.close()
		wantSeen(t, e.process(), e.path("x"), pattern("new", 4*mib))
	}},
	{"P0 with two write handles the last close commits (POSIX writers)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, hiding)
		want := pattern("x", 2*mib)
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o644)
		g := open(t, e.path("x"), unix.O_WRONLY, 0)
		f.pwrite(want[:mib], 0)
		f.close()
		wantAbsent(t, e.process(), e.path("x"))
		g.pwrite(want[mib:], mib)
		g.close()
		wantSeen(t, e.process(), e.path("x"), want)
	}},
	{"P0 the writer's process sees its own bytes at any time, in every thread (GDS, torch)", func(t *testing.T, e *env) {
		want := pattern("x", 2*mib)
		f := open(t, e.path("x"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		f.write(want[:mib])
		seen := make(chan struct{})
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		go func() { // on another thread, as this one is locked
			defer close(seen)
			wantSeen(t, harness.Self(), e.path("x"), want[:mib])
		}()
		<-seen
		if got := listNames(t, e.dir); !slices.Equal(got, []string{"x"}) {
			t.Errorf("own listing: got %q, want x", got)
		}
		f.write(want[mib:])
		wantSeen(t, harness.Self(), e.path("x"), want)
		f.close()
		wantSeen(t, e.process(), e.path("x"), want)
	}},
	{"P0 write, close, reopen r+, ftruncate, mmap, close, rename in one process (GDS)", func(t *testing.T, e *env) {
		put(t, e.path(".tmp0a1b2c3d"), pattern("header", 4096))
		f := open(t, e.path(".tmp0a1b2c3d"), unix.O_RDWR, 0)
		sameBytes(t, "header", f.pread(4096, 0), pattern("header", 4096))
		f.truncate(4096 + mib)
		f.pwrite(pattern("body", mib), 4096)
		f.close()
		rename(t, e.path(".tmp0a1b2c3d"), e.path("x"))
		wantSeen(t, e.process(), e.path("x"), append(pattern("header", 4096), pattern("body", mib)...))
	}},
	{"P0 a reader's open handle never changes under it (all)", func(t *testing.T, e *env) {
		store(t, e.path("x"), pattern("v0", mib))
		fd, err := e.process().Open(e.path("x"), unix.O_RDONLY, 0)
		must(t, "open", err)
		check := func(step string) {
			t.Helper()
			got, err := e.process().Pread(fd, 2*mib, 0)
			must(t, "pread", err)
			sameBytes(t, "after "+step, got, pattern("v0", mib))
		}
		store(t, e.path("x"), pattern("v1", 2*mib))
		check("rename over it")
		put(t, e.path("x"), pattern("v2", mib))
		check("rewrite")
		unlink(t, e.path("x"))
		check("unlink")
	}},
	{"P0 a reader that opened before a rewrite in place keeps the old version (llama.cpp)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "versions")
		put(t, e.path("x"), pattern("v0", 2*mib))
		fd, err := e.process().Open(e.path("x"), unix.O_RDONLY, 0)
		must(t, "open", err)
		put(t, e.path("x"), pattern("v1", mib))
		got, err := e.process().Pread(fd, 3*mib, 0)
		must(t, "pread", err)
		sameBytes(t, "old handle", got, pattern("v0", 2*mib))
		wantSeen(t, e.process(), e.path("x"), pattern("v1", mib))
	}},
	{"P0 data is there at once after rename, and after a rename while open (llm-d)", func(t *testing.T, e *env) {
		for i := range 20 {
			p := e.path(fmt.Sprint(i))
			f := open(t, p+".tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
			f.write(pattern(p, mib))
			rename(t, p+".tmp", p)
			wantSeen(t, e.process(), p, pattern(p, mib))
			f.close()
			wantSeen(t, e.process(), p, pattern(p, mib))
		}
	}},
	{"P0 unlink of an uncommitted block: no close brings it back (Dynamo)", func(t *testing.T, e *env) {
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		f.write(pattern("x", mib))
		unlink(t, e.path("x"))
		f.close()
		wantAbsent(t, e.process(), e.path("x"))
		wantAbsent(t, harness.Self(), e.path("x"))
	}},
	{"P0 a name created by one process and replaced by another's rename (vLLM instances)", func(t *testing.T, e *env) {
		a, b := e.process(), harness.NewActor(t, nil)
		for i := range 10 {
			p := e.path(fmt.Sprint(i))
			must(t, "a", a.WriteFile(p+".1.tmp", pattern(p, mib)))
			must(t, "b", b.WriteFile(p+".2.tmp", pattern(p, mib)))
			must(t, "a renames", a.Rename(p+".1.tmp", p))
			wantSeen(t, b, p, pattern(p, mib))
			must(t, "b renames", b.Rename(p+".2.tmp", p))
			wantSeen(t, a, p, pattern(p, mib))
		}
	}},
}

var killRows = []row{
	{"P0 a writer killed in the middle leaves no short block under a final name (llama.cpp, LMCache)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "no short blocks")
		for i := range 10 {
			p := e.path(fmt.Sprintf("%d.bin", i))
			w := harness.NewActor(t, nil)
			fd, err := w.Open(p, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
			must(t, "open", err)
			_, err = w.Write(fd, pattern(p, mib))
			must(t, "write", err)
			w.Kill()
			wantAbsent(t, e.process(), p)
			wantAbsent(t, harness.Self(), p)
			put(t, p, pattern("whole", 2*mib))
			wantSeen(t, e.process(), p, pattern("whole", 2*mib))
		}
	}},
	{"P0 a writer killed while rewriting leaves nothing, or, in place, what it wrote (llama.cpp, LMCache)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "versions")
		inPlace := slices.Concat(pattern("new", mib), pattern("old", 2*mib)[mib:])
		for flags, want := range map[int][]byte{unix.O_TRUNC: nil, unix.O_DIRECT: inPlace} {
			p := e.path(fmt.Sprintf("%d.bin", flags))
			put(t, p, pattern("old", 2*mib))
			w := harness.NewActor(t, nil)
			fd, err := w.Open(p, unix.O_WRONLY|unix.O_CREAT|flags, 0o666)
			must(t, "open", err)
			_, err = w.Write(fd, pattern("new", mib))
			must(t, "write", err)
			w.Kill()
			if want == nil {
				wantAbsent(t, e.process(), p)
			} else {
				wantSeen(t, e.process(), p, want)
			}
		}
	}},
	{"P0 a writer killed before its rename publishes nothing (all temp+rename clients)", func(t *testing.T, e *env) {
		w := harness.NewActor(t, nil)
		fd, err := w.Open(e.path("x.tmp"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		must(t, "open", err)
		_, err = w.Write(fd, pattern("x", mib))
		must(t, "write", err)
		w.Kill()
		wantAbsent(t, e.process(), e.path("x"))
		store(t, e.path("x"), pattern("y", mib))
		wantSeen(t, e.process(), e.path("x"), pattern("y", mib))
	}},
	{"P0 what was renamed before the kill stays, though never closed (llm-d)", func(t *testing.T, e *env) {
		w := harness.NewActor(t, nil)
		fd, err := w.Open(e.path("x.tmp"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		must(t, "open", err)
		_, err = w.Write(fd, pattern("x", mib))
		must(t, "write", err)
		must(t, "rename", w.Rename(e.path("x.tmp"), e.path("x")))
		w.Kill()
		wantSeen(t, e.process(), e.path("x"), pattern("x", mib))
	}},
}

var raceRows = []row{
	{"P0 two processes on one fixed temporary name never mix, in any interleaving (LMCache FSConnector)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "one staging object for each open")
		a, b := harness.NewActor(t, nil), harness.NewActor(t, nil)
		for i, order := range interleavings(5, 5) {
			dir := e.path(fmt.Sprint(i))
			mkdir(t, dir)
			wa := &fixedTemp{a: a, dir: dir, bytes: pattern("a", 300*kib)}
			wb := &fixedTemp{a: b, dir: dir, bytes: pattern("b", 300*kib)}
			for _, second := range order {
				w := wa
				if second {
					w = wb
				}
				w.step(t)
				wantOneOf(t, e.process(), dir+"/x.data", order, wa, wb)
			}
			if !wa.renamed && !wb.renamed {
				t.Errorf("order %v: neither rename succeeded", order)
			}
		}
	}},
	{"P0 readers meet only whole versions while another process replaces (all)", func(t *testing.T, e *env) {
		const size = 600 * kib
		p := e.path("x")
		store(t, p, pattern("x-0", size))
		w := harness.NewActor(t, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for v := 1; v <= 60; v++ {
				err := w.WriteFile(p+".tmp.1", pattern(fmt.Sprintf("x-%d", v), size))
				if err == nil {
					err = w.Rename(p+".tmp.1", p)
				}
				wantErrno(t, "store", err, nil)
			}
		}()
		whole := make(map[string]bool)
		for v := range 61 {
			whole[string(pattern(fmt.Sprintf("x-%d", v), size))] = true
		}
		for reading := true; reading; {
			select {
			case <-done:
				reading = false
			default:
			}
			b, err := e.process().ReadFile(p)
			if err != nil || !whole[string(b)] {
				t.Errorf("got %d bytes, %v: not a whole version", len(b), err)
				reading = false
			}
		}
		<-done
		wantSeen(t, e.process(), p, pattern("x-60", size))
	}},
	{"P0 one store of the same key by each of 8 processes (ranks of MLA models)", func(t *testing.T, e *env) {
		var actors []*harness.Actor
		for range 8 {
			actors = append(actors, harness.NewActor(t, nil))
		}
		for i := range 10 {
			p := e.path(fmt.Sprint(i))
			errs := make(chan error, len(actors))
			for j, a := range actors {
				go func() {
					tmp := fmt.Sprintf("%s.tmp.%d", p, j)
					err := a.WriteFile(tmp, pattern(p, mib))
					if err == nil {
						err = a.Rename(tmp, p)
					}
					errs <- err
				}()
			}
			for range actors {
				wantErrno(t, "store", <-errs, nil)
			}
			wantSeen(t, actors[i%8], p, pattern(p, mib))
		}
	}},
}

// fixedTemp is a writer that stores x.data by way of x.tmp, in five steps.
type fixedTemp struct {
	a       *harness.Actor
	dir     string
	bytes   []byte
	at      int
	fd      int
	renamed bool
}

func (w *fixedTemp) step(t *testing.T) {
	t.Helper()
	half := len(w.bytes) / 2
	var err error
	switch w.at++; w.at {
	case 1:
		w.fd, err = w.a.Open(w.dir+"/x.tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	case 2:
		_, err = w.a.Write(w.fd, w.bytes[:half])
	case 3:
		_, err = w.a.Write(w.fd, w.bytes[half:])
	case 4:
		err = w.a.Close(w.fd)
	case 5:
		err = w.a.Rename(w.dir+"/x.tmp", w.dir+"/x.data")
		w.renamed = err == nil
		if err == unix.ENOENT {
			return // the loser's answer
		}
	}
	must(t, fmt.Sprintf("step %d", w.at), err)
}

// wantOneOf fails unless the block is whole, or absent while one of the two has not ended.
func wantOneOf(t *testing.T, a *harness.Actor, path string, order []bool, ws ...*fixedTemp) {
	t.Helper()
	b, err := a.ReadFile(path)
	if err == unix.ENOENT && (ws[0].at < 5 || ws[1].at < 5) {
		return
	}
	must(t, fmt.Sprintf("order %v, at step %d and %d: read", order, ws[0].at, ws[1].at), err)
	for _, w := range ws {
		// Closed but not renamed itself: the other's rename moved its bytes.
		if w.at >= 4 && slices.Equal(b, w.bytes) {
			return
		}
	}
	t.Errorf("order %v, at step %d and %d: %d bytes that are no complete store", order, ws[0].at, ws[1].at, len(b))
}

// interleavings returns all orders of n steps of one and m of another writer;
// true is the other.
func interleavings(n, m int) [][]bool {
	if n+m == 0 {
		return [][]bool{nil}
	}
	var all [][]bool
	if n > 0 {
		for _, rest := range interleavings(n-1, m) {
			all = append(all, append([]bool{false}, rest...))
		}
	}
	if m > 0 {
		for _, rest := range interleavings(n, m-1) {
			all = append(all, append([]bool{true}, rest...))
		}
	}
	return all
}
