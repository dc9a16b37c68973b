package directio

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// wantErr fails a test if an error is not of a kind.
func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mem maps size bytes of anonymous memory until the test ends.
func mem(t testing.TB, size int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(m)) })
	return m
}

// noise fills p with bytes that follow from seed.
func noise(p []byte, seed uint64) {
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(p)
}

// fileWith makes a file of the given content in dir, or the test's directory, open
// with O_DIRECT until the test ends.
func fileWith(t testing.TB, dir string, content []byte) *File {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	path := filepath.Join(dir, "file")
	must(t, os.WriteFile(path, content, 0o600))
	f, err := OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// UsedBytes returns how much is in use.
func (p *Pool) UsedBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.used
}
