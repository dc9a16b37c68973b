package daemon

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWatcher shows when a watcher has the connection given up: when the process of the mount has
// ended or its thread has, but not if it said goodbye before, however late the watcher comes to look.
func TestWatcher(t *testing.T) {
	for _, c := range []struct {
		name               string
		goodbye, end, died bool
		gives              string
	}{
		{"goodbye", true, false, false, ""},
		{"goodbye and its end", true, true, false, ""},
		{"goodbye and its death", true, false, true, ""},
		{"its end", false, true, false, "1"},
		{"its death", false, false, true, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			said, tell := pipe(t)
			given, abort := pipe(t)
			mark, err := os.CreateTemp(t.TempDir(), "mark") // which nobody has
			must(t, err)
			defer mark.Close()
			cmd := exec.Command("/proc/self/exe", watchCommand)
			cmd.ExtraFiles = []*os.File{said, abort, mark}
			must(t, startBlocked(cmd, parentDied))
			defer cmd.Wait()
			defer cmd.Process.Kill()
			said.Close()
			abort.Close()
			if err := cmd.Process.Signal(unix.SIGSTOP); err != nil { // all that follows is there when it looks
				t.Fatal(err)
			}
			if c.goodbye {
				tell.WriteString("g")
			}
			if c.died {
				cmd.Process.Signal(parentDied)
			}
			if c.end {
				tell.Close()
			}
			must(t, cmd.Process.Signal(unix.SIGCONT))
			if got, err := io.ReadAll(given); err != nil || string(got) != c.gives {
				t.Errorf("it wrote %q, %v, want %q", got, err, c.gives)
			}
		})
	}
}

// pipe makes a pipe that is closed with the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}
