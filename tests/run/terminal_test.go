package run

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// terminal makes a pseudo terminal that echoes nothing, and returns both its ends.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { master.Close() })
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { slave.Close() })
	state, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	must(t, err)
	state.Lflag &^= unix.ECHO
	must(t, unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, state))
	return master, slave
}

// screen reads the terminal.
type screen struct {
	t      *testing.T
	master *os.File
	out    *bufio.Reader
}

// expect reads lines until one begins with want, and returns what is behind it. Other
// lines, such as those of logs, are passed over, but none that has not.
func (s *screen) expect(want, not string) string {
	s.t.Helper()
	for {
		line, err := readLine(s.out)
		if err != nil {
			s.t.Fatalf("waiting for %q: %v", want, err)
		}
		if rest, ok := strings.CutPrefix(line, want); ok {
			return rest
		}
		if not != "" && strings.HasPrefix(line, not) {
			s.t.Errorf("waiting for %q: got %q", want, line)
		}
	}
}

func (s *screen) typed(text string) {
	s.t.Helper()
	_, err := s.master.WriteString(text)
	must(s.t, err)
}

// TestTerminal shows job control: below a shell, Ctrl-C reaches the command once,
// Ctrl-Z stops the job, fg continues it, and the command reads the terminal. The same
// without a shell, where kvfs run leads the session, as in a container.
func TestTerminal(t *testing.T) {
	const job = `set -m; "$@"; echo "stopped $?"; fg >/dev/null; echo "ended $?"`
	for name, under := range map[string][]string{"shell": {"bash", "-c", job, "bash"}, "leader": nil} {
		t.Run(name, func(t *testing.T) {
			master, slave := terminal(t)
			l := start(t, options{
				helper: targetHelper, stdio: slave, under: under, attr: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
			}, self(t))
			slave.Close()
			s := &screen{t, master, bufio.NewReader(master)}
			var pid int
			if _, err := fmt.Sscan(s.expect("ready", ""), &pid); err != nil {
				t.Fatal(err)
			}
			wantAway(t, pid)
			s.typed("\x03") // Ctrl-C
			s.expect("signal SIGINT", "signal")
			s.typed("typed\n")
			s.expect("line typed", "signal")
			s.typed("\x1c") // Ctrl-\
			s.expect("signal SIGQUIT", "signal")
			if name == "shell" {
				s.typed("\x1a") // Ctrl-Z
				s.expect("stopped 148", "signal")
				s.expect("signal SIGCONT", "")
				wantAway(t, pid)
				s.typed("\x03")
				s.expect("signal SIGINT", "")
				s.typed("again\n")
				s.expect("line again", "signal SIGINT")
				s.typed("q3\n")
				s.expect("ended 3", "signal")
			} else {
				s.typed("q3\n")
				l.wantCode(3)
			}
			_, _ = l.wait()
			l.wantClean()
		})
	}
}

// wantAway waits until the parent of a command, kvfs run, is in another process group.
// Before that it gets what is typed as well.
func wantAway(t *testing.T, pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	_, after, _ := strings.Cut(string(text), ") ")
	var state string
	var parent int
	_, err = fmt.Sscan(after, &state, &parent)
	must(t, err)
	home, err := unix.Getpgid(pid)
	must(t, err)
	harness.Poll(t, "kvfs run is in another group", func() bool {
		got, err := unix.Getpgid(parent)
		return err == nil && got != home
	})
}
