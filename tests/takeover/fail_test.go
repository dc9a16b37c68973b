package takeover

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestTakenBack shows that the old daemon answers again if the new one cannot start after all, for a
// reason that shows only then; clients notice a pause. The mark of the mount, by which kvfs umount knows for whose end it has to
// wait, names the daemon that answers.
func TestTakenBack(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer busy.Close()
	s := newSite(t)
	first := s.mount()
	l := begin(s)
	for i := range 3 {
		l.goesOn()
		code, said := s.refused("--http", busy.Addr().String())
		if code != 1 || !strings.Contains(said, "address already in use") || !strings.Contains(said, "answers the mount again") {
			t.Errorf("exit code %d\n%s", code, said)
		}
		s.answeredBy(first)
		s.markedBy(first)
		if epoch := s.status().Mount.Epoch; epoch < 2*i+3 {
			t.Errorf("epoch %d", epoch)
		}
	}
	l.goesOn()
	l.end()
	s.daemons = []*daemon{first}
	s.markedBy(s.takeover())
	s.check(0, stable)
}

// halfway starts takeovers until one is stopped between the two daemons: the old one has let go, the new one does not
// answer yet. It returns both. With flags that make the new one fail, the new one has not failed yet.
func halfway(s *site, flags ...string) (old, heir *daemon) {
	s.tb.Helper()
	return haltedAt(s, "memory of an earlier process", flags...)
}

// haltedAt is halfway for a new daemon that is stopped when it has logged a line, and has not said yet that it is ready.
func haltedAt(s *site, line string, flags ...string) (old, heir *daemon) {
	s.tb.Helper()
	old = s.daemons[len(s.daemons)-1]
	for range 100 {
		back := strings.Count(old.text(), "taking the mount back")
		heir = s.begin(nil, append([]string{"--takeover"}, flags...)...)
		deadline := time.Now().Add(harness.Deadline)
		for !strings.Contains(heir.text(), line) && heir.running() && time.Now().Before(deadline) {
			// There is no event: it is to be met in the middle.
		}
		harness.Freeze(heir.tb, heir.pid)
		if heir.running() && !strings.Contains(heir.text(), "mounted") && strings.Count(old.text(), "taking the mount back") == back {
			return old, heir
		}
		unix.Kill(heir.pid, unix.SIGCONT)
		if <-heir.ready {
			old.end()
			old = heir
		} else {
			heir.end()
		}
	}
	s.tb.Fatal("no takeover could be stopped halfway")
	return nil, nil
}

// TestOldKilled shows what becomes of the mount if the old daemon is asked to stop after it has let go, or is killed, and
// the new one then fails: that unmounts, and waiting clients get an error. TestKilled has new daemons that serve.
func TestOldKilled(t *testing.T) {
	t.Run("old stopped", func(t *testing.T) {
		s := newSite(t)
		s.mount()
		s.write(0, 50)
		old, heir := halfway(s)
		unix.Kill(old.pid, unix.SIGTERM) // it stays until it knows that the other one answers
		unix.Kill(heir.pid, unix.SIGCONT)
		heir.wait(t)
		old.end()
		if old.code != 0 {
			t.Errorf("exit code %d", old.code)
		}
		s.answeredBy(heir)
		s.check(0, 50)
	})
	t.Run("both stopped", func(t *testing.T) {
		bothStopped(t)
	})
	t.Run("both stopped, new fails", func(t *testing.T) {
		busy, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer busy.Close()
		bothStopped(t, "--events-zmq-bind", "tcp://"+busy.Addr().String())
	})
	t.Run("new fails", func(t *testing.T) {
		busy, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer busy.Close()
		s := newSite(t)
		s.mount()
		s.write(0, 50)
		old, heir := halfway(s, "--events-zmq-bind", "tcp://"+busy.Addr().String())
		waits := make(chan error, 1)
		go func() { // ends when it is answered, or the mount is gone
			_, err := os.ReadFile(s.path(1))
			waits <- err
		}()
		old.kill()
		unix.Kill(heir.pid, unix.SIGCONT)
		heir.end()
		if heir.code != 1 || !strings.Contains(heir.text(), "unmounted") {
			t.Errorf("exit code %d\n%s", heir.code, heir.text())
		}
		select {
		case <-waits: // an error, or the bytes: the new one may have answered before it failed
		case <-time.After(harness.Deadline):
			t.Error("a reader waits for an answer")
		}
		if len(harness.MountPoints(s.dir)) > 0 {
			t.Error("still mounted")
		}
		s.mount() // adopts
		s.check(0, 50)
	})
}

