package takeover

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// The rules of writing over a takeover: what is open for writing then.

// newWritingSite is a site with a pinned group, pool, and directories g and pool.
func newWritingSite(t *testing.T, flags ...string) *site {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, []byte("groups:\n  pool: {pinned: true, quota: 16MiB}\n"), 0o644))
	s := newSite(t, append([]string{"--config", config}, flags...)...)
	s.mount()
	for _, dir := range []string{"g", "pool"} {
		must(t, os.Mkdir(s.name(dir), 0o755))
	}
	return s
}

// onSites runs a test with memory alone and with an SSD.
func onSites(t *testing.T, run func(t *testing.T, s *site)) {
	t.Run("memory", func(t *testing.T) { run(t, newWritingSite(t)) })
	t.Run("memory, no passthrough", func(t *testing.T) { run(t, newWritingSite(t, "--memory-passthrough", "off")) })
	t.Run("SSD", func(t *testing.T) {
		run(t, newWritingSite(t, "--memory-size", "32MiB", "--disk", "size=256MiB,path="+harness.NewDiskDir(t, nil)))
	})
}

// daemonsEnd is one of the ways in which a daemon is replaced.
type daemonsEnd struct {
	name string
	do   func(s *site)
}

var ends = []daemonsEnd{
	{"takeover", func(s *site) { s.takeover() }},
	{"kill", func(s *site) {
		s.daemons[len(s.daemons)-1].kill()
		s.mount()
	}},
}

func (s *site) name(elems ...string) string {
	return filepath.Join(append([]string{s.dir}, elems...)...)
}

func (s *site) must(what string, err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatalf("%s: %v", what, err)
	}
}

// writes opens a file in a process, and writes bytes at an offset. It stays open.
func (s *site) writes(a *harness.Actor, name string, flags int, b []byte, off int64) int {
	s.tb.Helper()
	fd, err := a.Open(name, flags, 0o644)
	s.must("open "+filepath.Base(name), err)
	_, err = a.Pwrite(fd, b, off)
	s.must("write "+filepath.Base(name), err)
	return fd
}

// has fails unless a new process finds one of these contents under the name; nil is ENOENT.
func (s *site) has(when, name string, want ...[]byte) {
	s.tb.Helper()
	got, err := harness.NewActor(s.tb, nil).ReadFile(name)
	for _, w := range want {
		if w == nil && errors.Is(err, unix.ENOENT) || w != nil && err == nil && bytes.Equal(got, w) {
			return
		}
	}
	s.tb.Errorf("%s: %s has %d bytes, %v, which is none of what it may be", when, filepath.Base(name), len(got), err)
}

const (
	rewrite = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
	inPlace = unix.O_RDWR
)

func patched(b []byte, text string, off int) []byte {
	b = bytes.Clone(b)
	copy(b[off:], text)
	return b
}

// TestWritingReplaced: a daemon is taken over, or killed and started again, while processes write.
// Plain names and files of pinned groups are as they are; what was closed or, with an SSD, synced is
// there; a block changed in place has the bytes that were written if the daemon was taken over, and
// is a miss or as it was if it was killed; no half of a new one is ever a block.
func TestWritingReplaced(t *testing.T) {
	for _, end := range ends {
		t.Run(end.name, func(t *testing.T) { onSites(t, func(t *testing.T, s *site) { replaced(t, s, end) }) })
	}
}

func replaced(t *testing.T, s *site, end daemonsEnd) {
	if end.name == "takeover" && s.status().Mount.ReadPath != "passthrough" {
		t.Skip("a mount that splices has no takeover")
	}
	ssd := strings.Contains(strings.Join(s.flags, " "), "--disk")
	a := harness.NewActor(t, nil)
	for i, name := range []string{"closed", "synced", "changed", "rewritten"} {
		s.must("store", put(s.name("g", name), i))
	}
	s.must("touch", os.WriteFile(s.name("g", "empty"), nil, 0o644))
	s.must("close", a.Close(s.writes(a, s.name("g", "closed"), inPlace, []byte("in place"), 100)))
	s.must("fsync", a.Fsync(s.writes(a, s.name("g", "synced"), inPlace, []byte("in place"), 100)))
	changed := s.writes(a, s.name("g", "changed"), inPlace, []byte("in place"), 100)
	for _, name := range []string{"rewritten", "new", "empty"} {
		s.writes(a, s.name("g", name), rewrite, block(9)[:5000], 0)
	}
	s.must("fdatasync", a.Fdatasync(s.writes(a, s.name("g", "new synced"), rewrite, block(8), 0)))
	plain := []string{"g/x.lock", "g/x.pid", "g/x.tmp", "pool/x"}
	fds := map[string]int{}
	for _, name := range plain {
		fds[name] = s.writes(a, s.name(name), rewrite, block(7)[:5000], 0)
	}
	end.do(s)

	check := func(when string) {
		t.Helper()
		s.has(when, s.name("g", "closed"), patched(block(0), "in place", 100))
		for _, name := range []string{"rewritten", "new", "empty"} {
			s.has(when, s.name("g", name), nil)
		}
		for _, name := range plain {
			s.has(when, s.name(name), block(7)[:5000])
		}
		switch {
		case end.name == "takeover":
			s.has(when, s.name("g", "changed"), patched(block(2), "in place", 100))
		case ssd:
			s.has(when, s.name("g", "changed"), nil, block(2))
		default:
			s.has(when, s.name("g", "changed"), nil)
		}
		if ssd {
			s.has(when, s.name("g", "synced"), patched(block(1), "in place", 100))
			s.has(when, s.name("g", "new synced"), block(8))
		}
	}
	check("replaced")
	a.Close(changed) // its error does not matter
	check("and closed")
	for _, name := range plain {
		if end.name == "takeover" { // of a killed daemon the descriptors are dead
			a.Close(fds[name])
			s.has("closed", s.name(name), block(7)[:5000])
		}
		s.must("append", harness.NewActor(t, nil).Append(s.name(name), []byte("later"), 1))
		s.has("appended", s.name(name), append(bytes.Clone(block(7)[:5000]), "later"...))
		s.must("unlink", os.Remove(s.name(name)))
		s.has("unlinked", s.name(name), nil)
	}
	a.Kill()
	for i, name := range []string{"new", "changed"} {
		s.must("store", put(s.name("g", name), 20+i))
		s.has("written anew", s.name("g", name), block(20+i))
	}
}
