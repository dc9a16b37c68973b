package mount

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestData is section 3.2 of the contract.
func TestData(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "1GiB"})
	runRows(t, d, slices.Concat(openRows, rwRows, rawRows, mapRows, kernelRows))
}

// blockSizes are those of the clients, with and without a 28-byte header, and
// their neighbours.
var blockSizes = []int{
	0, 1, 511, 4095, 4096, 4097, 64 * kib, 128*kib + 28, mib - 1, mib, mib + 1,
	2 * mib, 4*mib + 28, 4*mib + 300*kib, 8 * mib, 32*mib + 28, 64 * mib,
}

var openRows = []row{
	{"P0 open flags of every client are taken (all)", func(t *testing.T, e *env) {
		flags := map[string]int{
			"O_WRONLY|O_CREAT|O_TRUNC":                     unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC,
			"O_WRONLY|O_CREAT|O_EXCL|O_TRUNC|O_DIRECT":     unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_DIRECT,
			"O_RDWR|O_CREAT|O_EXCL|O_NOFOLLOW|O_DIRECT":    unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_DIRECT,
			"O_WRONLY|O_CREAT|O_DIRECT":                    unix.O_WRONLY | unix.O_CREAT | unix.O_DIRECT,
			"O_RDWR|O_CREAT|O_DIRECT":                      unix.O_RDWR | unix.O_CREAT | unix.O_DIRECT,
			"O_RDWR|O_CREAT|O_SYNC":                        unix.O_RDWR | unix.O_CREAT | unix.O_SYNC,
			"O_WRONLY|O_CREAT|O_APPEND":                    unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND,
			"O_WRONLY|O_CREAT|O_DSYNC|O_NOCTTY|O_NONBLOCK": unix.O_WRONLY | unix.O_CREAT | unix.O_DSYNC | unix.O_NOCTTY | unix.O_NONBLOCK,
		}
		for name, fl := range flags {
			p := e.path(strings.ReplaceAll(name, "|", "+"))
			f, err := tryOpen(t, p, fl, 0o644)
			if err != nil {
				t.Errorf("%s: %s", name, errnoName(err))
				continue
			}
			f.write(aligned(t, pattern(name, 8192)))
			f.close()
			wantBytes(t, p, pattern(name, 8192))
		}
		p := e.path("read")
		store(t, p, pattern("r", 8192))
		for _, fl := range []int{
			0, unix.O_DIRECT, unix.O_NOATIME, unix.O_NOFOLLOW, unix.O_RDWR, unix.O_RDWR | unix.O_DIRECT,
			unix.O_NONBLOCK, unix.O_NOATIME | unix.O_DIRECT | unix.O_SYNC,
		} {
			f := open(t, p, fl, 0)
			sameBytes(t, fmt.Sprintf("with %#o", fl), f.read(8192), pattern("r", 8192))
			f.close()
		}
	}},
	{"P0 O_DIRECT with lengths, offsets and memory that are not aligned (LMCache, llm-d)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "alignment is ignored")
		want := pattern("odd", 3*mib+777)
		f := open(t, e.path("odd"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
		f.pwrite(want[:1001], 0)
		f.pwrite(want[1001:mib+5], 1001)
		f.pwrite(want[mib+5:], mib+5)
		f.close()
		f = open(t, e.path("odd"), unix.O_RDONLY|unix.O_DIRECT, 0)
		buf := make([]byte, len(want)+8)[3:]
		if n, err := unix.Pread(f.fd, buf, 0); err != nil || n != len(want) {
			t.Fatalf("pread: got %d, %v, want %d", n, err, len(want))
		}
		sameBytes(t, "all", buf[:len(want)], want)
		sameBytes(t, "a part", f.pread(12345, 54321), want[54321:54321+12345])
	}},
	{"P0 ioctl TCGETS: ENOTTY (Python's open)", func(t *testing.T, e *env) {
		put(t, e.path("x"), []byte("x"))
		f := open(t, e.path("x"), unix.O_RDONLY, 0)
		_, err := unix.IoctlGetTermios(f.fd, unix.TCGETS)
		wantErrno(t, "TCGETS", err, unix.ENOTTY, unix.ENOSYS)
	}},
}

var rwRows = []row{
	{"P0 one write and one read of a whole block, 0 to 64 MiB, buffered and direct (all)", func(t *testing.T, e *env) {
		for _, n := range blockSizes {
			for _, direct := range []int{0, unix.O_DIRECT} {
				if harness.Reference() && n%4096 != 0 {
					direct = 0
				}
				p := e.path(fmt.Sprintf("%d-%d", n, direct))
				want := aligned(t, pattern(p, n))
				f := open(t, p+".tmp", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_TRUNC|direct, 0o644)
				if n > 0 {
					f.write(want)
				}
				f.close()
				rename(t, p+".tmp", p)
				wantSize(t, p, int64(n))
				r := open(t, p, unix.O_RDONLY|direct, 0)
				sameBytes(t, p, r.read(max(n, 1)), want)
				r.close()
				unlink(t, p)
			}
		}
	}},
}
