package mount

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func mapFile(t testing.TB, f *file, n, prot, flags int) []byte {
	t.Helper()
	b, err := unix.Mmap(f.fd, 0, n, prot, flags)
	if err != nil {
		t.Fatalf("mmap of %d bytes with %#x: %v", n, flags, err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

var mapRows = []row{
	{"P1 mtime follows a store through a mapping, in each stat (ls -l, make)", func(t *testing.T, e *env) {
		for i, mask := range []int{unix.STATX_MTIME, unix.STATX_MTIME | unix.STATX_SIZE | unix.STATX_MODE, unix.STATX_BASIC_STATS} {
			for _, before := range []bool{false, true} { // the kernel knows the old time from before the open
				p := e.path(fmt.Sprint(i, before))
				store(t, p, pattern("x", 10_000))
				setTimes(t, p, older, older)
				mtime := func() (got unix.Timespec) {
					var st unix.Statx_t
					must(t, "statx", again(func() error { return unix.Statx(unix.AT_FDCWD, p, 0, mask, &st) }))
					return unix.Timespec{Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}
				}
				if before {
					wantTime(t, "before", mtime(), older)
				}
				f := open(t, p, unix.O_RDWR, 0)
				f.wantSize(10_000)
				m, err := unix.Mmap(f.fd, 0, 10_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				must(t, "mmap", err)
				if !before {
					wantTime(t, "before the store", mtime(), older)
				}
				m[5000] = 1 // not read before: tmpfs notes the time when it maps the page for writing
				must(t, "msync", unix.Msync(m, unix.MS_SYNC))
				must(t, "munmap", unix.Munmap(m))
				f.close()
				got := mtime() // the daemon hears of the end of a mapping a moment later
				for limit := time.Now().Add(10 * time.Second); got == older && time.Now().Before(limit); got = mtime() {
					runtime.Gosched()
				}
				if got == older {
					t.Errorf("mask %#x, known before the open: %v: mtime is still the old one", mask, before)
				}
			}
		}
	}},
}

var kernelRows = []row{
	{"P2 copy_file_range inside the mount works or fails cleanly (cp)", func(t *testing.T, e *env) {
		want := pattern("x", 3*mib+5)
		store(t, e.path("x"), want)
		in := open(t, e.path("x"), unix.O_RDONLY, 0)
		out := open(t, e.path("y"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
		for done := 0; done < len(want); {
			n, err := unix.CopyFileRange(in.fd, nil, out.fd, nil, len(want)-done, 0)
			if err != nil {
				wantErrno(t, "copy_file_range", err, unix.EOPNOTSUPP, unix.ENOSYS, unix.EXDEV)
				return
			}
			if n == 0 {
				t.Fatalf("copy_file_range ended after %d of %d bytes", done, len(want))
			}
			done += n
		}
		out.close()
		wantSeen(t, e.process(), e.path("y"), want)
	}},
	{"P1 sendfile out of and into the mount (HTTP servers, cp)", func(t *testing.T, e *env) {
		want := pattern("x", 2*mib+77)
		store(t, e.path("x"), want)
		outside, err := os.CreateTemp(t.TempDir(), "x")
		must(t, "temp", err)
		defer outside.Close()
		sendAll(t, int(outside.Fd()), open(t, e.path("x"), unix.O_RDONLY, 0).fd, len(want))
		wantBytes(t, outside.Name(), want)
		out := open(t, e.path("y"), unix.O_WRONLY|unix.O_CREAT, 0o644)
		if _, err := outside.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		sendAll(t, out.fd, int(outside.Fd()), len(want))
		out.close()
		wantSeen(t, e.process(), e.path("y"), want)
	}},
}

func sendAll(t testing.TB, out, in, n int) {
	t.Helper()
	for n > 0 {
		m, err := unix.Sendfile(out, in, nil, n)
		if err == unix.EINTR {
			continue
		}
		if err != nil || m == 0 {
			t.Fatalf("sendfile: %d, %v with %d bytes to go", m, err, n)
		}
		n -= m
	}
}
