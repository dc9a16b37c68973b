package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// The rules of writing, by processes that reach the same files through two mounts of one owner:
// those of tests/mount hold here, too, and over the death of the owner.

// pair is an owner with two mounts, and a process on each.
type pair struct {
	t    *testing.T
	o    *owner
	a, b *end
}

// end is a mount and a process that works there.
type end struct {
	*harness.Actor
	d *harness.Daemon
}

// on returns the path of a name in this mount.
func (e *end) on(elems ...string) string { return e.d.Path(append([]string{"g"}, elems...)...) }

// next is another process on the same mount.
func (e *end) next(t *testing.T) *end { return &end{harness.NewActor(t, nil), e.d} }

func newPair(t *testing.T, flags ...string) *pair {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("groups:\n  pool: {pinned: true, quota: 16MiB}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, o: serve(t, append([]string{"--config", config}, flags...)...)}
	for _, e := range []**end{&p.a, &p.b} {
		*e = &end{harness.NewActor(t, nil), p.o.mount(patient...)}
	}
	for _, dir := range []string{"g", "pool"} {
		p.must("mkdir", p.a.Mkdir(p.a.d.Path(dir), 0o777))
		harness.Poll(t, "the other mount has the directory", func() bool { _, err := p.b.Stat(p.b.d.Path(dir)); return err == nil })
	}
	return p
}

// onPairs runs a test with memory alone and with an SSD below a memory that is smaller than the data.
func onPairs(t *testing.T, run func(t *testing.T, p *pair)) {
	t.Run("memory", func(t *testing.T) { run(t, newPair(t)) })
	t.Run("SSD", func(t *testing.T) {
		run(t, newPair(t, "--memory-size", "32MiB", "--disk", "size=256MiB,path="+harness.NewDiskDir(t, nil)))
	})
}

func (p *pair) must(what string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

func (p *pair) open(e *end, path string, flags int) int {
	p.t.Helper()
	fd, err := e.Open(path, flags, 0o644)
	p.must(fmt.Sprintf("open %s with %#o", filepath.Base(path), flags), err)
	return fd
}

func (p *pair) pwrite(e *end, fd int, b []byte, off int64) {
	p.t.Helper()
	_, err := e.Pwrite(fd, b, off)
	p.must("pwrite", err)
}

// store commits a block by rename.
func (p *pair) store(e *end, path string, b []byte) {
	p.t.Helper()
	p.must("store", e.WriteFile(path+".tmp", b))
	p.must("store", e.Rename(path+".tmp", path))
}

// sees fails unless a process finds these bytes under the name.
func (p *pair) sees(when string, e *end, path string, want []byte) {
	p.t.Helper()
	st, err := e.Stat(path)
	if err != nil || st.Size != int64(len(want)) {
		p.t.Errorf("%s: size of %s: %d, %v, want %d", when, filepath.Base(path), st.Size, err, len(want))
	}
	if got, err := e.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		p.t.Errorf("%s: %s: got %d bytes, or wrong ones, %v, want %d", when, filepath.Base(path), len(got), err, len(want))
	}
}

// comesToSee is sees for the other mount, whose kernel learns of names a moment later.
func (p *pair) comesToSee(when string, e *end, path string, want []byte) {
	p.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(harness.Deadline / 6); time.Now().Before(deadline); <-tick.C {
		if got, err := e.ReadFile(path); err == nil && bytes.Equal(got, want) {
			break
		}
	}
	p.sees(when, e, path, want)
}

// seesNone fails if a process finds a byte under the name.
func (p *pair) seesNone(when string, e *end, path string) {
	p.t.Helper()
	if st, err := e.Stat(path); err == nil && st.Size != 0 || err != nil && !errors.Is(err, unix.ENOENT) {
		p.t.Errorf("%s: stat of %s: %d bytes, %v", when, filepath.Base(path), st.Size, err)
	}
	if got, err := e.ReadFile(path); len(got) > 0 || err != nil && !errors.Is(err, unix.ENOENT) {
		p.t.Errorf("%s: %s has %d bytes, %v", when, filepath.Base(path), len(got), err)
	}
}

// squeeze writes more than memory takes.
func (p *pair) squeeze() {
	p.t.Helper()
	for i := range 16 {
		name := p.b.d.Path(fmt.Sprint("flood", i))
		p.store(p.b, name, make([]byte, 4<<20))
		p.must("unlink", p.b.Unlink(name))
	}
}

const (
	rewrite = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
	inPlace = unix.O_RDWR
)

// patched returns b with text at off.
func patched(b []byte, text string, off int) []byte {
	b = append([]byte(nil), b...)
	copy(b[off:], text)
	return b
}

// TestWritingInPlace is rule 1 through two mounts.
func TestWritingInPlace(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		p.store(p.a, p.a.on("x"), block(1))
		p.comesToSee("stored", p.b, p.b.on("x"), block(1))
		before := p.open(p.b, p.b.on("x"), unix.O_RDONLY)
		fd := p.open(p.a, p.a.on("x"), inPlace)
		p.pwrite(p.a, fd, []byte("one"), 100)
		want := patched(block(1), "one", 100)
		p.sees("written in place", p.b, p.b.on("x"), want)
		other := p.open(p.b, p.b.on("x"), inPlace)
		p.pwrite(p.b, other, []byte("two"), 5000)
		want = append(patched(want, "two", 5000), "tail"...)
		p.pwrite(p.b, other, []byte("tail"), int64(len(block(1))))
		p.squeeze()
		p.sees("written by both", p.a, p.a.on("x"), want)
		p.sees("written by both", p.b, p.b.on("x"), want)
		for who, read := range map[string]func() ([]byte, error){
			"a reader from before": func() ([]byte, error) { return p.b.Pread(before, 1<<20, 0) },
			"the first writer":     func() ([]byte, error) { return p.a.Pread(fd, 1<<20, 0) },
		} {
			if got, err := read(); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, or wrong ones, %v", who, len(got), err)
			}
		}
		p.must("close", p.a.Close(fd))
		p.must("close", p.b.Close(other))
		p.sees("closed", p.a, p.a.on("x"), want)
		p.sees("closed", p.b, p.b.on("x"), want)
	})
}

