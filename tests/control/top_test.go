package control

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// screen is a program on a pseudo-terminal. What it writes is in the order of the writes, with the codes that move the
// cursor.
type screen struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	wrote  chan []byte // closed when the program has closed the terminal
	seen   []byte      // of wrote
}

// onScreen starts kvfs on a terminal of a size.
func onScreen(t *testing.T, rows, columns uint16, args ...string) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, "ptmx", err)
	t.Cleanup(func() { master.Close() })
	must(t, "unlock", unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, "number", err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, "pts", err)
	defer slave.Close()
	s := &screen{t: t, master: master, wrote: make(chan []byte)}
	s.resize(rows, columns)
	s.cmd = exec.Command(harness.Binary(t), args...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	must(t, "start", s.cmd.Start())
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	go func() { // ends with the program, which is the last to have the terminal open, or with the test
		defer close(s.wrote)
		for {
			part := make([]byte, 64<<10)
			n, err := master.Read(part)
			if err != nil {
				return
			}
			select {
			case s.wrote <- part[:n]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

// resize changes the size of the terminal, which sends SIGWINCH.
func (s *screen) resize(rows, columns uint16) {
	s.t.Helper()
	must(s.t, "size", unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
}

// typed types a text.
func (s *screen) typed(text string) {
	s.t.Helper()
	_, err := s.master.WriteString(text)
	must(s.t, "type", err)
}

// until waits until the program has written a text since the last call.
func (s *screen) until(text string) {
	s.t.Helper()
	for !bytes.Contains(s.seen, []byte(text)) {
		s.seen = append(s.seen, receive(s.t, text, s.wrote)...)
	}
	_, s.seen, _ = bytes.Cut(s.seen, []byte(text))
}

// ended waits for the end of the program, and returns its exit code and the rest of what it wrote.
func (s *screen) ended() (code int, rest string) {
	s.t.Helper()
	within(s.t, "the program ends", func() {
		for part := range s.wrote {
			s.seen = append(s.seen, part...)
		}
		s.cmd.Wait()
	})
	return s.cmd.ProcessState.ExitCode(), string(s.seen)
}

// TestTop runs kvfs top on a terminal: it shows tiers, groups and events as they change, scrolls, fits another size, and
// quits by a key, with the screen as it was before. Another one ends when the daemon does.
func TestTop(t *testing.T) {
	d := diskMount(t, harness.Options{})
	odd := "g\x1b[2J"
	must(t, "mkdir", os.Mkdir(d.Path(odd), 0o755))
	store(t, d.Path(odd, "a"), pattern("a", mib))
	waitOnDisk(t, d.Path(odd, "a"))
	s := onScreen(t, 50, 150, "top", "--interval", "50ms", d.Dir)
	const enter, leave = "\x1b[?1049h", "\x1b[?1049l"
	s.until(enter)
	for _, part := range []string{filepath.Base(d.Dir), "TIERS", "memory", "disk", "GROUPS IN MEMORY", `g\x1b[2J`, "LAST EVENTS", `g\x1b[2J/a`} {
		s.until(part)
	}
	store(t, d.Path("zqzqz"), pattern("b", mib)) // no letter is in the events so far: only what changes is written
	s.until("zqzqz")
	s.resize(12, 150)
	s.until("lines 1 to 11 of")
	s.typed("\x1b[F") // end
	s.until("LAST EVENTS")
	other := onScreen(t, 50, 150, "top", "--interval", "50ms", d.Dir)
	other.until("OPERATION") // the second frame
	s.typed("q")
	if code, rest := s.ended(); code != 0 || !strings.Contains(rest, leave) {
		t.Errorf("q: exit code %d, %q", code, rest)
	}
	d.Kill()
	if code, rest := other.ended(); code != 5 || !strings.Contains(rest, leave) || !strings.Contains(rest, "is dead") {
		t.Errorf("without a daemon: exit code %d, %q", code, rest)
	}
}

// TestTopPiped shows that kvfs top prints lines where there is no terminal.
func TestTopPiped(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	harness.KvfsOnly(t, "a control directory")
	cmd := exec.Command(harness.Binary(t), "top", "--interval", "20ms", d.Dir)
	r, w, err := os.Pipe()
	must(t, "pipe", err)
	defer r.Close()
	cmd.Stdout = w
	must(t, "start", cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	w.Close()
	within(t, "two lines", func() {
		var out []byte
		for bytes.Count(out, []byte("\n")) < 2 {
			part := make([]byte, 4096)
			n, err := r.Read(part)
			if err != nil {
				t.Errorf("read: %v", err)
				break
			}
			out = append(out, part[:n]...)
		}
		wantLine(t, string(out), "reads", "hit", "ssd used")
		wantLine(t, string(out), "256.0 MiB", "-")
		if bytes.ContainsRune(out, '\x1b') {
			t.Errorf("codes of a terminal: %q", out)
		}
	})
	must(t, "SIGINT", cmd.Process.Signal(unix.SIGINT))
	within(t, "the command ends", func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGINT: %v", err)
		}
	})
}
