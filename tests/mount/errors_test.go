package mount

import (
	"fmt"
	"os"
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
	{"P0 reads and writes interrupted by signals are whole or EINTR before the first byte (Python)", func(t *testing.T, e *env) {
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