// TestWritingAppends: processes on two mounts append lines to one file; none is lost.
func TestWritingAppends(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		const lines = 100
		for _, name := range []string{"log", "log.lock", "log.tmp"} {
			p.must("touch", p.a.WriteFile(p.a.on(name), []byte("first\n")))
			p.comesToSee("made", p.b, p.b.on(name), []byte("first\n"))
			done := make(chan error, 2)
			for i, e := range []*end{p.a, p.b} {
				go func() { done <- e.Append(e.on(name), fmt.Appendf(nil, "%d a line\n", i), lines) }()
			}
			p.must("append", <-done)
			p.must("append", <-done)
			for _, e := range []*end{p.a, p.b} {
				got, err := e.ReadFile(e.on(name))
				if n := strings.Count(string(got), "line\n"); err != nil || n != 2*lines || len(got) != 6+9*2*lines {
					t.Errorf("%s: %d lines, %d bytes, %v, want %d lines", name, n, len(got), err, 2*lines)
				}
			}
		}
	})
}

// TestWritingAnew shows through two mounts that a file that is written anew is seen by its process alone, and that a
// writer that is killed leaves nothing.
func TestWritingAnew(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		p.store(p.a, p.a.on("x"), block(1))
		p.comesToSee("stored", p.b, p.b.on("x"), block(1))
		p.must("touch", p.b.WriteFile(p.b.on("empty"), nil))
		p.comesToSee("touched", p.a, p.a.on("empty"), nil)
		for _, kill := range []bool{true, false} {
			a, fds := p.a.next(t), map[string]int{}
			for _, name := range []string{"x", "empty", "new"} {
				fds[name] = p.open(a, a.on(name), rewrite)
				p.pwrite(a, fds[name], block(2)[:5000], 0)
				p.sees("its own", a, a.on(name), block(2)[:5000])
			}
			for name := range fds {
				harness.Poll(t, "the other mount has lost "+name, func() bool { _, err := p.b.Stat(p.b.on(name)); return err != nil })
			}
			if kill {
				a.Kill()
				for name := range fds {
					p.seesNone("killed", p.b, p.b.on(name))
				}
				p.store(p.a, p.a.on("x"), block(1))
				p.must("touch", p.b.WriteFile(p.b.on("empty"), nil))
				continue
			}
			for name, fd := range fds {
				p.pwrite(a, fd, block(2)[5000:], 5000)
				p.must("close", a.Close(fd))
				p.comesToSee("closed", p.b, p.b.on(name), block(2))
			}
		}
	})
}

// TestWritingPlain shows through two mounts that plain names are seen from the first byte, and that of two writers of one
// temporary name the later one has it.
func TestWritingPlain(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		for _, name := range []string{"g/x.lock", "g/x.pid", "g/x.tmp", "pool/x"} {
			a, b := p.a.d.Path(name), p.b.d.Path(name)
			fd := p.open(p.a, a, rewrite)
			p.pwrite(p.a, fd, []byte("one"), 0)
			p.sees("the first byte", p.b, b, []byte("one"))
			other := p.open(p.b, b, inPlace)
			p.pwrite(p.b, other, []byte("two"), 3)
			p.sees("the second writer", p.a, a, []byte("onetwo"))
			p.must("close", p.b.Close(other))
			p.must("close", p.a.Close(fd))
			p.sees("closed", p.b, b, []byte("onetwo"))
		}
		p.pwrite(p.a, p.open(p.a, p.a.on("t.tmp"), rewrite), block(1), 0)
		fd := p.open(p.b, p.b.on("t.tmp"), rewrite)
		p.pwrite(p.b, fd, block(2)[:5000], 0)
		p.must("rename", p.a.Rename(p.a.on("t.tmp"), p.a.on("t")))
		p.seesNone("before its writer closes it", p.a, p.a.on("t"))
		p.pwrite(p.b, fd, block(2)[5000:], 5000)
		p.must("close", p.b.Close(fd))
		p.comesToSee("closed", p.a, p.a.on("t"), block(2))
	})
}

