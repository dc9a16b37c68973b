package control

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
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
	must(t, "size", unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
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

// TestProgress shows that commands say on a terminal how far they are, and take that away at the end; where standard
// error is none they say nothing.
func TestProgress(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{MemorySize: "64MiB"})
	const blocks = 600 // more than recovery reads between two looks
	fill := func() {
		t.Helper()
		g.HoldWrites()
		for i := range blocks {
			p := d.Path(fmt.Sprintf("g/%d", i))
			store(t, p, pattern(p, 4*kib))
		}
	}
	for _, args := range [][]string{{"drain", d.Dir}, {"evict", "--tier", "memory", "--all", d.Dir}} {
		must(t, "remove", os.RemoveAll(d.Path("g")))
		fill()
		s := onScreen(t, 24, 200, args...)
		s.until("copying 600 blocks to lower tiers  0 %")
		g.Release()
		if code, rest := s.ended(); code != 0 || !strings.Contains(rest, " \r") {
			t.Errorf("%s: exit code %d: %q", args[0], code, rest)
		}
	}
	d.Stop()

	s := onScreen(t, 24, 200, "fsck", d.DiskDir)
	s.until("checking " + d.DiskDir + "  ")
	if code, rest := s.ended(); code != 0 || !strings.Contains(rest, " \r"+d.DiskDir) { // the line is taken away
		t.Errorf("fsck: exit code %d, %q", code, rest)
	}
	if _, stderr, code := harness.Kvfs(t, "fsck", d.DiskDir); code != 0 || stderr != "" {
		t.Errorf("fsck without a terminal: exit code %d, %q", code, stderr)
	}

	s = onScreen(t, 24, 200, "mount", "--memory-dir", d.MemoryDir, "--memory-size", "64MiB", "--disk", "path="+d.DiskDir+",size=512MiB", d.Dir)
	s.until("reading " + d.DiskDir + "  ")
	s.until("mounted")
	kvfs(t, "umount", d.Dir)
	if code, rest := s.ended(); code != 0 {
		t.Errorf("mount: exit code %d, %q", code, rest)
	}
}
