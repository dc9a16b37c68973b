package run

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestSignals shows that signals to kvfs run reach the command, once each, and that
// the command decides what becomes of it (E3).
func TestSignals(t *testing.T) {
	l := start(t, options{helper: targetHelper}, self(t))
	l.ready()
	for _, s := range []unix.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		l.signal(s)
		l.wantLine("signal " + unix.SignalName(s))
	}
	l.say("still here")
	l.wantLine("line still here")
	l.say("q12")
	if rest := l.wantCode(12); rest != "" {
		t.Errorf("more than was sent: %q", rest)
	}
}

// TestGroupSignal shows that a signal to the process group reaches the command
// once: kvfs run has left the group, and comes back when the command has ended. Beside
// a mount that was there it has become the command.
func TestGroupSignal(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	for name, flags := range map[string][]string{"mounted": nil, "attached": {"--mount", d.Dir}} {
		t.Run(name, func(t *testing.T) {
			l := start(t, options{helper: targetHelper, flags: flags, attr: &syscall.SysProcAttr{Setpgid: true}}, self(t))
			pid, _ := l.ready()
			group := l.cmd.Process.Pid
			if got, err := unix.Getpgid(pid); err != nil || got != group {
				t.Errorf("group of the command: got %d, %v, want %d", got, err, group)
			}
			if name == "mounted" {
				harness.Poll(t, "kvfs run has left the group", func() bool { got, err := unix.Getpgid(group); return err == nil && got != group })
			} else if pid != group {
				t.Errorf("process of the command: got %d, want that of kvfs run, %d", pid, group)
			}
			must(t, unix.Kill(-group, unix.SIGUSR1))
			l.wantLine("signal SIGUSR1")
			l.say("q1")
			if rest := l.wantCode(1); rest != "" {
				t.Errorf("more than was sent: %q", rest)
			}
		})
	}
}

// TestIgnored shows that a signal that kvfs run was started to ignore, as by nohup,
// is ignored by the command as well.
func TestIgnored(t *testing.T) {
	l := start(t, options{under: []string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}}, "sh", "-c", "grep SigIgn /proc/$$/status; echo up; read x; exit 4")
	var mask uint64
	if _, err := fmt.Sscanf(l.line(), "SigIgn: %x", &mask); err != nil || mask&1 == 0 {
		t.Errorf("ignored signals of the command: %x, %v, want SIGHUP among them", mask, err)
	}
	own, err := os.ReadFile("/proc/self/status") // what this test was itself started to ignore
	must(t, err)
	var inherited uint64
	if _, line, ok := strings.Cut(string(own), "SigIgn:"); ok {
		fmt.Sscanf(line, "%x", &inherited)
	}
	if others := mask &^ 1 &^ inherited; others != 0 {
		t.Errorf("the command ignores more signals: %x", others)
	}
	l.wantLine("up")
	l.signal(unix.SIGHUP)
	l.say("")
	l.wantCode(4)
}

// TestTermAtOnce shows that SIGTERM at any moment of the start ends kvfs run and
// leaves nothing.
func TestTermAtOnce(t *testing.T) {
	for range 8 {
		l := start(t, options{}, "sleep", "1000")
		l.signal(unix.SIGTERM)
		_, status := l.wait()
		if status.Exited() && status.ExitStatus() != 143 || status.Signaled() && status.Signal() != unix.SIGTERM {
			t.Errorf("got %v", status)
		}
		l.wantClean()
	}
}

// TestKilled shows that the daemon stops and unmounts when kvfs run is killed, and
// that the command is asked to end.
func TestKilled(t *testing.T) {
	l := start(t, options{helper: targetHelper}, self(t))
	_, mount := l.ready()
	daemon := daemonOf(t, mount)
	l.signal(unix.SIGKILL)
	l.wantLine("signal SIGTERM")
	l.say("q0")
	harness.Poll(t, "the mount is gone", func() bool { return len(harness.MountPoints(mount)) == 0 })
	harness.Poll(t, "the daemon is gone", func() bool { return unix.Kill(daemon, 0) != nil || zombie(daemon) })
}

// zombie reports whether a process has ended, and its parent has not waited for it.
func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	return err == nil && strings.HasPrefix(after, "Z")
}

// TestDaemonDies shows that the command goes on when the daemon dies, with a
// warning, that its exit code counts, and that neither mount nor memory is left.
func TestDaemonDies(t *testing.T) {
	l := start(t, options{helper: targetHelper}, self(t))
	_, mount := l.ready()
	must(t, unix.Kill(daemonOf(t, mount), unix.SIGKILL))
	harness.Poll(t, "a warning", func() bool { return strings.Contains(l.stderr.String(), "the daemon of the mount has ended") })
	l.say("hello")
	l.wantLine("line hello")
	l.signal(unix.SIGUSR1)
	l.wantLine("signal SIGUSR1")
	l.say("q6")
	l.wantCode(6)
	_, memory, _ := strings.Cut(l.stderr.String(), `"memory_dir": "`)
	memory, _, found := strings.Cut(memory, `"`)
	if _, err := os.Stat(memory); !found || !os.IsNotExist(err) {
		t.Errorf("memory of the daemon at %q: got %v, want it gone", memory, err)
	}
}

// TestHurry shows that kvfs run waits for its daemon to stop, and that a signal in that
// time makes it wait no longer: it kills the daemon and takes the mount away itself.
func TestHurry(t *testing.T) {
	l := start(t, options{helper: targetHelper}, self(t))
	pid, mount := l.ready()
	harness.Freeze(t, daemonOf(t, mount))
	l.say("q7")
	harness.Poll(t, "the command has ended", func() bool { return unix.Kill(pid, 0) != nil })
	harness.Poll(t, "the end", func() bool {
		select {
		case <-l.ended:
			return true
		default:
			// The first may come while it still looks after the command, the last when it has gone.
			_ = unix.Kill(l.cmd.Process.Pid, unix.SIGTERM)
			return false
		}
	})
	l.wantCode(7)
}
