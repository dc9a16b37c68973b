package handoff

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMark shows what a mark says of a mount: nothing without one, or for another mount of the same
// number; that it is served while anybody holds it; that it is abandoned when nobody does.
func TestMark(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	want := func(when string, want bool) {
		t.Helper()
		if got := Abandoned(path, 7, "/mnt/a b"); got != want {
			t.Errorf("%s: abandoned %v, want %v", when, got, want)
		}
		served := 0
		if _, err := os.Stat(path); err == nil && !want {
			served = os.Getpid()
		}
		if got := Server(path, 7, "/mnt/a b"); got != served {
			t.Errorf("%s: served by %d, want %d", when, got, served)
		}
	}
	want("no mark", false)
	old, err := NewMark(path, 7, "/mnt/a b")
	must(t, err)
	want("one process", false)
	heir, err := JoinMark(path, 7, "/mnt/a b")
	must(t, err)
	check(t, old.Close())
	want("the next process", false)
	if err := heir.f.Close(); err != nil { // as its end does
		t.Fatal(err)
	}
	want("none", true)
	if Abandoned(path, 8, "/mnt/a b") || Abandoned(path, 7, "/mnt/a") {
		t.Error("another mount of that number: abandoned")
	}
	again, err := NewMark(path, 7, "/mnt/a b")
	must(t, err)
	want("a new process", false)
	check(t, again.Close())
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the mark stays: %v", err)
	}
}

// TestLooksMeet shows that looks at a mark do not take each other for its holder.
func TestLooksMeet(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	m, err := NewMark(path, 7, "/mnt")
	must(t, err)
	if err := m.f.Close(); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	var looks sync.WaitGroup
	for range 8 {
		looks.Go(func() {
			for range 500 {
				if !Abandoned(path, 7, "/mnt") {
					t.Error("not abandoned")
					return
				}
			}
		})
	}
	looks.Wait()
}

// TestNumberUsedAgain shows that a process which removes its mark, or that of a dead one, leaves alone the mark of a new
// mount with the number of the old one.
func TestNumberUsedAgain(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	for i := range 500 {
		old, err := NewMark(path, 7, "/old")
		must(t, err)
		var ending sync.WaitGroup
		ending.Go(func() {
			if i%2 == 0 {
				err = old.Close()
				return
			}
			old.f.Close()
			if e := RemoveMark(path, 7, "/old"); !errors.Is(e, fs.ErrNotExist) { // it may be gone
				err = e
			}
		})
		m, newErr := NewMark(path, 8, "/new")
		ending.Wait()
		must(t, errors.Join(err, newErr))
		if pid := Server(path, 8, "/new"); pid != os.Getpid() {
			t.Fatalf("round %d: the new mount is served by %d", i, pid)
		}
		must(t, m.Close())
	}
}

// TestNumberOfAnEnding shows that a mount which has got the number of one that is gone, and its id and path, is abandoned
// when its own process is dead: the process of the other mount, which is still ending, does not serve it.
func TestNumberOfAnEnding(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	ending, err := NewMark(path, 7, "/mnt")
	must(t, err)
	for name, mark := range map[string]func(string, int, string) (*Mark, error){"/mnt": NewMark, "/new": JoinMark} {
		m, err := mark(path, 7, name)
		must(t, err)
		if Abandoned(path, 7, name) {
			t.Errorf("%s has a living process: abandoned", name)
		}
		must(t, m.f.Close())
		if !Abandoned(path, 7, name) {
			t.Errorf("%s: not abandoned", name)
		}
	}
	must(t, ending.Close())
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the mark of another mount is gone: %v", err)
	}
}

// TestMarkOfTheDead shows that a mark is nobody's if the lock of a process that has ended stays, as a stuck
// thread of it or a child has it stay; unless another process has the mark.
func TestMarkOfTheDead(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	living, err := NewMark(path, 7, "/mnt")
	must(t, err)
	f, err := living.Open() // which stays open here
	must(t, err)
	defer f.Close()
	dead := exec.Command("flock", "--shared", "3")
	dead.ExtraFiles = []*os.File{f}
	must(t, dead.Start())
	var info unix.Siginfo
	must(t, unix.Waitid(unix.P_PID, dead.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
	if !ended(strconv.Itoa(dead.Process.Pid)) {
		t.Error("no zombie")
	}
	if Abandoned(path, 7, "/mnt") {
		t.Error("a living process has the mark: abandoned")
	}
	must(t, living.f.Close())
	if !Abandoned(path, 7, "/mnt") {
		t.Error("a zombie alone has the mark: not abandoned")
	}
	must(t, dead.Wait())
	if !Abandoned(path, 7, "/mnt") {
		t.Error("the lock of a process that is gone: not abandoned")
	}
}

// TestServing shows that the mark of a mount names the process that serves it: not one that has only joined, until that
// serves; and the one before again if it serves after all.
func TestServing(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	old, err := NewMark(path, 7, "/mnt")
	must(t, err)
	const before = 1<<22 - 1 // the longest number
	old.text = fmt.Appendf(nil, markText, before, 7, "/mnt")
	must(t, old.Serving())
	heir, err := JoinMark(path, 7, "/mnt")
	must(t, err)
	for _, m := range []struct {
		when string
		*Mark
		pid int
	}{{"joined", nil, before}, {"heir", heir, os.Getpid()}, {"taken back", old, before}} {
		must(t, m.Serving())
		if got := Server(path, 7, "/mnt"); got != m.pid {
			t.Errorf("%s: served by %d, want %d", m.when, got, m.pid)
		}
	}
	check(t, heir.Close())
	check(t, old.Close())
}
