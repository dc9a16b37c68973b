package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// The rules of writing over the death of the owner, by processes that reach the same files through two mounts of it.

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
