// Package others replays what engines do to files that have no page of their own in docs/engines, and what newer
// versions of the others do: a table of calls, as the sources of August to November 2026 have them. docs/engines/other.md
// is the recipe.
package others

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// stage is a mount, a directory of the engine, and a second process of it.
type stage struct {
	*testing.T
	d     *harness.Daemon
	dir   string
	other *harness.Actor
}

// TestCalls has a row for each engine. Pinned rows have a pinned group of 16 MiB; what is there stays while all else is
// evicted.
func TestCalls(t *testing.T) {
	harness.KvfsOnly(t, "pinned groups")
	d := harness.Mount(t, harness.Options{
		MemorySize: "128MiB", Disk: "256MiB", Config: "groups: {pinned: {pinned: true, quota: 16MiB}}",
	})
	for _, row := range []struct {
		name, dir string
		run       func(*stage)
	}{
		{"vLLM, FSOffloadingSpec: the final name in place, at offsets", "fs-offloading", inPlaceAtOffsets},
		{"vLLM forks and SGLang's NIXL cleaner: utime, scandir, removal of the oldest", "gc", removeOldest},
		{"SGLang fast_file: O_EXCL, writev, replace, removal of 128", "fast-file", fastFile},
		{"FlexKV: statfs, one file, two descriptors", "pinned/flexkv", flexKV},
		{"TensorRT-LLM V1: files that are not looked up", "pinned/trtllm", tensorRT1},
		{"TensorRT-LLM V2: a file without a name", "pinned/trtllm2", tensorRT2},
		{"UCM: shards of one temporary file", "ucm", ucm},
		{"ds4: header rewritten, append", "ds4", ds4},
		{"LMCache: trailer, a file for each reader", "lmcache", readDepth},
		{"Mooncake: physical bytes", "pinned/mooncake", physicalBytes},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := &stage{t, d, d.Path(row.dir), harness.NewActor(t, nil)}
			s.must(replay.MakeDirs(s.dir))
			row.run(s)
		})
	}
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) path(name string, args ...any) string {
	return filepath.Join(s.dir, fmt.Sprintf(name, args...))
}

// content is n bytes that follow from a name.
func content(name string, n int) []byte {
	p := replay.Buffer(n)
	replay.Fill(p, name)
	return p
}

func (s *stage) open(path string, flags int, mode uint32) replay.File {
	s.Helper()
	f, err := replay.Open(path, flags, mode)
	if err != nil {
		s.Fatalf("open %s: %v", path, err)
	}
	return f
}

// store writes a file with these flags, by one write, and renames it unless final is "".
func (s *stage) store(path, final string, flags int, mode uint32, p []byte) {
	s.Helper()
	f := s.open(path, flags, mode)
	s.must(errors.Join(f.Write(p), f.Close()))
	if final != "" {
		s.must(replay.Rename(path, final))
	}
}

// want fails unless another process reads these bytes.
func (s *stage) want(path string, want []byte) {
	s.Helper()
	if got, err := s.other.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		s.Errorf("%s: %d bytes, %v; want %d bytes as written", path, len(got), err, len(want))
	}
}

// absent fails unless another process finds nothing.
func (s *stage) absent(path string) {
	s.Helper()
	if err := s.other.Access(path, unix.F_OK); err != unix.ENOENT {
		s.Errorf("%s: %v, want ENOENT", path, err)
	}
}

func inPlaceAtOffsets(s *stage) {
	path, p := s.path("9f0817.bin"), content("fs", mib)
	f := s.open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_DIRECT, 0o644)
	for off := mib - 256*kib; off >= 0; off -= 256 * kib { // the workers' parts come in any order
		s.must(f.Pwrite(p[off:off+256*kib], int64(off)))
		s.absent(path)
	}
	s.must(f.Close())
	s.want(path, p)
}

