package run

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// self is the test program, to be a command.
func self(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	return exe
}

// TestExitCode shows that the exit code of the command is that of kvfs run, 128+n
// for one that a signal killed, and that nothing is left of the mount (E3).
func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 1", 1},
		{"exit 77", 77},
		{"exit 255", 255},
		{"kill -KILL $$", 137},
		{"kill -TERM $$", 143},
		{"kill -SEGV $$", 139},
	} {
		t.Run(c.script, func(t *testing.T) {
			start(t, options{}, "sh", "-c", c.script).wantCode(c.want)
		})
	}
}

// TestMountIsThere shows that the command has a mount that works, named in
// KVFS_MOUNT, at a new directory or at --mount, which is made and removed (E3).
func TestMountIsThere(t *testing.T) {
	const text = `[ -d "$KVFS_MOUNT/.kvfs" ] && mkdir "$KVFS_MOUNT/g" && echo block >"$KVFS_MOUNT/g/b" && cat "$KVFS_MOUNT/g/b" && echo "$KVFS_MOUNT"`
	t.Run("new directory", func(t *testing.T) {
		l := start(t, options{}, "sh", "-c", text)
		out := l.wantCode(0)
		if block, dir, _ := strings.Cut(out, "\n"); block != "block" || !strings.HasPrefix(dir, l.tmp+"/kvfs-") {
			t.Errorf("got %q", out)
		}
	})
	for _, kind := range []string{"made", "there", "by KVFS_MOUNT"} {
		t.Run(kind, func(t *testing.T) {
			dir := filepath.Join(resolved(t, t.TempDir()), "mnt")
			o := options{flags: []string{"--mount", dir}}
			switch kind {
			case "there":
				must(t, os.Mkdir(dir, 0o755))
			case "by KVFS_MOUNT":
				o = options{env: []string{"KVFS_MOUNT=" + dir}}
			}
			l := start(t, o, "sh", "-c", text)
			if out := l.wantCode(0); out != "block\n"+dir+"\n" {
				t.Errorf("got %q", out)
			}
			if points := harness.MountPoints(dir); len(points) != 0 {
				t.Errorf("still mounted: %q", points)
			}
			_, err := os.Stat(dir)
			if kind == "there" && err != nil || kind != "there" && !os.IsNotExist(err) {
				t.Errorf("mount point afterwards: %v", err)
			}
		})
	}
}

// TestDescriptors shows that other open descriptors reach the command, but not the
// daemon, which would keep them open.
func TestDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	l := start(t, options{files: []*os.File{w}, helper: targetHelper}, self(t))
	w.Close()
	pid, mount := l.ready()
	pipe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.Fd()))
	must(t, err)
	if got, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", pid)); err != nil || got != pipe {
		t.Errorf("descriptor 3 of the command: got %q, %v, want %q", got, err, pipe)
	}
	daemon := daemonOf(t, mount)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", daemon))
	must(t, err)
	for _, e := range entries {
		if got, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", daemon, e.Name())); got == pipe {
			t.Errorf("the daemon has the descriptor of the command, as %s", e.Name())
		}
	}
	l.say("q0")
	l.wantCode(0)
}

// TestCannotStart shows the exit codes of a command that cannot be started, and
// that a mount that was made for it is taken away.
func TestCannotStart(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, os.WriteFile(plain, []byte("no program"), 0o644))
	for _, c := range []struct {
		name, command string
		want          int
	}{
		{"not there", "no-such-command-of-kvfs", 127},
		{"no path", filepath.Join(t.TempDir(), "x"), 127},
		{"not executable", plain, 126},
		{"no program", script(t, "garbage", "\x00\x01\x02"), 126},
		{"no interpreter", script(t, "lost", "#!/no/such/interpreter\n"), 127},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := start(t, options{}, c.command)
			l.wantCode(c.want)
			if !strings.Contains(l.stderr.String(), "kvfs: ") {
				t.Errorf("no word about it: %q", l.stderr.String())
			}
		})
	}
}

