package mount

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const manyEntries = 100_000

// dirent is one entry of getdents64.
type dirent struct {
	name string
	kind byte
}

// readdir calls getdents64 until the end of the directory and gives fn each
// batch.
func readdir(t testing.TB, fd int, fn func([]dirent)) {
	t.Helper()
	buf := make([]byte, 32*kib)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("getdents64: %v", err)
		}
		if n == 0 {
			return
		}
		var batch []dirent
		for b := buf[:n]; len(b) > 0; {
			reclen := binary.NativeEndian.Uint16(b[16:])
			name := b[19:reclen]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			if s := string(name); s != "." && s != ".." {
				batch = append(batch, dirent{s, b[18]})
			}
			b = b[reclen:]
		}
		fn(batch)
	}
}

func openDir(t testing.TB, dir string) *file {
	return open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// TestReaddir is the readdir row of section 3.1: 100,000 blocks in one flat directory, each listed once, with its type.
// TestReaddirEnds is about listings while entries come and go.
func TestReaddir(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "1GiB"})
	n := manyEntries
	if testing.Short() || harness.RaceEnabled {
		n /= 10
	}
	dir := d.Path("flat")
	mkdir(t, dir)
	fill(t, dir, n)

	t.Run("P0 each entry once, with d_type (SGLang scandir)", func(t *testing.T) {
		seen := make(map[string]byte)
		readdir(t, openDir(t, dir).fd, func(batch []dirent) {
			for _, e := range batch {
				if _, ok := seen[e.name]; ok {
					t.Fatalf("%s listed twice", e.name)
				}
				seen[e.name] = e.kind
			}
		})
		if len(seen) != n+1 {
			t.Errorf("got %d entries, want %d", len(seen), n+1)
		}
		for name, kind := range seen {
			want := byte(unix.DT_REG)
			if name == "sub" {
				want = unix.DT_DIR
			}
			if kind != want {
				t.Fatalf("%s: d_type %d, want %d", name, kind, want)
			}
		}
	})

	t.Run("P0 rewind lists again; two handles are independent (listdir)", func(t *testing.T) {
		a, b := openDir(t, dir), openDir(t, dir)
		count := func(f *file) (c int) {
			readdir(t, f.fd, func(batch []dirent) { c += len(batch) })
			return c
		}
		if got := count(a); got != n+1 {
			t.Errorf("first pass: got %d, want %d", got, n+1)
		}
		a.seek(0, unix.SEEK_SET, 0)
		if ga, gb := count(a), count(b); ga != n+1 || gb != n+1 {
			t.Errorf("second pass: got %d, other handle %d, want %d", ga, gb, n+1)
		}
	})

	t.Run("P0 removing each name as it is listed empties the directory (rm, SGLang clear)", func(t *testing.T) {
		must(t, "rmdir", unix.Rmdir(dir+"/sub"))
		var removed int
		readdir(t, openDir(t, dir).fd, func(batch []dirent) {
			for _, e := range batch {
				unlink(t, dir+"/"+e.name)
				removed++
			}
		})
		if removed != n {
			t.Errorf("removed %d in one pass, want %d", removed, n)
		}
		if left := listNames(t, dir); len(left) != 0 {
			t.Errorf("%d left, first %q", len(left), left[0])
		}
		must(t, "rmdir", unix.Rmdir(dir))
	})
}

func entryName(i int) string { return fmt.Sprintf("%s_%d.bin", hash64(i % 7)[:40], i) }

// fill makes n small files and one directory, from several goroutines.
func fill(t *testing.T, dir string, n int) {
	const workers = 8
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				if err := os.WriteFile(dir+"/"+entryName(i), []byte{1}, 0o644); err != nil {
					t.Errorf("create %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	mkdir(t, dir+"/sub")
	if t.Failed() {
		t.FailNow()
	}
}
