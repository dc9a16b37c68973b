package handoff

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// attachKept attaches a mount that outlives its process.
func attachKept(t *testing.T, path, dir string, dev *os.File) *Line {
	t.Helper()
	spin, w, err := os.Pipe() // does not block
	must(t, err)
	defer spin.Close()
	defer w.Close()
	line, err := dial(t, path).Attach(t.Context(), &Request{Dir: dir, Epoch: 3, Keep: true, Dev: dev, Spin: spin})
	must(t, err)
	return line
}

// TestResume shows that the owner keeps a mount whose process ends, hands the same descriptors to the process that
// resumes it, again and again, and lets go of them when that process asks.
func TestResume(t *testing.T) {
	o := &owner{}
	l, path := serve(t, o, Options{})
	dev, err := os.Create(filepath.Join(t.TempDir(), "dev"))
	must(t, err)
	defer dev.Close()
	steady(t, func() {
		line := attachKept(t, path, "/mnt/a", dev)
		for range 3 {
			resumed := make(chan *Line, 1)
			go func() { // ends with the connection
				next, handed, err := dial(t, path).Resume(t.Context(), "/mnt/a")
				if err != nil {
					t.Error(err)
					close(resumed)
					return
				}
				defer handed.close()
				if string(handed.Init) != "init of /mnt/a" || handed.Epoch != 4 || string(next.Attached().Init) != "init of /mnt/a" {
					t.Errorf("handed %+v, attached %+v", handed, next.Attached())
				}
				if !sameFile(t, handed.Dev, dev) {
					t.Error("another device")
				}
				if flags, err := unix.FcntlInt(handed.Spin.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
					t.Errorf("flags of the descriptor to spin on: %#x, %v", flags, err)
				}
				resumed <- next
			}()
			line.Close() // the process ends
			if line = <-resumed; line == nil {
				t.FailNow()
			}
			if got := o.mount(0).holder.Load(); got != int64(os.Getpid()) {
				t.Errorf("held by %d", got)
			}
		}
		if n := o.detached.Load(); n != 0 {
			t.Errorf("detached %d times", n)
		}
		check(t, line.Detach(t.Context()))
		line.Close()
		if n := o.detached.Load(); n != 1 || o.count() != 1 {
			t.Errorf("%d mounts, detached %d times", o.count(), n)
		}
		if _, _, err := dial(t, path).Resume(t.Context(), "/mnt/a"); !errors.Is(err, ErrRefused) {
			t.Errorf("resume of a mount that is gone: %v", err)
		}
		attachKept(t, path, "/mnt/a", dev).Close() // the name is free again
		poll(t, "nobody holds it", func() bool { return o.count() == 2 && o.mount(1).holder.Load() == 0 })
		close(o.mount(1).done) // somebody unmounts it meanwhile
		wait(t, "detached", o.mount(1).ended)
	})
	poll(t, "nothing kept", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held.Lock()
		defer l.held.Unlock()
		return len(l.held.kept)+l.held.mounts+len(l.mu.conns.all) == 0
	})
}

// TestKeepTwice shows that the directory of a kept mount names one mount, and that one that is not kept cannot be resumed.
func TestKeepTwice(t *testing.T) {
	o := &owner{}
	_, path := serve(t, o, Options{})
	null, err := os.Open("/dev/null")
	must(t, err)
	defer null.Close()
	defer attachKept(t, path, "/mnt/a", null).Close()
	if _, err := dial(t, path).Attach(t.Context(), &Request{Dir: "/mnt/a", Epoch: 1, Keep: true, Dev: null}); !errors.Is(err, ErrRefused) {
		t.Errorf("a second one: %v", err)
	}
	defer attach(t, path, "/mnt/b").Close()
	if _, _, err := dial(t, path).Resume(t.Context(), "/mnt/b"); !errors.Is(err, ErrRefused) {
		t.Errorf("one that is not kept: %v", err)
	}
}

func sameFile(t *testing.T, a, b *os.File) bool {
	t.Helper()
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	must(t, errors.Join(err1, err2))
	return os.SameFile(x, y)
}
