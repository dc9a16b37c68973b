package mount

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// shellBlock is a block of commands of a page.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)\n```")

// freePort returns a port of loopback that is free at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, "listen", err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, "port", err)
	return port
}

// TestReadme pastes the blocks of commands of the README and the tour into a shell, one after the other, each as a whole. So kvfs
// mount -d must return when the mount answers, and the commands after umount must find nothing in use.
func TestReadme(t *testing.T) {
	harness.KvfsOnly(t, "kvfs mount")
	harness.NeedFuse(t)
	needRoot(t)
	var blocks [][]string
	for _, name := range []string{"README.md", "docs/tour.md"} {
		page, err := os.ReadFile(filepath.Join(harness.Root(t), name))
		must(t, "read", err)
		blocks = append(blocks, shellBlock.FindAllStringSubmatch(string(page), -1)...)
	}
	want := [][]string{
		{"memory  memory  online"},
		{"hit      disk", "hit      memory", "no errors"},
		{"b     alive", "a     alive"},
		{"2 on disk, 1 missing", "loaded 2 blocks", "removed by thread", "stored   memory"},
		{"gemma: set", "hit: 48 tokens"},
	}
	if len(blocks) != len(want) {
		t.Fatalf("%d blocks of commands, want %d", len(blocks), len(want))
	}
	home := t.TempDir()
	must(t, "mkdir", os.Mkdir(filepath.Join(home, "bin"), 0o755))
	must(t, "link", os.Symlink(harness.Binary(t), filepath.Join(home, "bin/kvfs")))
	t.Cleanup(func() {
		for _, name := range []string{"kv", "kv-b"} { // those of a test that failed
			_ = exec.Command(harness.Binary(t), "umount", "--lazy", filepath.Join(home, name)).Run()
		}
	})
	edit := strings.NewReplacer("7946", freePort(t), "7947", freePort(t), "/tmp/block", "block", "getfattr", "echo")
	for i, texts := range want {
		cmd := exec.Command("bash")
		cmd.Dir = home
		cmd.Env = append(os.Environ(), "HOME="+home)
		cmd.Stdin = strings.NewReader("make() { :; }\n" + edit.Replace(blocks[i][1]) + "\n")
		log, err := os.CreateTemp(home, "log")
		must(t, "log", err)
		cmd.Stdout, cmd.Stderr = log, log // which daemons keep
		if err := cmd.Run(); err != nil {
			t.Errorf("block %d: %v", i, err)
		}
		out, err := os.ReadFile(log.Name())
		must(t, "read", err)
		for _, text := range texts {
			if !strings.Contains(string(out), text) {
				t.Errorf("block %d lacks %q:\n%s", i, text, out)
			}
		}
	}
	left, err := os.ReadDir(home)
	must(t, "list", err)
	for _, e := range left { // the tour ends unmounted
		if e.Name() != "bin" && !strings.HasPrefix(e.Name(), "log") { // which are of this test
			t.Errorf("the tour leaves %s", e.Name())
		}
	}
}

// TestBackgroundPipe: a process that reads the standard error of kvfs mount -d through a pipe, as a shell with
// | or ssh does, reads its end when the mount answers, after one line that names the log. The daemon goes on, and logs there.
func TestBackgroundPipe(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	harness.NeedFuse(t)
	dir, logs := t.TempDir(), t.TempDir()
	r, w, err := os.Pipe()
	must(t, "pipe", err)
	defer r.Close()
	cmd := exec.Command(harness.Binary(t), "mount", "-d", "--memory-size=64MiB", dir)
	cmd.Stderr, cmd.Env = w, append(os.Environ(), "LOGS_DIRECTORY="+logs)
	must(t, "kvfs mount -d", cmd.Run())
	w.Close()
	name := filepath.Join(logs, strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-")+".log")
	defer func() {
		if stdout, stderr, code := harness.Kvfs(t, "umount", dir); code != 0 {
			t.Errorf("umount: exit code %d: %s%s", code, stdout, stderr)
		}
		if log, err := os.ReadFile(name); err != nil || !strings.Contains(string(log), "mounted") || !strings.Contains(string(log), "unmounted") {
			t.Errorf("%s: %v, %q", name, err, log)
		}
	}()
	must(t, "deadline", r.SetReadDeadline(time.Now().Add(harness.Deadline)))
	text, err := io.ReadAll(r)
	if err != nil || !strings.HasSuffix(string(text), "kvfs: the daemon logs to "+name+"\n") {
		t.Errorf("standard error: %v, %q; want its end, and one line about the log", err, text)
	}
	if _, err := os.Stat(filepath.Join(dir, ".kvfs/status")); err != nil {
		t.Error(err)
	}
}

// TestFewDescriptors: a limit of open files that is too low for the settings is one line with the number that is needed.
func TestFewDescriptors(t *testing.T) {
	harness.KvfsOnly(t, "kvfs mount")
	cmd := exec.Command("sh", "-c", `ulimit -n 1500; exec "$@"`, "sh", harness.Binary(t), "mount", "--memory-size=64MiB", "--disk-slab-size=1MiB",
		"--disk=path="+harness.NewDiskDir(t, nil)+",size=1GiB", t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 3 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "needs 2064") {
		t.Errorf("exit code %d, %v, %q; want 3 and one line that says 2064", cmd.ProcessState.ExitCode(), err, out)
	}
}
