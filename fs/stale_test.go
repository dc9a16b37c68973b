package fs

import (
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// TestStalePath shows which opens for writing are repeated because the kernel cannot: one that was told
// ESTALE on its way, or that an earlier owner had sent elsewhere; not one that comes later.
func TestStalePath(t *testing.T) {
	for _, c := range []struct {
		name        string
		how         staleThread
		spent       bool
		told        fuse.Status
		nextIsFirst bool // an ESTALE after it is the first of a new call
	}{
		{"nothing", staleThread{}, false, fuse.Status(syscall.ESTALE), true},
		{"on the path", staleThread{times: 1, onPath: true}, true, fuse.Status(syscall.ESTALE), false},
		{"on the path of a call before", staleThread{times: 1, onPath: true, last: time.Now().Add(-time.Second)}, false, fuse.Status(syscall.ESTALE), true},
		{"by the owner before", staleThread{times: 1, before: true}, true, fuse.EINTR, false},
		{"by the owner before, long ago", staleThread{times: 1, before: true, last: time.Now().Add(-time.Minute)}, false, fuse.Status(syscall.ESTALE), true},
	} {
		table := func() *staleThreads {
			s := &staleThreads{repeat: true}
			if how := c.how; how.times > 0 {
				if how.last.IsZero() {
					how.last = time.Now().Add(time.Minute) // for as long as the test may take
				}
				s.noteLocked(7, how)
			}
			return s
		}
		if got := table().spent(7); got != c.spent {
			t.Errorf("%s: an open for writing comes too late: %t, want %t", c.name, got, c.spent)
		}
		if got := table().told(7); got != c.told {
			t.Errorf("%s: told %v, want %v", c.name, got, c.told)
		}
		want := fuse.EINTR
		if c.nextIsFirst {
			want = fuse.Status(syscall.ESTALE)
		}
		if got := table().answer(7, fuse.Status(syscall.ESTALE), fuse.EIO); got != want {
			t.Errorf("%s: answer %v, want %v", c.name, got, want)
		}
	}
}
