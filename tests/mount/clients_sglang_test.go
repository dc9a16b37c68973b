package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestSGLang replays SGLang's file back-ends: section 2b of the contract.
func TestSGLang(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "1GiB"})
	runRows(t, d, []row{
		{"P0 HiCacheFile: numpy tofile with dup, fallocate from 16 MiB, replace, readinto (SGLang)", hiCacheFile},
		{"P0 HiCacheFile: several ranks back up and prefetch at once (SGLang)", hiCacheRanks},
		{"P0 HiCacheFile: scandir look-up, restart order by mtime, eviction by statvfs, clear (SGLang)", hiCacheMaintenance},
		{"P1 HiCacheNixl: 256 buckets, in place, O_DIRECT, read through O_RDWR (SGLang)", hiCacheNixl},
		{"P1 hf3fs mock: one big file, lseek and write, fsync (SGLang)", hf3fs},
	})
}

// tofile is numpy.ndarray.tofile(path) on a buffered Python file.
func tofile(t testing.TB, path string, p []byte) {
	t.Helper()
	f := open(t, path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	f.wantSize(0)
	_, err := unix.IoctlGetTermios(f.fd, unix.TCGETS)
	wantErrno(t, "TCGETS", err, unix.ENOTTY)
	f.seek(0, unix.SEEK_CUR, 0)
	g := f.dup()
	fl, err := unix.FcntlInt(uintptr(g.fd), unix.F_GETFL, 0)
	if err != nil || fl&unix.O_ACCMODE != unix.O_WRONLY {
		t.Errorf("F_GETFL: %#o, %v", fl, err)
	}
	g.wantSize(0)
	g.seek(0, unix.SEEK_SET, 0)
	if len(p) >= 16*mib {
		must(t, "fallocate KEEP_SIZE", again(func() error {
			return unix.Fallocate(g.fd, unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(p)))
		}))
	}
	n := int64(len(p))
	g.write(p)
	g.seek(0, unix.SEEK_CUR, n)
	g.close()
	f.seek(0, unix.SEEK_SET, 0)
	f.seek(n, unix.SEEK_SET, n)
	f.close()
}

func hiCacheName(i int) string { return hash64(i) + "_meta-llama-Llama-3.1-8B_0_1.bin" }

func hiCacheTemp(final string) string {
	return fmt.Sprintf("%s.tmp.%d.139764274520768.%s", final, os.Getpid(), hash64(77)[:32])
}

// hiCacheSet is HiCacheFile.set.
func hiCacheSet(t testing.TB, final string, p []byte) {
	t.Helper()
	var st unix.Stat_t
	if unix.Stat(final, &st) == nil {
		return
	}
	tofile(t, hiCacheTemp(final), p)
	rename(t, hiCacheTemp(final), final)
}

// hiCacheGet is HiCacheFile.get: ENOENT is a miss, a short read an error.
func hiCacheGet(t testing.TB, final string, want []byte) {
	t.Helper()
	f := open(t, final, unix.O_RDONLY, 0)
	f.wantSize(int64(len(want)))
	sameBytes(t, filepath.Base(final), f.read(len(want)), want)
	f.close()
}

func hiCacheFile(t *testing.T, e *env) {
	for i, n := range []int{128 * kib, mib, 8 * mib, 16 * mib, 32 * mib, 4*mib + 300*kib} {
		p := e.path(hiCacheName(i))
		hiCacheSet(t, p, aligned(t, pattern(p, n)))
		hiCacheSet(t, p, nil) // present: skipped
		hiCacheGet(t, p, pattern(p, n))
		wantSeen(t, e.process(), p, pattern(p, n))
	}
	wantErrno(t, "get of a miss", openErr(t, e.path(hiCacheName(99)), unix.O_RDONLY), unix.ENOENT)
	if got := len(listNames(t, e.dir)); got != 6 {
		t.Errorf("%d files, want 6 and no temporary", got)
	}
}