// TestRefused shows that kvfs run fails before it starts the command, each time
// with the exit code and a reason, and leaves nothing.
func TestRefused(t *testing.T) {
	full := t.TempDir()
	must(t, os.WriteFile(full+"/x", nil, 0o644))
	for _, c := range []struct {
		name  string
		flags []string
		want  int
		text  string
	}{
		{"full mount point", []string{"--mount", full}, 4, "not empty"},
		{"no parent", []string{"--mount", full + "/a/b"}, 4, "mount point"},
		{"configuration", []string{"--memory-size", "12"}, 3, "memory.size"},
		{"too late", []string{"--ready-timeout", "1ns"}, 4, "not ready after 1ns"},
		{"flag", []string{"--moutn", "x"}, 2, "unknown flag: --moutn"},
		{"engine", []string{"--engine", "tgi"}, 2, "unknown engine"},
		{"engine memory", []string{"--engine-memory", "-1GiB"}, 2, "--engine-memory"},
		{"timeout", []string{"--ready-timeout", "0s"}, 2, "--ready-timeout"},
		{"kept for nobody", []string{"--memory-keep"}, 3, "--mount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			marker := filepath.Join(t.TempDir(), "ran")
			l := start(t, options{flags: c.flags}, "touch", marker)
			l.wantCode(c.want)
			if !strings.Contains(l.stderr.String(), c.text) {
				t.Errorf("got %q, want it to have %q", l.stderr.String(), c.text)
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("the command ran")
			}
		})
	}
	if _, err := os.Stat(full + "/x"); err != nil {
		t.Error(err)
	}
}

// TestAttach shows that a mount that is there is used, and stays, with its daemon,
// that no flag of the mount is needed, and that a shell sees the exit codes of other
// runs (E5).
func TestAttach(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	for range 2 {
		l := start(t, options{plain: true, flags: []string{"--mount", d.Dir}}, "sh", "-c", `echo "$KVFS_MOUNT"; echo x >"$KVFS_MOUNT/b$$"; exit 3`)
		if out := l.wantCode(3); out != d.Dir+"\n" {
			t.Errorf("got %q, want %s", out, d.Dir)
		}
	}
	l := start(t, options{flags: []string{"--mount", d.Dir}}, "true")
	l.wantCode(0)
	if !strings.Contains(l.stderr.String(), "no effect") {
		t.Errorf("nothing said of a flag without effect: %q", l.stderr.String())
	}
	for _, c := range []struct {
		command []string
		want    int
	}{
		{[]string{"sh", "-c", "kill -TERM $$"}, 143},
		{[]string{script(t, "garbage", "\x00\x01\x02")}, 126},
		{[]string{script(t, "lost", "#!/no/such/interpreter\n")}, 127},
		{[]string{"no-such-command-of-kvfs"}, 127},
	} {
		start(t, options{flags: []string{"--mount", d.Dir}, under: []string{"sh", "-c", `"$@"; exit $?`, "sh"}}, c.command...).wantCode(c.want)
	}
	if !d.Running() || len(harness.MountPoints(d.Dir)) != 1 {
		t.Errorf("the mount or its daemon has gone")
	}
	if blocks, err := filepath.Glob(d.Dir + "/b*"); err != nil || len(blocks) != 2 {
		t.Errorf("got %q, %v, want two blocks", blocks, err)
	}
}

// TestAttachNot shows that a mount with a dead daemon is replaced, and that a daemon that does not answer in time is
// an error.
func TestAttachNot(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	harness.Freeze(t, d.Pid)
	l := start(t, options{flags: []string{"--mount", d.Dir, "--ready-timeout", "300ms"}}, "true")
	l.wantCode(4)
	if !strings.Contains(l.stderr.String(), "has not answered for 300ms") {
		t.Errorf("got %q", l.stderr.String())
	}
	d.Kill()
	l = start(t, options{flags: []string{"--mount", d.Dir}}, "sh", "-c", `ls "$KVFS_MOUNT" && echo fine`)
	if out := l.wantCode(0); out != "fine\n" {
		t.Errorf("got %q", out)
	}
	if points := harness.MountPoints(d.Dir); len(points) != 0 {
		t.Errorf("still mounted: %q", points)
	}
}

