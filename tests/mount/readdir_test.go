package mount

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

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

// TestReaddirEnds shows that a listing ends while names come and go in all ways, and gives what stays once: entries that
// nobody touches, those that are renamed within the directory, and names that are replaced or written anew.
func TestReaddirEnds(t *testing.T) {
	for name, flags := range map[string][]string{"passthrough": nil, "no passthrough": {"--memory-passthrough", "off"}} {
		t.Run(name, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{Flags: flags})
			for _, n := range []int{20, 300, 1200} {
				readdirEnds(t, d.Path(fmt.Sprint(n)), d.Path("other"), n)
			}
		})
	}
}

func readdirEnds(t *testing.T, dir, other string, n int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	mkdir(t, dir)
	mkdir(t, dir+"/dir")
	must(t, "mkdir", os.MkdirAll(other, 0o755))
	path := func(kind string, i int) string { return fmt.Sprintf("%s/%s%d", dir, kind, i) }
	kinds := []string{"stays", "renamed", "replaced", "anew", "moved", "fresh"}
	for i := range n {
		for _, kind := range kinds {
			put(t, path(kind, i), nil)
		}
	}
	changes := map[string]func(i int) error{
		"renamed": func(i int) error { // and back
			p := path("renamed", i)
			if err := again(func() error { return unix.Rename(p, p+"-other") }); err != nil {
				return err
			}
			return again(func() error { return unix.Rename(p+"-other", p) })
		},
		"replaced": func(i int) error {
			p := path("replaced", i)
			if err := os.WriteFile(p+".tmp", []byte("new"), 0o644); err != nil {
				return err
			}
			return again(func() error { return unix.Rename(p+".tmp", p) })
		},
		"anew": func(i int) error { return os.WriteFile(path("anew", i), []byte("new"), 0o644) },
		"moved": func(i int) error { // through another directory
			p, o := path("moved", i), fmt.Sprintf("%s/%d", other, i)
			if err := again(func() error { return unix.Rename(p, o) }); err != nil {
				return err
			}
			return again(func() error { return unix.Rename(o, p) })
		},
		"fresh": func(i int) error {
			if err := os.Remove(path("fresh", i)); err != nil {
				return err
			}
			return os.WriteFile(path("fresh", i), nil, 0o644)
		},
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	for kind, change := range changes {
		wg.Go(func() { // ends with end
			r := rand.New(rand.NewPCG(seed, uint64(len(kind))))
			for {
				select {
				case <-end:
					return
				default:
				}
				if err := change(r.IntN(n)); err != nil {
					t.Errorf("%s: %v", kind, err)
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer close(end)
	limit := time.Now().Add(harness.Deadline)
	for round := 0; round < 3 && !t.Failed(); round++ {
		seen := map[string]int{}
		listed := 0
		readdir(t, openDir(t, dir).fd, func(batch []dirent) {
			for _, e := range batch {
				want := byte(unix.DT_REG)
				if e.name == "dir" {
					want = unix.DT_DIR
				}
				if seen[e.name]++; e.kind != want {
					t.Errorf("%s: d_type %d, want %d", e.name, e.kind, want)
				}
			}
			if listed += len(batch); time.Now().After(limit) {
				t.Fatalf("%d entries listed of a directory with %d", listed, len(kinds)*n)
			}
		})
		if most := 3 * len(kinds) * n; listed > most {
			t.Errorf("%d entries listed of a directory with %d", listed, len(kinds)*n)
		}
		if seen["dir"] != 1 {
			t.Errorf("the directory was listed %d times", seen["dir"])
		}
		for i := range n {
			for _, kind := range []string{"stays", "replaced", "anew"} {
				name := fmt.Sprint(kind, i)
				if seen[name] != 1 {
					t.Errorf("%s was listed %d times", name, seen[name])
				}
			}
			name := fmt.Sprint("renamed", i)
			if c := seen[name] + seen[name+"-other"]; c != 1 {
				t.Errorf("%s was listed %d times", name, c)
			}
			name = fmt.Sprint("moved", i)
			if seen[name] > 1 {
				t.Errorf("%s was listed %d times", name, seen[name])
			}
		}
	}
}
