package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestOtherClients replays llm-d, llama.cpp, Dynamo, NIXL and Mooncake:
// sections 2d to 2g of the contract.
func TestOtherClients(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "512MiB"})
	runRows(t, d, []row{
		{"P0 fs backend: writev, rename while open, touch, tail read (llm-d)", llmd},
		{"P0 fs backend with 64 threads (llm-d)", llmdThreads},
		{"P1 pvc_evictor: statvfs, crawl, atime, rm, rmdir (llm-d)", pvcEvictor},
		{"P0 slots: save in place with 4 KiB writes, save again, restore (llama.cpp)", llamaSlots},
		{"P1 server cache: temp and rename, scan, touch, remove the oldest (llama.cpp PR)", llamaServerCache},
		{"P1 KVBM disk tier: mkostemp, F_SETFL O_DIRECT, fallocate, unlink, IO at offsets (Dynamo)", dynamo},
		{"P1 POSIX plugin: path mode flags, AIO (NIXL)", nixlPath},
		{"P1 file per key: pwritev loop, preadv (Mooncake)", mooncakeFile},
		{"P1 bucket: data, fdatasync, meta, cached descriptors, partial preads (Mooncake)", mooncakeBucket},
		{"P1 offset allocator: fallocate, metadata by temp, fsync, rename, fsync of the directory (Mooncake)", mooncakeOffset},
	})
}

func llmdPath(root string, i int) string {
	h := hash64(i)
	return filepath.Join(root, "meta-llama_Llama_0123456789ab_r0", h[:3], h[3:5]+"_g0", h+".bin")
}

// llmdStore is store_file: touch if there, else temp, one writev with an empty
// first vector, rename while open, close.
func llmdStore(t testing.TB, final string, thread uint32, p []byte) {
	t.Helper()
	if r, err := tryOpen(t, final, unix.O_RDONLY, 0); err == nil {
		r.close()
		times := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
		must(t, "utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, final, times, 0))
		return
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o777); err != nil {
		t.Fatal(err)
	}
	tmp := fmt.Sprintf("%s_%d.tmp", final, thread)
	f := open(t, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	if n, err := unix.Writev(f.fd, [][]byte{nil, p}); err != nil || n != len(p) {
		t.Fatalf("writev: %d, %v", n, err)
	}
	rename(t, tmp, final)
	f.close()
}

func llmd(t *testing.T, e *env) {
	const size = 4 * mib
	for i := range 6 {
		p := llmdPath(e.dir, i)
		llmdStore(t, p, 3395708030, pattern(p, size))
		setTimes(t, p, older, older)
		llmdStore(t, p, 3395708030, nil)
		st := stat(t, p)
		wantTime(t, "mtime after the touch", st.Mtim, older)
		if st.Atim.Sec == older.Sec {
			t.Error("atime unchanged by the touch")
		}
		f := open(t, p, unix.O_RDONLY, 0)
		f.seek(0, unix.SEEK_END, size)
		f.seek(0, unix.SEEK_CUR, size)
		f.seek(size-2*mib, unix.SEEK_SET, size-2*mib)
		sameBytes(t, "tail", f.read(2*mib), pattern(p, size)[size-2*mib:])
		f.close()
		wantSeen(t, e.process(), p, pattern(p, size))
	}
}

func llmdThreads(t *testing.T, e *env) {
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			p := llmdPath(e.dir, w%32)
			tmp := fmt.Sprintf("%s_%d.tmp", p, w)
			err := os.MkdirAll(filepath.Dir(p), 0o777)
			if err == nil {
				err = os.WriteFile(tmp, pattern(p, mib), 0o666)
			}
			if err == nil {
				err = os.Rename(tmp, p)
			}
			if err != nil {
				t.Errorf("store: %v", err)
				return
			}
			if b, err := os.ReadFile(p); err != nil || len(b) != mib {
				t.Errorf("load: %d bytes, %v", len(b), err)
			}
		})
	}
	wg.Wait()
	for i := range 32 {
		wantBytes(t, llmdPath(e.dir, i), pattern(llmdPath(e.dir, i), mib))
	}
}

func pvcEvictor(t *testing.T, e *env) {
	for i := range 12 {
		llmdStore(t, llmdPath(e.dir, i), 1, pattern("x", 64*kib))
		if i >= 6 {
			setTimes(t, llmdPath(e.dir, i), older, older)
		}
	}
	var st unix.Statfs_t
	must(t, "statvfs", unix.Statfs(e.dir, &st))
	if st.Bfree == 0 {
		t.Error("f_bfree is 0")
	}
	removed := 0
	err := filepath.WalkDir(e.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() && stat(t, p).Atim.Sec == older.Sec {
			unlink(t, p)
			removed++
			unix.Rmdir(filepath.Dir(p))
		}
		return nil
	})
	if err != nil || removed != 6 {
		t.Errorf("removed %d, %v; want the 6 whose atime is old", removed, err)
	}
	for i := range 12 {
		if i < 6 {
			wantBytes(t, llmdPath(e.dir, i), pattern("x", 64*kib))
		} else {
			wantAbsent(t, e.process(), llmdPath(e.dir, i))
		}
	}
}

