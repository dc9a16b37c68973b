package mount

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// rawRows are files that stay mutable, as pools and preallocated tiers are.
var rawRows = []row{
	{"P1 pwrite and pread at random offsets of a sparse file, several handles (vLLM disk, NIXL, Mooncake)", func(t *testing.T, e *env) {
		const size = 32 * mib
		rnd := newRand(t)
		a := open(t, e.path("pool"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		a.truncate(size)
		handles := []*file{a, open(t, e.path("pool"), unix.O_RDWR, 0), open(t, e.path("pool"), unix.O_RDWR|unix.O_DIRECT, 0)}
		model := make([]byte, size)
		for i := range 300 {
			n := 4096 * (1 + rnd.IntN(64))
			off := 4096 * rnd.IntN((size-n)/4096)
			f := handles[rnd.IntN(len(handles))]
			if rnd.IntN(2) == 0 {
				p := aligned(t, pattern(fmt.Sprint(i), n))
				copy(model[off:], p)
				f.pwrite(p, int64(off))
				continue
			}
			f.seek(int64(off), unix.SEEK_SET, int64(off))
			sameBytes(t, fmt.Sprintf("%d at %d", n, off), f.read(n), model[off:off+n])
		}
		for _, f := range handles {
			f.close()
		}
		wantBytes(t, e.path("pool"), model)
		wantSeen(t, e.process(), e.path("pool"), model)
	}},
	{"P1 pwritev and preadv with 40 vectors (vLLM disk, Mooncake)", func(t *testing.T, e *env) {
		const each = 64 * kib
		f := open(t, e.path("pool"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600)
		f.truncate(16 * mib)
		src := aligned(t, pattern("v", 40*each))
		dst := aligned(t, make([]byte, 40*each))
		var out, in [][]byte
		for i := range 40 {
			out = append(out, src[i*each:(i+1)*each])
			in = append(in, dst[i*each:(i+1)*each])
		}
		if n, err := unix.Pwritev(f.fd, out, 4*mib); err != nil || n != len(src) {
			t.Fatalf("pwritev: got %d, %v, want %d", n, err, len(src))
		}
		if n, err := unix.Preadv(f.fd, in, 4*mib); err != nil || n != len(src) {
			t.Fatalf("preadv: got %d, %v, want %d", n, err, len(src))
		}
		sameBytes(t, "preadv", dst, src)
		f.wantSize(16 * mib)
	}},
	{"P1 ranks write their slices of one temporary file, a coordinator renames (coming vLLM worker)", func(t *testing.T, e *env) {
		const slice = 512 * kib
		f := open(t, e.path("b.tmp"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o644)
		f.truncate(4 * slice)
		want := pattern("ranks", 4*slice)
		var ranks []*file
		for range 4 {
			ranks = append(ranks, open(t, e.path("b.tmp"), unix.O_RDWR, 0))
		}
		for i, r := range ranks {
			r.pwrite(want[i*slice:(i+1)*slice], int64(i*slice))
		}
		for _, r := range ranks {
			r.close()
		}
		f.close()
		rename(t, e.path("b.tmp"), e.path("b"))
		wantSeen(t, e.process(), e.path("b"), want)
		r := open(t, e.path("b"), unix.O_RDONLY, 0)
		sameBytes(t, "slice 2", r.pread(slice, 2*slice), want[2*slice:3*slice])
	}},
	{"P1 ftruncate grows with zeros and shrinks (vLLM disk, GDS, safetensors)", func(t *testing.T, e *env) {
		want := pattern("x", mib)
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT, 0o644)
		f.write(want)
		f.truncate(3 * mib)
		f.wantSize(3 * mib)
		sameBytes(t, "grown", f.pread(3*mib, 0), append(bytes.Clone(want), make([]byte, 2*mib)...))
		f.truncate(1000)
		f.wantSize(1000)
		f.truncate(2000)
		sameBytes(t, "shrunk and grown", f.pread(3000, 0), append(bytes.Clone(want[:1000]), make([]byte, 1000)...))
		f.close()
		wantSeen(t, e.process(), e.path("x"), append(bytes.Clone(want[:1000]), make([]byte, 1000)...))
	}},
	{"P1 fallocate mode 0 grows the file and keeps its bytes (Dynamo, Mooncake)", func(t *testing.T, e *env) {
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
		must(t, "fallocate", again(func() error { return unix.Fallocate(f.fd, 0, 0, 8*mib) }))
		f.wantSize(8 * mib)
		f.pwrite(aligned(t, pattern("x", mib)), 4*mib)
		must(t, "fallocate again", again(func() error { return unix.Fallocate(f.fd, 0, 0, 12*mib) }))
		f.wantSize(12 * mib)
		must(t, "fallocate inside", again(func() error { return unix.Fallocate(f.fd, 0, 0, mib) }))
		f.wantSize(12 * mib)
		want := make([]byte, 12*mib)
		copy(want[4*mib:], pattern("x", mib))
		f.close()
		wantSeen(t, e.process(), e.path("x"), want)
	}},
	{"P1 fallocate KEEP_SIZE reserves and leaves the size (numpy from 16 MiB)", func(t *testing.T, e *env) {
		f := open(t, e.path("x"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
		must(t, "fallocate", again(func() error {
			return unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, 0, 16*mib)
		}))
		f.wantSize(0)
		f.write(pattern("x", 5*mib))
		f.wantSize(5 * mib)
		f.close()
		wantSeen(t, e.process(), e.path("x"), pattern("x", 5*mib))
	}},
	{"P2 fallocate PUNCH_HOLE and ZERO_RANGE work or fail cleanly (nobody)", func(t *testing.T, e *env) {
		for _, mode := range []uint32{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE} {
			f := open(t, e.path(fmt.Sprint(mode)), unix.O_RDWR|unix.O_CREAT, 0o644)
			want := pattern("x", mib)
			f.write(want)
			err := again(func() error { return unix.Fallocate(f.fd, mode, 4096, 8192) })
			wantErrno(t, fmt.Sprintf("mode %#x", mode), err, nil, unix.EOPNOTSUPP, unix.ENOSYS, unix.EINVAL)
			if err == nil {
				clear(want[4096 : 4096+8192])
			}
			sameBytes(t, fmt.Sprintf("mode %#x", mode), f.pread(mib, 0), want)
			f.close()
		}
	}},
	{"P1 SEEK_DATA and SEEK_HOLE answer like a file without holes or better (cp)", func(t *testing.T, e *env) {
		put(t, e.path("x"), pattern("x", 100000))
		f := open(t, e.path("x"), unix.O_RDONLY, 0)
		f.seek(0, unix.SEEK_DATA, 0)
		f.seek(0, unix.SEEK_HOLE, 100000)
		_, err := unix.Seek(f.fd, 100000, unix.SEEK_DATA)
		wantErrno(t, "SEEK_DATA at the end", err, unix.ENXIO)
	}},
	{"P1 a committed file opened for writing has its size at once, for AIO and O_APPEND (SGLang NIXL)", func(t *testing.T, e *env) {
		for _, flags := range []int{unix.O_RDWR, unix.O_RDWR | unix.O_DIRECT} {
			p := e.path(fmt.Sprint(flags))
			put(t, p, pattern("x", mib))
			f := open(t, p, flags, 0) // no stat between: the kernel goes by what open told it
			got := aligned(t, make([]byte, mib))
			submit(t, f.fd, aioPread, got, 128*kib)
			sameBytes(t, "aio", got, pattern("x", mib))
			f.close()
			f = open(t, p, unix.O_WRONLY|unix.O_APPEND, 0)
			f.write([]byte("tail"))
			f.close()
			wantSeen(t, e.process(), p, append(pattern("x", mib), "tail"...))
		}
	}},
	{"P0 fsync, fdatasync, sync_file_range of file and directory (Mooncake)", func(t *testing.T, e *env) {
		f := open(t, e.path("x"), unix.O_RDWR|unix.O_CREAT, 0o644)
		f.write(pattern("x", mib))
		must(t, "fsync", again(func() error { return unix.Fsync(f.fd) }))
		must(t, "fdatasync", again(func() error { return unix.Fdatasync(f.fd) }))
		f.close()
		dir := openDir(t, e.dir)
		wantErrno(t, "fsync of the directory", again(func() error { return unix.Fsync(dir.fd) }), nil)
		wantSeen(t, e.process(), e.path("x"), pattern("x", mib))
	}},
}
