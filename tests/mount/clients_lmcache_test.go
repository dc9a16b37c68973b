package mount

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestLMCache replays LMCache's file back-ends: section 2c of the contract.
func TestLMCache(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "512MiB"})
	runRows(t, d, []row{
		{"P0 local_disk, buffered: in place, read back, overwrite after a restart, evict (LMCache)", localDisk},
		{"P0 local_disk, O_DIRECT: no O_TRUNC, one unchecked write (LMCache)", localDiskDirect},
		{"P0 FSConnector: header and data, fixed .tmp, replace, 4096 then the rest (LMCache)", fsConnector},
		{"P0 FSConnector: two processes store the same keys (LMCache)", fsConnectorCollide},
		{"P0 FSConnector with relative_tmp_dir: rename across directories (LMCache)", fsConnectorTmpDir},
		{"P0 fs native: write loop, rename, read loop (LMCache)", fsNative},
		{"P1 GDS, POSIX fallback: header, mmap MAP_SHARED, rename, metadata, MAP_POPULATE (LMCache)", gds},
		{"P1 NIXL pool: files opened for the life of the process (LMCache)", nixlPool},
	})
}

func lmName(i int, suffix string) string {
	return fmt.Sprintf("meta-llama-Llama-3.1-8B@1@0@%s@bfloat16%s", hash64(i)[:16], suffix)
}

// pyRead opens as Python does and reads n bytes with one call.
func pyRead(t testing.TB, path string, n int) []byte {
	t.Helper()
	f := open(t, path, unix.O_RDONLY, 0)
	defer f.close()
	f.wantSize(int64(n))
	unix.IoctlGetTermios(f.fd, unix.TCGETS)
	f.seek(0, unix.SEEK_CUR, 0)
	return f.read(n)
}