// removeOldest is a cleaner with a budget of its own: it lists, and removes what was not used for longest by mtime.
func removeOldest(s *stage) {
	const files, budget = 8, 5
	for i := range files {
		final := s.path("%d.bin", i)
		s.store(final+".tmp", final, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644, content(final, 64*kib))
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}} // utime(path, NULL)
	s.must(unix.UtimesNanoAt(unix.AT_FDCWD, s.path("0.bin"), now, 0))
	names, err := replay.Scan(s.dir)
	s.must(err)
	mtime := map[string]int64{}
	for _, name := range names {
		st, err := replay.Stat(s.path("%s", name))
		s.must(err)
		mtime[name] = st.Mtim.Nano()
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(mtime[a], mtime[b]) })
	for _, name := range names[:files-budget] {
		s.must(replay.Unlink(s.path("%s", name)))
	}
	for i := range files {
		if path := s.path("%d.bin", i); i > 0 && i <= files-budget {
			s.absent(path)
		} else {
			s.want(path, content(path, 64*kib))
		}
	}
}

func fastFile(s *stage) {
	const files = 300
	s.must(replay.MakeDirs(s.path("model/rank0")))
	for i := range files {
		final := s.path("model/rank0/%d", i)
		f := s.open(final+".tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		p := content(final, 16*kib)
		s.must(errors.Join(f.Writev(p[:100], p[100:]), f.Close(), replay.Rename(final+".tmp", final)))
	}
	s.want(s.path("model/rank0/7"), content(s.path("model/rank0/7"), 16*kib))
	for i := range 128 {
		s.must(replay.Unlink(s.path("model/rank0/%d", i)))
	}
	if names, err := replay.Scan(s.path("model/rank0")); err != nil || len(names) != files-128 {
		s.Errorf("%d names, %v; want %d", len(names), err, files-128)
	}
}

// evicted evicts all that can be, and shows that a file is still there.
func (s *stage) evicted(path string, want []byte) {
	s.Helper()
	replay.Evict(s, s.d)
	s.want(path, want)
}

func flexKV(s *stage) {
	const size = 4 * mib
	var vfs unix.Statfs_t
	s.must(unix.Statfs(s.dir, &vfs))
	if room := int64(vfs.Bavail) * vfs.Frsize; room < size {
		s.Errorf("%d bytes are available", room)
	}
	path := s.path("flexkv_ssd_cache_0.bin")
	f := s.open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
	s.must(errors.Join(f.Truncate(size), unix.Fsync(int(f)), f.Close()))
	a, b := s.open(path, unix.O_RDWR, 0), s.open(path, unix.O_RDWR, 0) // buffered, and direct where blocks are aligned
	defer a.Close()
	defer b.Close()
	p := content("block", 512*kib)
	s.must(a.Pwrite(p, mib))
	got := replay.Buffer(len(p))
	s.must(errors.Join(b.Pread(got, mib), replay.Check(got, "block")))
	fd, err := s.other.Open(path, unix.O_RDWR, 0)
	s.must(err)
	_, err = s.other.Pwrite(fd, content("theirs", 512*kib), 2*mib)
	s.must(err)
	s.must(errors.Join(a.Pread(got, 2*mib), replay.Check(got, "theirs")))
	replay.Evict(s, s.d)
	s.must(errors.Join(b.Pread(got, mib), replay.Check(got, "block")))
	large := s.open(s.path("large"), unix.O_RDWR|unix.O_CREAT, 0o644)
	if err := large.Truncate(64 * mib); !errors.Is(err, unix.ENOSPC) {
		s.Errorf("a file above the quota: %v, want ENOSPC", err)
	}
	s.must(errors.Join(large.Close(), replay.Unlink(s.path("large"))))
}

func tensorRT1(s *stage) {
	for i := range 4 {
		path := s.path("block_%d_0.bin", i)
		s.store(path, "", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644, content(path, 256*kib))
	}
	for i := range 4 {
		path := s.path("block_%d_0.bin", i)
		s.evicted(path, content(path, 256*kib))
	}
}

func tensorRT2(s *stage) {
	if fd, err := replay.Open(s.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o600); !errors.Is(err, unix.EOPNOTSUPP) {
		s.Fatalf("O_TMPFILE: %d, %v; the engine goes on after EOPNOTSUPP alone", fd, err)
	}
	f := s.open(s.path("kv-a1b2c3"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600) // mkstemp
	defer f.Close()
	s.must(replay.Unlink(s.path("kv-a1b2c3")))
	s.must(f.Fallocate(0, 4*mib))
	p := content("slot", 256*kib)
	s.must(f.Pwrite(p, 3*mib))
	replay.Evict(s, s.d)
	s.must(errors.Join(f.Pread(p, 3*mib), replay.Check(p, "slot")))
	if n, err := f.Size(); n != 4*mib || err != nil {
		s.Errorf("size %d, %v", n, err)
	}
	if err := f.Fallocate(0, 64*mib); !errors.Is(err, unix.ENOSPC) {
		s.Errorf("a file above the quota: %v, want ENOSPC", err)
	}
}

func ucm(s *stage) {
	final := s.path("9f0817")
	tmp, p := final+".tmp", content("ucm", mib)
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_DIRECT
	f := s.open(tmp, flags, 0o644)
	fd, err := s.other.Open(tmp, flags, 0o644)
	s.must(err)
	_, err = s.other.Pwrite(fd, p[mib/2:], mib/2)
	s.must(errors.Join(err, s.other.Close(fd), f.Pwrite(p[:mib/2], 0), f.Close()))
	s.absent(final)
	s.must(replay.Rename(tmp, final)) // by the last shard
	s.must(errors.Join(s.other.Access(final, unix.R_OK|unix.W_OK), s.other.Chmod(final, 0o666)))
	s.must(unix.Utimes(final, nil))
	s.want(final, p)
}

func ds4(s *stage) {
	final := s.path("session.kv")
	body, tail := content("ds4", 300*kib), content("tail", 100*kib)
	s.store(fmt.Sprintf("%s.tmp.%d", final, os.Getpid()), final, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644, body)
	s.want(final, body)
	f := s.open(final, unix.O_RDWR, 0) // "r+b"
	header := content("header", 4*kib)
	s.must(errors.Join(f.Pwrite(header, 0), f.Truncate(200*kib), f.Pwrite(tail, 200*kib), f.Close()))
	s.want(final, slices.Concat(header, body[4*kib:200*kib], tail))
}

func readDepth(s *stage) {
	const depth, size = 16, 2 * mib
	final := s.path("model@0x01000100@0@9f0817.data")
	p := content("chunk", size)
	trailer := binary.LittleEndian.AppendUint64(nil, uint64(crc32.ChecksumIEEE(p)))
	s.store(s.path("chunk.tmp"), final, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644, slices.Concat(p, trailer))
	got := make([]byte, size)
	var wg sync.WaitGroup
	for i := range depth {
		wg.Go(func() { // ends with its part
			f, err := replay.Open(final, unix.O_RDONLY, 0)
			if err == nil {
				part := got[i*size/depth : (i+1)*size/depth]
				err = errors.Join(f.Pread(part, int64(i*size/depth)), f.Close())
			}
			if err != nil {
				s.Errorf("reader %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	end := make([]byte, len(trailer))
	f := s.open(final, unix.O_RDONLY, 0)
	s.must(errors.Join(f.Pread(end, size), f.Close()))
	if sum := crc32.ChecksumIEEE(got); uint64(sum) != binary.LittleEndian.Uint64(end) {
		s.Errorf("checksum %x, the trailer has %x", sum, end)
	}
}

// physicalBytes measures the directory as the cap of the bucket back-end does.
func physicalBytes(s *stage) {
	var written int64
	for i := range 5 {
		p := content("bucket", 300*kib+i)
		s.store(s.path("%d.bucket", i), "", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644, p)
		written += int64(len(p))
	}
	used := int64(0)
	s.must(filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := replay.Stat(path)
		used += st.Blocks * 512
		return err
	}))
	if used < written || used > written+5*mib {
		s.Errorf("%d bytes by st_blocks, %d written", used, written)
	}
}
