package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func part(name string, text string, err error) Part {
	return Part{name, func(context.Context) ([]byte, error) { return []byte(text), err }}
}

// TestCollect shows that what fails or hangs is a line of errors.txt, with foreign names escaped, and holds nothing up.
func TestCollect(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	got := Collect(t.Context(), []Part{
		{"hangs", func(context.Context) ([]byte, error) { <-hang; return []byte("late"), nil }},
		{"hangs too", func(context.Context) ([]byte, error) { <-hang; return nil, nil }},
		{"heeds", func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return []byte("half"), ctx.Err() }},
		part("well", "text", nil),
		part("empty", "", nil),
		part("fails", "", errors.New("no\x1b[31m\nway")),
	}, time.Second)
	want := []File{{"heeds", []byte("half")}, {"well", []byte("text")}, {errorsName, []byte("hangs: no answer in time: 1s\n" +
		"hangs too: no answer in time: 1s\nheeds: context deadline exceeded\nfails: no\\x1b[31m\\nway\n")}}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := Collect(t.Context(), []Part{part("well", "text", nil)}, time.Minute); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

// unpack reads an archive.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	must(t, err)
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		text, err := io.ReadAll(r)
		if err != nil || h.Mode != 0o600 {
			t.Fatalf("%s: %v, mode %#o", h.Name, err, h.Mode)
		}
		files[h.Name] = string(text)
	}
}

// TestWrite shows that the archive has the files, that only the user may read it, and that it replaces an older one.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	must(t, os.WriteFile(path, []byte("old"), 0o644))
	must(t, Write(path, "d", []File{{"a", []byte("1")}, {"b", []byte("2")}}, time.Now()))
	if got := unpack(t, path); len(got) != 2 || got["d/a"] != "1" || got["d/b"] != "2" {
		t.Errorf("got %q", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
}

// noise returns bytes that no archive makes smaller.
func noise(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// TestWriteFails shows that a failed write is one error and leaves nothing, neither a part nor a temporary file, and that
// an older archive stays.
func TestWriteFails(t *testing.T) {
	files := []File{{"a", noise(1 << 20)}}
	if err := Write("/dev/full", "d", files, time.Now()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("/dev/full: got %v", err)
	}
	if info, err := os.Stat("/dev/full"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("/dev/full is gone: %v", err)
	}
	if err := Write(filepath.Join(t.TempDir(), "absent", "b"), "d", files, time.Now()); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no directory: got %v", err)
	}
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no small file system: %v", err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	path := filepath.Join(small, "b.tar.gz")
	must(t, os.WriteFile(path, []byte("old"), 0o600))
	if err := Write(path, "d", files, time.Now()); !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") {
		t.Errorf("full disk: got %v", err)
	}
	entries, err := os.ReadDir(small)
	if text, _ := os.ReadFile(path); err != nil || len(entries) != 1 || string(text) != "old" {
		t.Errorf("%v, left %v, %q", err, entries, text)
	}
}

// machine makes a root with files.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	return root
}

// TestMachine shows that of the mount table only the lines of kvfs are in the bundle.
func TestMachine(t *testing.T) {
	const ours = "45 27 0:42 / /run/kvfs/m rw - tmpfs kvfs rw\n46 27 0:43 / /kv rw shared:1 - fuse.kvfs kv\\040fs rw\n"
	root := machine(t, map[string]string{
		"proc/version": "Linux 6.12", "proc/self/limits": "Max open files 1 1 files\n",
		"proc/self/mountinfo": "1 1 0:1 / /kvfs rw - tmpfs tmpfs rw\n" + ours + "2 1 0:2 / /home rw - nfs secret.example.com:/ rw\n",
	})
	got := map[string]string{}
	for _, f := range Collect(t.Context(), Machine(root), time.Minute) {
		got[f.Name] = string(f.Text)
	}
	if len(got) != 3 || got["mounts.txt"] != ours || got["kernel.txt"] != "Linux 6.12" || got["limits.txt"] == "" {
		t.Errorf("got %q", got)
	}
	if files := Collect(t.Context(), Machine(t.TempDir()), time.Minute); len(files) != 1 || strings.Count(string(files[0].Text), "\n") != 3 {
		t.Errorf("an empty machine: got %q", files)
	}
}

// TestDaemon shows what is asked of a process, and that a dead one is only lines in errors.txt.
func TestDaemon(t *testing.T) {
	dir, err := os.MkdirTemp("", "kvfs") // short enough for a socket
	must(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/goroutine", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "stacks ", q.URL.RawQuery) })
	srv := &http.Server{Handler: mux}
	go srv.Serve(l) // ends with Close
	defer srv.Close()
	log := append(noise(maxLog), "last line\n"...)
	root := machine(t, map[string]string{"proc/42/limits": "limits", "proc/42/status": "VmRSS: 1 kB", "proc/42/fd/2": string(log)})
	got := map[string]string{}
	for _, f := range Collect(t.Context(), Daemon(root, 42, socket), time.Minute) {
		got[f.Name] = string(f.Text)
	}
	if len(got) != 5 || got["goroutines.txt"] != "stacks debug=2" || got[errorsName] != "heap.pb.gz: the daemon answers 404 Not Found\n" {
		t.Errorf("got %d files, goroutines %q, errors %q", len(got), got["goroutines.txt"], got[errorsName])
	}
	if end := got["log.txt"]; len(end) != maxLog || !strings.HasSuffix(end, "last line\n") {
		t.Errorf("the log has %d bytes", len(end))
	}
	files := Collect(t.Context(), append(Daemon(t.TempDir(), 42, ""), Daemon("/", 0, "")...), time.Minute)
	if len(files) != 1 || bytes.Count(files[0].Text, []byte("\n")) != 6 {
		t.Errorf("a dead daemon: got %q", files)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
