package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// load is clients that read and write a mount all the time.
type load struct {
	s      *site
	stop   chan struct{}
	wg     sync.WaitGroup
	done   atomic.Int64 // operations that succeeded
	vain   atomic.Int64 // that met what a takeover may do to what is open
	begun  [clients]atomic.Int64
	failed chan error // the first
}

const (
	clients = 6
	stable  = 64 // blocks that are only read
)

// begin starts clients: some read blocks that are there all the time, some write blocks, read them back,
// write them anew and remove them.
func begin(s *site) *load {
	s.tb.Helper()
	s.write(0, stable)
	l := &load{s: s, stop: make(chan struct{}), failed: make(chan error, 1)}
	seed := rand.Uint64()
	s.tb.Logf("seed %d", seed)
	for i := range clients {
		l.wg.Go(func() { // ends with stop, or an error
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := 0; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				l.begun[i].Store(time.Now().UnixNano())
				var err error
				if i%2 == 0 {
					err = l.read(r.IntN(stable))
				} else {
					err = l.rewrite(i, n, r)
				}
				l.begun[i].Store(0)
				switch {
				case err == nil:
					l.done.Add(1)
				case errors.Is(err, errVain), errors.Is(err, unix.ESTALE):
					l.vain.Add(1)
				default:
					select {
					case l.failed <- err:
					default:
					}
					return
				}
			}
		})
	}
	return l
}

// errVain: a file was open when the mount was taken over. ESTALE says the same, or that the name was looked up
// when it was, and again when it was once more: the kernel does not look it up a third time.
var errVain = errors.New("in vain")

// read reads a block, which has to be there.
func (l *load) read(i int) error {
	fd, err := openAgain(l.s.path(i), unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("open block %d: %w", i, err)
	}
	defer unix.Close(fd)
	want := block(i)
	got := make([]byte, len(want))
	n, err := unix.Pread(fd, got, 0)
	switch {
	case err != nil:
		return fmt.Errorf("read block %d: %w", i, err)
	case n != len(want) || string(got) != string(want):
		return fmt.Errorf("block %d: %d bytes, or wrong ones", i, n)
	}
	return nil
}

// openAgain is open(2), as libraries call it.
func openAgain(name string, flags int) (int, error) {
	for {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o644)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// rewrite writes a block of its own by way of a temporary file, or in place, and reads it back.
func (l *load) rewrite(client, n int, r *rand.Rand) error {
	name := filepath.Join(l.s.dir, "g", fmt.Sprintf("client%d.%d", client, n%8))
	i := client*1000 + n
	temporary := r.IntN(2) == 0
	to := name
	if temporary {
		to += ".tmp"
	}
	fd, err := openAgain(to, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return fmt.Errorf("create %s (rename: %v) tid %d: %w", to, temporary, unix.Gettid(), err)
	}
	_, err = unix.Write(fd, block(i))
	if err == nil && r.IntN(3) == 0 {
		err = unix.Fsync(fd)
	}
	closed := unix.Close(fd)
	switch {
	case err == unix.ESTALE, err == nil && closed == unix.EIO, err == unix.EIO:
		return errVain
	case err != nil || closed != nil:
		return fmt.Errorf("write %s: %v, close: %v", to, err, closed)
	}
	if temporary {
		switch err := unix.Rename(to, name); {
		case err == unix.ENOENT:
			return errVain
		case err != nil:
			return fmt.Errorf("rename %s: %w", to, err)
		}
	}
	got, err := os.ReadFile(name)
	switch {
	case err != nil:
		return fmt.Errorf("read %s after it was written: %w", name, err)
	case string(got) != string(block(i)):
		again, _ := os.ReadFile(name)
		return fmt.Errorf("%s: %d bytes of block %d, want %d, written by rename: %v; again %d %v", name, len(got), numberOf(got), i, temporary, numberOf(again), time.Now())
	}
	if r.IntN(4) == 0 {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		if _, err := os.Stat(name); !errors.Is(err, syscall.ENOENT) {
			return errors.Join(fmt.Errorf("%s after it was removed", name), err)
		}
	}
	return nil
}

// numberOf returns the number of the block that bytes begin as, -1 if they are too few.
func numberOf(b []byte) int64 {
	if len(b) < 8 {
		return -1
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// goesOn waits until each client has got something done since, or one has failed.
func (l *load) goesOn() {
	l.s.tb.Helper()
	from := l.done.Load()
	harness.Poll(l.s.tb, "clients go on", func() bool { return l.done.Load() > from+10*clients || len(l.failed) > 0 })
	now := time.Now()
	for i := range l.begun {
		if at := l.begun[i].Load(); at != 0 && now.Sub(time.Unix(0, at)) > harness.Deadline {
			l.s.tb.Errorf("client %d waits for an answer", i)
		}
	}
}

// end stops the clients, none of which has failed.
func (l *load) end() {
	l.s.tb.Helper()
	l.finish()
	select {
	case err := <-l.failed:
		l.s.tb.Error(err)
	default:
	}
	l.s.tb.Logf("%d operations, %d in vain", l.done.Load(), l.vain.Load())
}

// finish stops the clients.
func (l *load) finish() {
	l.s.tb.Helper()
	close(l.stop)
	gone := make(chan struct{})
	go func() { l.wg.Wait(); close(gone) }() // ends with the clients
	select {
	case <-gone:
	case <-time.After(harness.Deadline):
		l.s.tb.Errorf("clients wait for answers")
		unix.Unmount(l.s.dir, unix.MNT_FORCE|unix.MNT_DETACH)
		<-gone
	}
}

// TestChain: a mount is taken over five times while clients read and write. None waits for
// ever or reads wrong bytes; blocks without a writer are never missed; and only what was open
// meanwhile is in vain.
func TestChain(t *testing.T) {
	for _, disk := range []bool{false, true} {
		t.Run(fmt.Sprintf("disk %v", disk), func(t *testing.T) {
			var flags []string
			if disk {
				flags = []string{"--disk", "path=" + harness.NewDiskDir(t, nil) + ",size=512MiB"}
			}
			s := newSite(t, flags...)
			s.mount()
			l := begin(s)
			const times = 5
			for i := range times {
				l.goesOn()
				d := s.takeover()
				if st := s.status(); st.PID != d.pid || st.Mount.Epoch != i+2 || st.Mount.ReadPath != "passthrough" {
					t.Errorf("status after takeover %d: %+v", i+1, st)
				}
			}
			l.goesOn()
			l.end()
			s.check(0, stable)
			if vain := l.vain.Load(); vain > times*clients {
				t.Errorf("%d operations were in vain: more than were under way", vain)
			}
		})
	}
}