func hiCacheRanks(t *testing.T, e *env) {
	const ranks, pages, size = 4, 24, 512 * kib
	done := make(chan error, ranks)
	for r := range ranks {
		a := harness.NewActor(t, nil)
		go func() { done <- hiCacheRank(a, e.dir, r, pages, size) }()
	}
	for range ranks {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for i := range pages {
		hiCacheGet(t, e.path(hiCacheName(i)), pattern(hiCacheName(i), size))
	}
}

// hiCacheRank stores each page that is not there, and reads the pages that are.
func hiCacheRank(a *harness.Actor, dir string, rank, pages, size int) error {
	for i := range pages {
		i = (i + rank) % pages
		final := filepath.Join(dir, hiCacheName(i))
		if _, err := a.Stat(final); err != nil {
			tmp := fmt.Sprintf("%s.tmp.%d.1.%s", final, a.Pid, hash64(rank)[:32])
			if err := a.WriteFile(tmp, pattern(hiCacheName(i), size)); err != nil {
				return fmt.Errorf("rank %d: write: %w", rank, err)
			}
			if err := a.Rename(tmp, final); err != nil {
				return fmt.Errorf("rank %d: rename: %w", rank, err)
			}
		}
		b, err := a.ReadFile(final)
		if err != nil || !slices.Equal(b, pattern(hiCacheName(i), size)) {
			return fmt.Errorf("rank %d: page %d: %d bytes, %w", rank, i, len(b), err)
		}
	}
	return nil
}

func hiCacheMaintenance(t *testing.T, e *env) {
	const pages = 50
	for i := range pages {
		hiCacheSet(t, e.path(hiCacheName(i)), pattern(fmt.Sprint(i), 64*kib))
	}
	// batch_exists_v2: one scandir a batch, is_file() from d_type.
	for range 5 {
		files := 0
		readdir(t, openDir(t, e.dir).fd, func(batch []dirent) {
			for _, d := range batch {
				if d.kind == unix.DT_REG && strings.HasSuffix(d.name, ".bin") {
					files++
				}
			}
		})
		if files != pages {
			t.Fatalf("scandir: %d files, want %d", files, pages)
		}
	}
	// Restart: sorted by mtime the pages are in the order of their stores.
	names := listNames(t, e.dir)
	slices.SortStableFunc(names, func(a, b string) int {
		ma, mb := stat(t, e.path(a)).Mtim, stat(t, e.path(b)).Mtim
		return int(ma.Nano() - mb.Nano())
	})
	last, youngest := stat(t, e.path(hiCacheName(pages-1))), stat(t, e.path(names[pages-1]))
	if last.Mtim.Nano() < youngest.Mtim.Nano() {
		t.Error("the page stored last is not among the youngest")
	}
	var st unix.Statfs_t
	must(t, "statvfs", unix.Statfs(e.dir, &st))
	if st.Blocks == 0 || st.Bavail == 0 || st.Frsize == 0 {
		t.Errorf("statvfs: %d blocks, %d available, f_frsize %d", st.Blocks, st.Bavail, st.Frsize)
	}
	for _, name := range names {
		if stat(t, e.path(name)).Mode&unix.S_IFMT == unix.S_IFREG {
			unlink(t, e.path(name))
		}
	}
	if left := listNames(t, e.dir); len(left) != 0 {
		t.Errorf("after clear: %q", left)
	}
}

func hiCacheNixl(t *testing.T, e *env) {
	for i := range 256 {
		mkdir(t, e.path(fmt.Sprintf("%02x", i)))
	}
	path := func(i int) string {
		return e.path(hash64(i)[:2], hash64(i)+"_llama_0_1_k")
	}
	for i := range 32 {
		f := open(t, path(i), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
		submit(t, f.fd, aioPwrite, aligned(t, pattern(path(i), mib)), 128*kib)
		f.close()
	}
	for i := range 32 {
		wantSize(t, path(i), mib)
		f := open(t, path(i), unix.O_RDWR|unix.O_DIRECT, 0)
		got := aligned(t, make([]byte, mib))
		submit(t, f.fd, aioPread, got, 128*kib)
		f.close()
		sameBytes(t, "fd mode", got, pattern(path(i), mib))
		wantSeen(t, e.process(), path(i), pattern(path(i), mib))
	}
	f := open(t, path(0), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
	submit(t, f.fd, aioPwrite, aligned(t, pattern("again", mib)), 128*kib)
	f.close()
	wantSeen(t, e.process(), path(0), pattern("again", mib))
	for i := range 32 {
		unlink(t, path(i))
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