// llamaSave is llama_state_seq_save_file: stdio with a buffer of 4096 bytes.
func llamaSave(t testing.TB, path string, p []byte) {
	t.Helper()
	f := open(t, path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	f.wantSize(0)
	f.seek(0, unix.SEEK_SET, 0)
	for off, i := 0, 0; off < len(p); i++ {
		n := 4096
		if i%2 == 1 && i > 2 {
			n = 258048
		}
		n = min(n, len(p)-off)
		f.write(p[off : off+n])
		off += n
	}
	f.close()
}

func llamaSlots(t *testing.T, e *env) {
	for i, name := range []string{"slot0.bin", "\u4f1a\u8bdd \u0441\u043b\u043e\u0442.kv", "noext"} {
		for _, n := range []int{2*mib + 1111, 3 * mib, 900 * kib} {
			want := pattern(fmt.Sprint(i, n), n)
			llamaSave(t, e.path(name), want)
			f := open(t, e.path(name), unix.O_RDONLY, 0)
			f.seek(0, unix.SEEK_END, int64(n))
			f.seek(0, unix.SEEK_SET, 0)
			var got []byte
			for len(got) < n {
				b := f.read(4096)
				if len(b) == 0 {
					t.Fatalf("%s: truncated at %d of %d bytes", name, len(got), n)
				}
				got = append(got, b...)
			}
			f.close()
			sameBytes(t, name, got, want)
			wantSeen(t, e.process(), e.path(name), want)
		}
	}
	wantErrno(t, "restore of a missing slot", openErr(t, e.path("none"), unix.O_RDONLY), unix.ENOENT)
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

func dynamo(t *testing.T, e *env) {
	const size, block = 64 * mib, mib
	for _, how := range []string{"F_SETFL", "open-direct"} {
		p := e.path("dynamo-kvbm-disk-cache-" + how)
		flags := unix.O_RDWR | unix.O_CREAT | unix.O_EXCL
		if how == "open-direct" {
			flags |= unix.O_DIRECT
		}
		f := open(t, p, flags, 0o600)
		fl, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
		must(t, "F_GETFL", err)
		_, err = unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, fl|unix.O_DIRECT)
		must(t, "F_SETFL", err)
		must(t, "fallocate", again(func() error { return unix.Fallocate(f.fd, 0, 0, size) }))
		f.wantSize(size)
		unlink(t, p)
		wantAbsent(t, e.process(), p)
		for i := size/block - 1; i >= 0; i -= 7 {
			f.pwrite(aligned(t, pattern(fmt.Sprint(i), block)), int64(i)*block)
		}
		for i := size/block - 1; i >= 0; i -= 7 {
			f.seek(int64(i)*block, unix.SEEK_SET, int64(i)*block)
			sameBytes(t, fmt.Sprintf("block %d", i), f.read(block), pattern(fmt.Sprint(i), block))
		}
		if st := f.stat(); st.Size != size {
			t.Errorf("size: got %d, want %d", st.Size, size)
		}
		f.close()
	}
}

func nixlPath(t *testing.T, e *env) {
	p := e.path("object")
	want := aligned(t, pattern("object", 2*mib))
	f := open(t, p, unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT|unix.O_SYNC, 0o644)
	submit(t, f.fd, aioPwrite, want, 64*kib)
	f.close()
	wantSize(t, p, 2*mib)
	for _, flags := range []int{unix.O_RDONLY | unix.O_NOATIME, unix.O_RDONLY | unix.O_DIRECT} {
		f := open(t, p, flags, 0)
		got := aligned(t, make([]byte, 2*mib))
		submit(t, f.fd, aioPread, got, 64*kib)
		sameBytes(t, "read", got, want)
		f.close()
	}
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

func mooncakeOffset(t *testing.T, e *env) {
	f := open(t, e.path("arena"), unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC, 0o644)
	must(t, "fallocate", again(func() error { return unix.Fallocate(f.fd, 0, 0, 32*mib) }))
	f.pwrite(pattern("a", mib), 17*mib)
	must(t, "fdatasync", again(func() error { return unix.Fdatasync(f.fd) }))
	meta := open(t, e.path("arena.meta.tmp"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	meta.write(pattern("meta", 777))
	must(t, "fsync", again(func() error { return unix.Fsync(meta.fd) }))
	meta.close()
	rename(t, e.path("arena.meta.tmp"), e.path("arena.meta"))
	dir := openDir(t, e.dir)
	must(t, "fsync of the directory", again(func() error { return unix.Fsync(dir.fd) }))
	wantSeen(t, e.process(), e.path("arena.meta"), pattern("meta", 777))
	sameBytes(t, "arena", f.pread(mib, 17*mib), pattern("a", mib))
	f.wantSize(32 * mib)
}