func localDisk(t *testing.T, e *env) {
	for round := range 2 { // the second is after a restart: the index is empty, files are there
		for i := range 6 {
			p := e.path(lmName(i, ".pt"))
			want := pattern(fmt.Sprint(round, i), 4*mib)
			f := open(t, p, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
			f.wantSize(0)
			unix.IoctlGetTermios(f.fd, unix.TCGETS)
			f.seek(0, unix.SEEK_CUR, 0)
			f.write(want)
			f.close()
			sameBytes(t, p, pyRead(t, p, 4*mib), want)
		}
	}
	for i := range 6 {
		unlink(t, e.path(lmName(i, ".pt")))
	}
	if left := listNames(t, e.dir); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func localDiskDirect(t *testing.T, e *env) {
	for round := range 2 {
		for i := range 4 {
			p := e.path(lmName(i, ".pt"))
			want := pattern(fmt.Sprint(round, i), 4*mib)
			f := open(t, p, unix.O_CREAT|unix.O_WRONLY|unix.O_DIRECT, 0o644)
			f.write(aligned(t, want))
			f.close()
			r := open(t, p, unix.O_RDONLY|unix.O_DIRECT, 0)
			sameBytes(t, p, r.read(4*mib), want)
			r.close()
			wantSeen(t, e.process(), p, want)
		}
	}
}

// fsConnectorPut stores as FSConnector does: 28 bytes of header, then the data.
func fsConnectorPut(t testing.TB, tmp, final string, p []byte) {
	t.Helper()
	f := open(t, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	unix.IoctlGetTermios(f.fd, unix.TCGETS)
	f.write(p[:28])
	f.write(p[28:])
	f.close()
	rename(t, tmp, final)
}

func fsConnector(t *testing.T, e *env) {
	for i := range 8 {
		final := e.path(lmName(i, ".data"))
		for v := range 2 { // no check for existence: stored again
			want := pattern(fmt.Sprint(v, i), 4*mib+28)
			fsConnectorPut(t, e.path(lmName(i, ".tmp")), final, want)
			f := open(t, final, unix.O_RDONLY, 0)
			f.wantSize(4*mib + 28)
			sameBytes(t, final, append(f.read(4096), f.read(4*mib+28-4096)...), want)
			f.close()
		}
	}
	glob, err := filepath.Glob(e.path("*.data"))
	if err != nil || len(glob) != 8 {
		t.Errorf("glob *.data: %d names, %v; want 8", len(glob), err)
	}
}

func fsConnectorCollide(t *testing.T, e *env) {
	harness.KvfsOnly(t, "one staging object for each open")
	const rounds, keys, size = 60, 5, 300 * kib // 600 stores
	lost := make(chan int, 2)
	for range 2 {
		a := harness.NewActor(t, nil)
		go func() {
			n := 0
			for r := range rounds * keys {
				base := e.path(lmName(r%keys, ""))
				err := a.WriteFile(base+".tmp", pattern(lmName(r%keys, ""), size))
				wantErrno(t, "write", err, nil)
				err = a.Rename(base+".tmp", base+".data")
				wantErrno(t, "rename", err, nil, unix.ENOENT)
				if err != nil {
					n++
				}
			}
			lost <- n
		}()
	}
	for left := 2; left > 0; {
		select {
		case n := <-lost:
			t.Logf("%d of %d renames lost to the other process", n, rounds*keys)
			left--
		default:
		}
		for k := range keys {
			b, err := os.ReadFile(e.path(lmName(k, ".data")))
			if os.IsNotExist(err) {
				continue
			}
			if err != nil || !slices.Equal(b, pattern(lmName(k, ""), size)) {
				t.Errorf("key %d: %d bytes, %v: torn", k, len(b), err)
			}
		}
	}
}

func fsConnectorTmpDir(t *testing.T, e *env) {
	mkdir(t, e.path("tmp"))
	for i := range 8 {
		want := pattern(fmt.Sprint(i), mib+28)
		fsConnectorPut(t, e.path("tmp", lmName(i, ".data")), e.path(lmName(i, ".data")), want)
		wantSeen(t, e.process(), e.path(lmName(i, ".data")), want)
	}
	if left := listNames(t, e.path("tmp")); len(left) != 0 {
		t.Errorf("left in tmp: %q", left)
	}
}

func fsNative(t *testing.T, e *env) {
	for i, n := range []int{32*mib + 28, 4096, mib} {
		final := e.path(fmt.Sprintf("llama@0x%08x@%s.data", i, hash64(i)))
		want := pattern(final, n)
		wantErrno(t, "exists", harness.Self().Access(final, unix.F_OK), unix.ENOENT)
		f := open(t, final+".tmp", unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, 0o644)
		for off := 0; off < n; {
			got, err := unix.Write(f.fd, want[off:])
			must(t, "write", err)
			off += got
		}
		f.close()
		rename(t, final+".tmp", final)
		r := open(t, final, unix.O_RDONLY, 0)
		got := make([]byte, 0, n)
		for len(got) < n {
			b := r.read(n - len(got))
			if len(b) == 0 {
				t.Fatalf("short: %d of %d bytes", len(got), n)
			}
			got = append(got, b...)
		}
		sameBytes(t, final, got, want)
		unlink(t, final)
	}
}

func gds(t *testing.T, e *env) {
	for i := range 4 {
		dir := e.path(fmt.Sprintf("%02d", i), fmt.Sprintf("%02d", 7*i))
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		final := dir + "/" + strings.ReplaceAll(lmName(i, ""), "/", "%2F") + ".kvcache.safetensors"
		tmp := fmt.Sprintf("%s/.tmp%08x", dir, i)
		want := slices.Concat(pattern("header", 4096), pattern(final, 2*mib))

		put(t, tmp, want[:4096])
		f := open(t, tmp, unix.O_RDWR, 0)
		f.truncate(int64(len(want)))
		m, err := unix.Mmap(f.fd, 0, len(want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, "mmap MAP_SHARED", err)
		copy(m[4096:], want[4096:])
		must(t, "munmap", unix.Munmap(m))
		f.close()
		rename(t, tmp, final)
		put(t, tmp, pattern("meta", 4096))
		rename(t, tmp, final+".metadata")

		wantSeen(t, e.process(), final+".metadata", pattern("meta", 4096))
		meta := open(t, final+".metadata", unix.O_RDONLY|unix.O_NOATIME, 0)
		sameBytes(t, "metadata", meta.read(4096), pattern("meta", 4096))
		meta.close()
		f = open(t, final, unix.O_RDONLY, 0)
		f.wantSize(int64(len(want)))
		sameBytes(t, "mapping", mapFile(t, f, len(want), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE), want)
		f.close()
		wantSeen(t, e.process(), final, want)
	}
	var found []string
	readdir(t, openDir(t, e.dir).fd, func(batch []dirent) {
		for _, d := range batch {
			for _, sub := range listNames(t, e.path(d.name)) {
				found = append(found, listNames(t, e.path(d.name, sub))...)
			}
		}
	})
	if len(found) != 8 {
		t.Errorf("start-up scan: %d files, want 8", len(found))
	}
}

func nixlPool(t *testing.T, e *env) {
	var pool []*file
	for i := range 16 {
		pool = append(pool, open(t, e.path(fmt.Sprintf("obj_%d_%04x.bin", i, i)), unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o644))
	}
	for round := range 3 {
		for i, f := range pool {
			submit(t, f.fd, aioPwrite, aligned(t, pattern(fmt.Sprint(round, i), mib)), 256*kib)
		}
		for i, f := range pool {
			got := aligned(t, make([]byte, mib))
			submit(t, f.fd, aioPread, got, 256*kib)
			sameBytes(t, fmt.Sprintf("object %d", i), got, pattern(fmt.Sprint(round, i), mib))
		}
	}
	// Dynamic mode: temp, close, rename, clean-up by listdir.
	final := e.path(lmName(1, ".data"))
	put(t, final+".tmp."+hash64(1)[:32], binary.BigEndian.AppendUint64(nil, 42))
	rename(t, final+".tmp."+hash64(1)[:32], final)
	wantSize(t, final, 8)
	for _, name := range listNames(t, e.dir) {
		unlink(t, e.path(name))
	}
	sameBytes(t, "after unlink", pool[3].pread(mib, 0), pattern(fmt.Sprint(2, 3), mib))
}