// TestWritingNames shows through two mounts that a private file whose name the other mount has taken since commits nothing,
// that the other mount cannot remove it, and that a directory with such files can be removed.
func TestWritingNames(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		for _, name := range []string{"replaced", "removed"} {
			p.store(p.a, p.a.on(name), block(1))
			p.comesToSee("stored", p.b, p.b.on(name), block(1))
		}
		fds := []int{p.open(p.a, p.a.on("replaced"), rewrite), p.open(p.a, p.a.on("removed"), rewrite)}
		for _, fd := range fds {
			p.pwrite(p.a, fd, block(2), 0)
		}
		p.store(p.b, p.b.on("replaced"), block(3))
		if err := p.b.Unlink(p.b.on("removed")); !errors.Is(err, unix.ENOENT) {
			t.Errorf("unlink: %v", err)
		}
		for _, fd := range fds {
			p.must("close", p.a.Close(fd))
		}
		for _, e := range []*end{p.b, p.a} {
			p.comesToSee("closed", e, e.on("replaced"), block(3))
			p.comesToSee("closed", e, e.on("removed"), block(2))
		}
		p.must("mkdir", p.a.Mkdir(p.a.on("dir"), 0o777))
		harness.Poll(t, "the other mount has it", func() bool { _, err := p.b.Stat(p.b.on("dir")); return err == nil })
		for _, e := range []*end{p.a, p.b} {
			fd := p.open(e, e.on("dir", "w.tmp"), rewrite)
			p.pwrite(e, fd, block(4), 0)
			defer e.Close(fd)
		}
		if err := os.RemoveAll(p.b.on("dir")); err != nil {
			t.Errorf("rm -rf: %v", err)
		}
		p.seesNone("removed", p.a, p.a.on("dir", "w.tmp"))
	})
}

// TestWritingOwnerKilled is rule 5 through two mounts, over the death of the owner. Plain names, pinned groups and
// closed files are as they were. With an SSD synced bytes are there. A block changed in place is a miss, or whole. No
// half is a block.
func TestWritingOwnerKilled(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		ssd := strings.HasSuffix(t.Name(), "SSD")
		for i, name := range []string{"closed", "synced", "changed", "rewritten"} {
			p.store(p.a, p.a.on(name), block(i))
		}
		fd := p.open(p.a, p.a.on("closed"), inPlace)
		p.pwrite(p.a, fd, []byte("in place"), 100)
		p.must("close", p.a.Close(fd))
		fd = p.open(p.a, p.a.on("synced"), inPlace)
		p.pwrite(p.a, fd, []byte("in place"), 100)
		p.must("fdatasync", p.a.Fdatasync(fd))
		fd = p.open(p.a, p.a.on("changed"), inPlace)
		p.pwrite(p.a, fd, []byte("in place"), 100)
		for _, name := range []string{"rewritten", "new"} {
			p.pwrite(p.a, p.open(p.a, p.a.on(name), rewrite), block(9)[:5000], 0)
		}
		plain := []string{"g/x.lock", "g/x.tmp", "pool/x"}
		for _, name := range plain {
			p.pwrite(p.a, p.open(p.a, p.a.d.Path(name), rewrite), block(8)[:5000], 0)
		}
		p.o.kill()
		p.o.start()
		for _, e := range []*end{p.b.next(t), p.a.next(t)} {
			p.sees("restarted", e, e.on("closed"), patched(block(0), "in place", 100))
			p.seesNone("restarted", e, e.on("rewritten"))
			p.seesNone("restarted", e, e.on("new"))
			for _, name := range plain {
				p.sees("restarted", e, e.d.Path(name), block(8)[:5000])
			}
			if ssd {
				p.sees("restarted", e, e.on("synced"), patched(block(1), "in place", 100))
			}
			got, err := e.ReadFile(e.on("changed"))
			if !errors.Is(err, unix.ENOENT) && (err != nil || !ssd || !bytes.Equal(got, block(2))) {
				t.Errorf("a block changed in place: %d bytes, %v", len(got), err)
			}
		}
	})
}

// TestWritingSynced shows that bytes that a process on one mount has synced are there for the other mount when a
// signal kills the process (Mooncake's offset store).
func TestWritingSynced(t *testing.T) {
	onPairs(t, func(t *testing.T, p *pair) {
		for _, name := range []string{"g/bucket", "pool/bucket"} {
			a := p.a.next(t)
			fd := p.open(a, a.d.Path(name), unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
			p.must("fallocate", a.Fallocate(fd, 0, 0, int64(len(block(1)))))
			p.pwrite(a, fd, block(1), 0)
			p.must("fdatasync", a.Fdatasync(fd))
			a.Kill()
			p.comesToSee("killed", p.b, p.b.d.Path(name), block(1))
			a = p.a.next(t)
			fd = p.open(a, a.d.Path(name), inPlace)
			p.pwrite(a, fd, []byte("rewritten"), 4096)
			p.must("fdatasync", a.Fdatasync(fd))
			a.Kill()
			p.comesToSee("killed again", p.b, p.b.d.Path(name), patched(block(1), "rewritten", 4096))
		}
	})
}
