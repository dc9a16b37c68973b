package run

import (
	"encoding/json"
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

// heir is a daemon that takes the mount of a run over.
type heir struct {
	pid    int
	stderr safeBuffer
	ended  chan struct{}
	code   int    // once it has ended
	memory string // where its blocks are
}

// takeOver replaces the daemon of a mount, and waits until the new one answers.
func takeOver(t *testing.T, mount string, flags ...string) *heir {
	t.Helper()
	if unix.Geteuid() != 0 {
		harness.Skip(t, "only root can take a mount over")
	}
	harness.Poll(t, "it says whether it can be taken over", func() bool {
		s := statusOf(t, mount)
		if s.Mount.TakeoverReason != "" {
			harness.Skip(t, "no takeover: %s", s.Mount.TakeoverReason)
		}
		return s.Mount.Takeover != ""
	})
	h := &heir{ended: make(chan struct{})}
	cmd := exec.Command(harness.Binary(t), append(append([]string{"mount", "--takeover", "--memory-size", "64MiB"}, flags...), mount)...)
	cmd.Stderr = &h.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	h.pid = cmd.Process.Pid
	go func() { // ends with the daemon, which cleanup ends
		cmd.Wait()
		h.code = cmd.ProcessState.ExitCode()
		close(h.ended)
	}()
	t.Cleanup(func() {
		select {
		case <-h.ended:
		default:
			unix.Kill(h.pid, unix.SIGKILL)
			<-h.ended
		}
		if t.Failed() {
			t.Logf("heir %d:\n%s", h.pid, h.stderr.String())
		}
	})
	harness.Poll(t, "another daemon answers", func() bool {
		select {
		case <-h.ended:
			t.Fatalf("it ended with code %d", h.code)
		default:
		}
		out, _, code := harness.Kvfs(t, "status", "--json", mount)                          // repeats what the takeover meets
		return code == 0 && strings.Contains(out, fmt.Sprintf("\n    \"pid\": %d,", h.pid)) // of the mount: it was tested
	})
	h.memory = statusOf(t, mount).Memory.Dir
	return h
}

// statusOf returns what the tests look at in the status of a mount.
func statusOf(t *testing.T, mount string) (s struct {
	Mount struct {
		Takeover       string `json:"takeover"`
		TakeoverReason string `json:"takeover_reason"`
		EndsWith       int    `json:"ends_with"`
	} `json:"mount"`
	Memory struct {
		Dir string `json:"dir"`
	} `json:"memory"`
}) {
	t.Helper()
	text, err := os.ReadFile(mount + "/.kvfs/status")
	must(t, err)
	must(t, json.Unmarshal(text, &s))
	return s
}

// wantGone waits until the heir has ended by itself, and fails unless its memory is free.
func (h *heir) wantGone(t *testing.T) {
	t.Helper()
	harness.Poll(t, "the end of the new daemon", func() bool {
		select {
		case <-h.ended:
			return true
		default:
			return false
		}
	})
	if _, err := os.Stat(h.memory); h.memory == "" || !os.IsNotExist(err) {
		t.Errorf("memory at %q: got %v, want it gone", h.memory, err)
	}
}

// TestTakenOver shows that a mount that another daemon has taken over, and a third from that, ends
// with its run all the same, memory included, and that the exit code is that of the command (E3). The
// last one was told to keep its memory, which no later daemon would find.
func TestTakenOver(t *testing.T) {
	l := start(t, options{helper: targetHelper}, self(t))
	_, mount := l.ready()
	block := filepath.Join(mount, "g", "block")
	must(t, os.Mkdir(filepath.Dir(block), 0o755))
	must(t, os.WriteFile(block, []byte("bytes"), 0o644))
	for _, flags := range [][]string{nil, {"--memory-keep"}} {
		h := takeOver(t, mount, flags...)
		if got := statusOf(t, mount).Mount.EndsWith; got != l.cmd.Process.Pid {
			t.Errorf("the mount ends with process %d, want kvfs run, %d", got, l.cmd.Process.Pid)
		}
		if text := h.stderr.String(); !strings.Contains(text, "ends when the kvfs run that made it ends") {
			t.Errorf("the new daemon does not say so:\n%s", text)
		}
		if got, err := os.ReadFile(block); string(got) != "bytes" || err != nil {
			t.Errorf("block: got %q, %v", got, err)
		}
		if flags != nil {
			defer h.wantGone(t)
		}
	}
	harness.Poll(t, "kvfs run says so", func() bool { return strings.Contains(l.stderr.String(), "has taken the mount over") })
	l.say("hello")
	l.wantLine("line hello")
	l.say("q5")
	l.wantCode(5)
}

// TestTakenOverKilled shows that a daemon that has taken the mount of a run over stops when that is
// killed.
func TestTakenOverKilled(t *testing.T) {
	l := start(t, options{helper: targetHelper}, self(t))
	_, mount := l.ready()
	h := takeOver(t, mount)
	l.signal(unix.SIGKILL)
	l.wantLine("signal SIGTERM")
	l.say("q0")
	h.wantGone(t)
	if h.code != 0 {
		t.Errorf("exit code: got %d, want 0", h.code)
	}
	if left := harness.MountPoints(mount); len(left) != 0 {
		t.Errorf("still mounted: %q", left)
	}
}

// TestTakenOverByOther shows that a mount that another program has made at the place, after the daemon
// of the run was killed, stays when the run ends.
func TestTakenOverByOther(t *testing.T) {
	dir := filepath.Join(resolved(t, t.TempDir()), "mnt")
	must(t, os.Mkdir(dir, 0o755))
	l := start(t, options{helper: targetHelper, flags: []string{"--mount", dir}}, self(t))
	l.ready()
	must(t, unix.Kill(daemonOf(t, dir), unix.SIGKILL))
	harness.Poll(t, "a warning", func() bool { return strings.Contains(l.stderr.String(), "the daemon of the mount has ended") })
	other := exec.Command(harness.Binary(t), "mount", "--memory-size", "64MiB", dir)
	must(t, other.Start())
	defer other.Wait()
	defer other.Process.Signal(unix.SIGTERM)
	harness.Poll(t, "another mount", func() bool {
		_, err := os.Stat(dir + "/.kvfs/status")
		return err == nil
	})
	l.say("q4")
	l.wantCode(4)
	if got := daemonOf(t, dir); got != other.Process.Pid {
		t.Errorf("process %d answers, want %d", got, other.Process.Pid)
	}
}
