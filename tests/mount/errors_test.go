package mount

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestErrors shows section 3.5 of the contract without lack of space (capacity_test.go).
func TestErrors(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	runRows(t, d, errorRows)
}

var errorRows = []row{
	{"P0 thousands of open handles: no EMFILE (SGLang, Mooncake)", func(t *testing.T, e *env) {
		const files, handles = 200, 3000
		raiseFileLimit(t, handles+500)
		for i := range files {
			put(t, e.path(fmt.Sprint(i)), pattern(fmt.Sprint(i), 1000))
		}
		var open []*os.File
		defer func() {
			for _, f := range open {
				f.Close()
			}
		}()
		for i := range handles {
			f, err := os.Open(e.path(fmt.Sprint(i % files)))
			if err != nil {
				t.Fatalf("handle %d: %v", i, err)
			}
			open = append(open, f)
		}
		b := make([]byte, 2000)
		for i, f := range open {
			n, err := f.ReadAt(b, 0)
			if n != 1000 {
				t.Fatalf("handle %d: got %d bytes, %v", i, n, err)
			}
		}
		sameBytes(t, "last", b[:1000], pattern(fmt.Sprint((handles-1)%files), 1000))
	}},
	{"P0 thousands of handles open for writing at once (write-behind clients)", func(t *testing.T, e *env) {
		const n = 1500
		raiseFileLimit(t, n+500)
		var all []*file
		for i := range n {
			f := open(t, e.path(fmt.Sprintf("%d.tmp", i)), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
			f.write(pattern(fmt.Sprint(i), 500))
			all = append(all, f)
		}
		for i, f := range all {
			f.write(pattern(fmt.Sprint(i), 1000)[500:])
			f.close()
			rename(t, e.path(fmt.Sprintf("%d.tmp", i)), e.path(fmt.Sprint(i)))
		}
		for i := range n {
			wantBytes(t, e.path(fmt.Sprint(i)), pattern(fmt.Sprint(i), 1000))
		}
	}},
	{"P0 a removed block is ENOENT for every call, never EIO (SGLang, LMCache)", func(t *testing.T, e *env) {
		for i := range 20 {
			p := e.path(fmt.Sprint(i))
			store(t, p, pattern(p, mib))
			wantSeen(t, e.process(), p, pattern(p, mib))
			unlink(t, p)
			wantAbsent(t, e.process(), p)
			var st unix.Stat_t
			wantErrno(t, "unlink", unix.Unlink(p), unix.ENOENT)
			wantErrno(t, "lstat", unix.Lstat(p, &st), unix.ENOENT)
			wantErrno(t, "rename", unix.Rename(p, p+"x"), unix.ENOENT)
			wantErrno(t, "truncate", unix.Truncate(p, 0), unix.ENOENT)
			wantErrno(t, "utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, p, nil, 0), unix.ENOENT)
			wantErrno(t, "chmod", unix.Chmod(p, 0o600), unix.ENOENT)
		}
	}},
	{"P0 a read interrupted by signals is whole or EINTR before the first byte (Python)", func(t *testing.T, e *env) {
		want := pattern("x", 32*mib)
		store(t, e.path("x"), want)
		done := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-done:
					return
				default:
					// The Go runtime ignores SIGURG but for its own use.
					unix.Kill(os.Getpid(), unix.SIGURG)
				}
			}
		}()
		b := make([]byte, len(want))
		for range 30 {
			f := open(t, e.path("x"), unix.O_RDONLY, 0)
			n, err := unix.Read(f.fd, b)
			f.close()
			if err != unix.EINTR && n != len(want) {
				t.Errorf("read: got %d, %v, want %d", n, err, len(want))
			}
		}
		close(done)
		<-stopped
	}},
	{"P0 a write interrupted by signals is whole or EINTR (Python)", func(t *testing.T, e *env) {
		want := pattern("x", 16*mib)
		done := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-done:
					return
				default:
					unix.Kill(os.Getpid(), unix.SIGURG)
				}
			}
		}()
		for i := range 10 {
			p := e.path(fmt.Sprint(i))
			f := open(t, p, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
			n, err := unix.Write(f.fd, want)
			f.closed = true
			unix.Close(f.fd)
			if err != unix.EINTR && n != len(want) {
				t.Errorf("write: got %d, %v, want %d", n, err, len(want))
			}
			unlink(t, p)
		}
		close(done)
		<-stopped
	}},
}

func raiseFileLimit(t testing.TB, n uint64) {
	t.Helper()
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	if lim.Cur >= n {
		return
	}
	if lim.Max < n {
		harness.Skip(t, "the limit on open files is %d", lim.Max)
	}
	old := lim
	lim.Cur = n
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
}
