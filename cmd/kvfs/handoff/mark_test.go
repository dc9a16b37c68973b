package handoff

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	if err != nil {
		t.Fatal(err)
	}
	want("one process", false)
	heir, err := NewMark(path, 7, "/mnt/a b")
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	want("the next process", false)
	if err := heir.f.Close(); err != nil { // as its end does
		t.Fatal(err)
	}
	want("none", true)
	if Abandoned(path, 8, "/mnt/a b") || Abandoned(path, 7, "/mnt/a") {
		t.Error("another mount of that number: abandoned")
	}
	again, err := NewMark(path, 7, "/mnt/a b")
	if err != nil {
		t.Fatal(err)
	}
	want("a new process", false)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the mark stays: %v", err)
	}
}

// TestMarkOfZombie shows that a mark is nobody's if the lock of a process that has ended stays, as a stuck
// thread of it has it stay; unless another process has the mark.
func TestMarkOfZombie(t *testing.T) {
	path := MarkPath(filepath.Join(t.TempDir(), "run", "store.sock"), "42")
	living, err := NewMark(path, 7, "/mnt")
	if err != nil {
		t.Fatal(err)
	}
	f, err := living.Open() // which stays open here
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dead := exec.Command("flock", "--shared", "3")
	dead.ExtraFiles = []*os.File{f}
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	defer dead.Wait()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, dead.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if !zombie(strconv.Itoa(dead.Process.Pid)) {
		t.Error("no zombie")
	}
	if Abandoned(path, 7, "/mnt") {
		t.Error("a living process has the mark: abandoned")
	}
	if err := living.f.Close(); err != nil {
		t.Fatal(err)
	}
	if !Abandoned(path, 7, "/mnt") {
		t.Error("a zombie alone has the mark: not abandoned")
	}
}