// TestEngines shows that engines get the flags and variables of the plan, and that the directories exist:
// llama-server needs its own, and that of the fs tier of vLLM is in the mount (E3), unless the command has a
// configuration of its own (E4, E5).
func TestEngines(t *testing.T) {
	const vllm = "#!/bin/sh\nfor last; do :; done\necho \"$PYTHONHASHSEED $last\"\n[ -d \"$KVFS_MOUNT/.kvfs\" ] || exit 9\n"
	engine := script(t, "vllm", vllm)
	l := start(t, options{}, engine, "serve", "m")
	seed, text, _ := strings.Cut(strings.TrimSpace(l.wantCode(0)), " ")
	var c struct {
		Extra struct {
			Tiers []struct {
				Type string `json:"type"`
				Root string `json:"root_dir"`
			} `json:"secondary_tiers"`
		} `json:"kv_connector_extra_config"`
	}
	must(t, json.Unmarshal([]byte(text), &c))
	if len(c.Extra.Tiers) != 1 || c.Extra.Tiers[0].Type != "fs" || !strings.HasPrefix(c.Extra.Tiers[0].Root, l.tmp+"/kvfs-") || seed != "0" {
		t.Errorf("got seed %q, %s", seed, text)
	}
	for _, given := range [][]string{{"--kv-transfer-config", "{}"}, {"--kv-transfer-config={}"}} {
		out := start(t, options{}, append([]string{engine, "serve", "m"}, given...)...).wantCode(0)
		if want := " " + given[len(given)-1] + "\n"; out != want {
			t.Errorf("%q: got %q, want %q", given, out, want)
		}
	}
	llama := script(t, "llama-server", "#!/bin/sh\n[ \"$1\" = --slot-save-path ] && [ -d \"$2\" ] && echo saved >\"$2/slot\" && cat \"$KVFS_MOUNT/llama.cpp/slot\"\n")
	if out := start(t, options{}, llama).wantCode(0); out != "saved\n" {
		t.Errorf("llama-server: got %q", out)
	}
}

// TestGrandchild shows that a process which the command leaves behind, with a file of
// the mount open, does not keep kvfs run from ending and unmounting.
func TestGrandchild(t *testing.T) {
	l := start(t, options{helper: holderHelper}, self(t), "file")
	var left int
	if _, err := fmt.Sscan(l.line(), &left); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(left, unix.SIGKILL)
	select {
	case <-l.ended:
	case <-t.Context().Done():
	}
	l.wantCode(5)
	if err := unix.Kill(left, 0); err != nil {
		t.Errorf("the process left behind has gone: %v", err)
	}
}

// TestTemporaryDirsOfTheDead: the empty mount points that runs which were killed have left are removed by the next run,
// and neither those that were written to, nor those of runs that live, nor of other name spaces.
func TestTemporaryDirsOfTheDead(t *testing.T) {
	space, err := os.Readlink("/proc/self/ns/pid")
	must(t, err)
	space = strings.Trim(space, "pid:[]")
	dead := exec.Command("true")
	must(t, dead.Run())
	tmp := t.TempDir()
	left := fmt.Sprintf("%s/kvfs-%s-%d-", tmp, space, dead.Process.Pid)
	keep := []string{left + "full/x", fmt.Sprintf("%s/kvfs-%s-%d-live", tmp, space, os.Getpid()), fmt.Sprintf("%s/kvfs-1-%d-other", tmp, dead.Process.Pid)}
	for _, dir := range append(keep, left+"empty") {
		must(t, os.MkdirAll(dir, 0o755))
	}
	start(t, options{env: []string{"TMPDIR=" + tmp}}, "true").wantCode(0)
	for _, dir := range keep {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(left + "empty"); !os.IsNotExist(err) {
		t.Errorf("it stays: %v", err)
	}
}
