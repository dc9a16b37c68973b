package mount

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// rawRows are files that stay mutable, as pools and preallocated tiers are.
var rawRows = []row{
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
}