// bothStopped asks both daemons to stop halfway. Whichever has the mount in the end takes it away, with
// the memory.
func bothStopped(t *testing.T, flags ...string) {
	s := newSite(t)
	s.mount()
	s.write(0, 50)
	old, heir := halfway(s, flags...)
	unix.Kill(old.pid, unix.SIGTERM)
	unix.Kill(heir.pid, unix.SIGTERM)
	unix.Kill(heir.pid, unix.SIGCONT)
	heir.end()
	old.end()
	if old.code != 0 {
		t.Errorf("exit code %d", old.code)
	}
	if left := append(harness.MountPoints(s.dir), harness.MountPoints(s.memory)...); len(left) > 0 {
		t.Errorf("still mounted: %q", left)
	}
	if left, err := os.ReadDir(s.memory); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left in memory: %v, %v", left, err)
	}
}

// TestNewKilledInSelfTest kills the new daemon while it reads from the mount, which it answers itself. The kernel lets a
// thread end only after an answer that was begun, and the old daemon is to take the mount back and give that answer. Not
// each kill meets such a moment.
func TestNewKilledInSelfTest(t *testing.T) {
	s := newSite(t)
	s.mount()
	s.write(0, 5)
	for range 50 {
		old, heir := haltedAt(s, "self-test begins", "--log-level", "debug")
		back := strings.Count(old.text(), "taking the mount back")
		unix.Kill(heir.pid, unix.SIGKILL)
		harness.Poll(t, "the mount is taken back", func() bool { return strings.Count(old.text(), "taking the mount back") > back })
		s.check(0, 5)
		heir.end()
		s.daemons = append(s.daemons, old) // the last that lives
	}
}

// TestMountBeneath shows that a daemon whose mount was taken away does not touch the mount beneath.
func TestMountBeneath(t *testing.T) {
	s := newSite(t)
	must(t, unix.Mount("beneath", s.dir, "tmpfs", 0, "size=1m"))
	s.mount()
	first := s.takeover()
	must(t, unix.Unmount(s.dir, 0))
	first.end()
	if points := harness.MountPoints(s.dir); len(points) != 1 {
		t.Errorf("mounts: %q, want the one beneath", points)
	}
}

// TestRelativeMemory shows that two daemons which work in different directories do not take one
// memory.dir for the other.
func TestRelativeMemory(t *testing.T) {
	s := newSite(t)
	elsewhere := filepath.Join(s.base, "elsewhere")
	must(t, os.Mkdir(elsewhere, 0o755))
	s.flags = []string{"--memory-size", "128MiB", "--memory-dir", "blocks"}
	s.work = s.memory
	first := s.mount()
	s.write(0, 20)
	s.work = elsewhere
	if code, said := s.refused(); code != 3 || !strings.Contains(said, "memory.dir") {
		t.Errorf("exit code %d\n%s", code, said)
	}
	s.answeredBy(first)
	s.daemons = []*daemon{first}
	s.flags[3] = filepath.Join(s.memory, "blocks")
	s.takeover()
	s.check(0, 20)
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) > 0 {
		t.Errorf("left elsewhere: %v, %v", left, err)
	}
}

// TestOldStopped shows that a daemon that does not run, but is not dead, is not replaced, and goes on
// when it runs again.
func TestOldStopped(t *testing.T) {
	s := newSite(t)
	first := s.mount()
	s.write(0, 10)
	harness.Freeze(first.tb, first.pid)
	code, said := s.refused()
	if code != 4 || !strings.Contains(said, "does not answer") {
		t.Errorf("exit code %d\n%s", code, said)
	}
	unix.Kill(first.pid, unix.SIGCONT)
	s.answeredBy(first)
	s.check(0, 10)
	s.daemons = []*daemon{first}
	s.takeover()
	s.check(0, 10)
}
