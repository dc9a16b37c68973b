package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestClients replays users of files that tests/engines does not have: section 2 of the contract.
func TestClients(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "512MiB"})
	runRows(t, d, []row{
		{"P1 GDS, POSIX fallback: header, mmap MAP_SHARED, rename, metadata, MAP_POPULATE (LMCache)", gds},
		{"P1 hf3fs mock: one big file, lseek and write, fsync (SGLang)", hf3fs},
		{"P1 server cache: temp and rename, scan, touch, remove the oldest (llama.cpp PR)", llamaServerCache},
		{"P1 file per key: pwritev loop, preadv (Mooncake)", mooncakeFile},
		{"P1 bucket: data, fdatasync, meta, cached descriptors, partial preads (Mooncake)", mooncakeBucket},
	})
}

const vllmModel = "meta-llama_Llama-3.1-8B_c78c9e79d404"

// vllmPath returns the path of block i below root.
func vllmPath(root string, i int) string {
	h := hash64(i)
	return filepath.Join(root, vllmModel+"_r0", h[0:3], h[3:5]+"_g0", h+".bin")
}

// vllmStore is one block's part of FileSystemTierManager's store job. thread
// distinguishes temporaries.
func vllmStore(t testing.TB, a *harness.Actor, final string, thread uint64, p []byte) error {
	if a.Access(final, unix.F_OK) == nil {
		return nil
	}
	var missing []string
	for dir := filepath.Dir(final); ; dir = filepath.Dir(dir) {
		if _, err := a.Stat(dir); err == nil {
			break
		}
		missing = append(missing, dir)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := a.Mkdir(missing[i], 0o777); err != nil && err != unix.EEXIST {
			return fmt.Errorf("mkdir: %w", err)
		}
	}
	tmp := fmt.Sprintf("%s_%d.tmp", final, thread)
	fd, err := a.Open(tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_TRUNC|unix.O_DIRECT, 0o644)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	n, err := a.Write(fd, p)
	if err != nil || n != len(p) {
		return fmt.Errorf("write: %d, %w", n, err)
	}
	if err := a.Close(fd); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if err := a.Rename(tmp, final); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	return nil
}

func openErr(t testing.TB, path string, flags int) error {
	f, err := tryOpen(t, path, flags, 0)
	if err == nil {
		f.close()
	}
	return err
}

func gds(t *testing.T, e *env) {
	for i := range 4 {
		dir := e.path(fmt.Sprintf("%02d", i), fmt.Sprintf("%02d", 7*i))
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		final := dir + "/" + hash64(i) + ".kvcache.safetensors"
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

func hf3fs(t *testing.T, e *env) {
	const size, page = 64 * mib, mib
	f := open(t, e.path("hicache.0.bin"), unix.O_RDWR|unix.O_CREAT, 0o666)
	f.truncate(size)
	rnd := newRand(t)
	written := make(map[int]string)
	for i := range 40 {
		slot := rnd.IntN(size / page)
		f.seek(int64(slot)*page, unix.SEEK_SET, int64(slot)*page)
		written[slot] = fmt.Sprint(i)
		f.write(pattern(written[slot], page))
	}
	must(t, "fsync", again(func() error { return unix.Fsync(f.fd) }))
	for slot, v := range written {
		f.seek(int64(slot)*page, unix.SEEK_SET, int64(slot)*page)
		sameBytes(t, fmt.Sprintf("slot %d", slot), f.read(page), pattern(v, page))
	}
	f.close()
	wantSize(t, e.path("hicache.0.bin"), size)
}

func llamaServerCache(t *testing.T, e *env) {
	name := func(i int) string { return e.path(fmt.Sprintf("%08x-%d-%s.kvc", i, 512, hash64(i)[:16])) }
	for i := range 8 {
		tmp := e.path(fmt.Sprintf(".%06d-%d.tmp", i, i))
		put(t, tmp, pattern(fmt.Sprint(i), mib))
		rename(t, tmp, name(i))
		setTimes(t, name(i), unix.Timespec{Sec: int64(1000 + i)}, unix.Timespec{Sec: int64(1000 + i)})
	}
	setTimes(t, name(0), unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Nsec: unix.UTIME_NOW}) // a hit
	oldest, at := "", int64(1<<62)
	for _, n := range listNames(t, e.dir) {
		st := stat(t, e.path(n))
		if m := st.Mtim.Nano(); m < at {
			oldest, at = e.path(n), m
		}
	}
	if oldest != name(1) {
		t.Errorf("oldest: got %s, want the second", filepath.Base(oldest))
	}
	unlink(t, oldest)
	wantErrno(t, "miss", openErr(t, oldest, unix.O_RDONLY), unix.ENOENT)
	wantBytes(t, name(0), pattern("0", mib))
}

func mooncakeFile(t *testing.T, e *env) {
	for i := range 6 {
		p := e.path(hash64(i))
		want := pattern(p, 3*mib+7)
		f := open(t, p, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
		if n, err := unix.Pwritev(f.fd, [][]byte{want[:mib], want[mib:]}, 0); err != nil || n != len(want) {
			t.Fatalf("pwritev: %d, %v", n, err)
		}
		f.close()
		got := make([]byte, len(want))
		f = open(t, p, unix.O_RDONLY, 0)
		if n, err := unix.Preadv(f.fd, [][]byte{got[:10], got[10:]}, 0); err != nil || n != len(want) {
			t.Fatalf("preadv: %d, %v", n, err)
		}
		f.close()
		sameBytes(t, "preadv", got, want)
		wantSeen(t, e.process(), p, want)
	}
	n := 0
	filepath.WalkDir(e.dir, func(string, os.DirEntry, error) error { n++; return nil })
	if n != 7 {
		t.Errorf("start-up scan: %d names, want 7", n)
	}
}

func mooncakeBucket(t *testing.T, e *env) {
	const keys, size = 40, 200*kib + 13
	var all []byte
	for k := range keys {
		all = append(all, pattern(fmt.Sprint(k), size)...)
	}
	data := open(t, e.path("1.bucket"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	for off := 0; off < len(all); off += mib {
		data.pwrite(all[off:min(off+mib, len(all))], int64(off))
	}
	must(t, "fdatasync", again(func() error { return unix.Fdatasync(data.fd) }))
	data.close()
	put(t, e.path("1.meta"), pattern("meta", 5000))
	cached := open(t, e.path("1.bucket"), unix.O_RDONLY, 0)
	unlink(t, e.path("1.meta"))
	unlink(t, e.path("1.bucket"))
	for k := keys - 1; k >= 0; k -= 3 {
		sameBytes(t, fmt.Sprintf("key %d", k), cached.pread(size, int64(k)*size), pattern(fmt.Sprint(k), size))
	}
}
