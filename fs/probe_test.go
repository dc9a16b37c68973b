package fs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/state"
)

// faultyMemory is a primary tier of which the first opens go wrong, by flaw.
type faultyMemory struct {
	driver.Primary
	flaw  func(content []byte) ([]byte, error)
	wrong atomic.Int64 // opens to go wrong yet
	files atomic.Int64 // that are there
}

func (m *faultyMemory) Create() (driver.BlobID, *os.File, error) {
	m.files.Add(1)
	return m.Primary.Create()
}

func (m *faultyMemory) Remove(id driver.BlobID) error {
	m.files.Add(-1)
	return m.Primary.Remove(id)
}

// Open returns a copy of the file, with the flaw.
func (m *faultyMemory) Open(id driver.BlobID) (*os.File, error) {
	file, err := m.Primary.Open(id)
	if err != nil || m.wrong.Add(-1) < 0 {
		return file, err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if err == nil {
		content, err = m.flaw(content)
	}
	if err != nil {
		return nil, err
	}
	other, another, err := m.Primary.Create()
	if err != nil {
		return nil, err
	}
	_, err = another.Write(content)
	return another, errors.Join(err, m.Primary.Remove(other))
}

// flaws are what can be wrong with a file.
func flaws(t *testing.T) map[string]func([]byte) ([]byte, error) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	at := int(seed % uint64(len(probeContent())))
	return map[string]func([]byte) ([]byte, error){
		"another byte": func(b []byte) ([]byte, error) { b[at%len(b)] ^= 1; return b, nil },
		"zeros":        func(b []byte) ([]byte, error) { return make([]byte, len(b)), nil },
		"short":        func(b []byte) ([]byte, error) { return b[:at%len(b)], nil },
		"long":         func(b []byte) ([]byte, error) { return append(b, 0), nil },
		"no file":      func([]byte) ([]byte, error) { return nil, unix.ENOENT },
	}
}

// TestSelfTest (A10): a mount reads what memory holds through the kernel before it is ready. Where
// passthrough gives something else, the daemon copies, unless passthrough is demanded; where nothing gives
// the bytes, nothing is mounted. No file of the test stays, and no listing shows it.
func TestSelfTest(t *testing.T) {
	if s, _ := mountHere(t); s.ReadPath() != "passthrough" {
		t.Skipf("no passthrough: %s", s.PathReason())
	}
	const all = 1 << 30
	for flaw, do := range flaws(t) {
		for name, c := range map[string]struct {
			passthrough Switch
			wrong       int64 // files that are opened
			path        string
			err         error
		}{
			"passthrough":       {Auto, 0, "passthrough", nil},
			"passthrough wrong": {Auto, 1, "copy", nil},
			"both wrong":        {Auto, all, "", ErrSelfTest},
			"on":                {On, 0, "passthrough", nil},
			"on, wrong":         {On, 1, "", ErrPassthrough},
			"splice":            {Off, 0, "splice", nil},
			"splice wrong":      {Off, 1, "", ErrSelfTest},
		} {
			t.Run(flaw+"/"+name, func(t *testing.T) {
				m := &faultyMemory{flaw: do}
				m.wrong.Store(c.wrong)
				testSelfTest(t, m, Options{Passthrough: c.passthrough}, c.path, c.err)
			})
		}
	}
}

func testSelfTest(t *testing.T, m *faultyMemory, o Options, path string, want error) {
	s, err := mountOver(t, o, func(p driver.Primary) driver.Primary { m.Primary = p; return m })
	if !errors.Is(err, want) || err != nil && strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v, want one line with %v", err, want)
	}
	if err != nil {
		text := err.Error()
		dir, _, _ := strings.Cut(strings.TrimPrefix(text, "mount "), ": ")
		if at, err := device.TopMount(dir); at != nil || err != nil || !filepath.IsAbs(dir) {
			t.Errorf("%s: %v is mounted there, %v", text, at, err)
		}
		return
	}
	if s.ReadPath() != path || !s.Tested() {
		t.Errorf("%s, tested %v; want %s", s.ReadPath(), s.Tested(), path)
	}
	if path == "copy" && (!strings.Contains(s.PathReason(), "self-test") || s.WritePath() != "daemon") {
		t.Errorf("writes: %s; reason: %q", s.WritePath(), s.PathReason())
	}
	waitFor(t, func() string {
		if m.files.Load() == 0 && s.Backings() == 0 {
			return ""
		}
		return "the file of the test is still there"
	})
	if st := s.files.engine.Stats(); st.Names != 0 || st.Counters != (state.Counters{}) {
		t.Errorf("%d names, %+v", st.Names, st.Counters)
	}
	c := startClient(t)
	c.do("write", filepath.Join(s.opts.Dir, "group", "block"))
	c.do("read", filepath.Join(s.opts.Dir, "group", "block"))
}

// TestSelfTestMapped (A10): the pages of a mapping are compared, and one that cannot be had is none.
func TestSelfTestMapped(t *testing.T) {
	want := probeContent()
	at := rand.IntN(len(want))
	t.Logf("byte %d", at)
	other := bytes.Clone(want)
	other[at] ^= 1
	for name, c := range map[string]struct {
		content []byte
		same    bool
	}{"same": {want, true}, "another byte": {other, false}, "no pages": {nil, false}} {
		file, err := os.CreateTemp(t.TempDir(), "")
		must(t, err)
		if _, err := file.Write(c.content); err != nil {
			t.Fatal(err)
		}
		m, err := unix.Mmap(int(file.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
		must(t, err)
		if got := sameMapped(m, want); got != c.same {
			t.Errorf("%s: got %v, want %v", name, got, c.same)
		}
		must(t, errors.Join(unix.Munmap(m), file.Close()))
	}
}

// TestSelfTestOfNobody (A10): a directory that has no probe, as the mount of an earlier version, is no failure.
func TestSelfTestOfNobody(t *testing.T) {
	s := newServer(nil, Options{Dir: t.TempDir()})
	if err := s.selfTest(); err != nil || s.Tested() {
		t.Errorf("tested %v, %v", s.Tested(), err)
	}
}
