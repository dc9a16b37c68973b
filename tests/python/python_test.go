package python

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// testTimeout bounds one process of Python. Its tests have deadlines of their own.
const testTimeout = 8 * time.Minute

// leaks makes what the client leaves open an error.
const leaks = "PYTHONWARNINGS=error::ResourceWarning"

// outcome is a line that run.py prints.
type outcome struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
}

// clientDir returns the directory of the client and its tests.
func clientDir(t *testing.T) string { return filepath.Join(harness.Root(t), "clients", "python") }

// clientPython returns a Python that the client supports, or skips.
func clientPython(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		harness.Skip(t, "python3 is not installed")
	}
	if out, err := exec.Command(path, "-c", "import sys; assert sys.version_info >= (3, 8), sys.version").CombinedOutput(); err != nil {
		harness.Skip(t, "%s is older than 3.8, or does not work: %s", path, lastLine(out))
	}
	return path
}

// zmqPython returns a Python that has pyzmq and msgpack, or skips.
func zmqPython(t *testing.T) string {
	t.Helper()
	var reasons []string
	for _, name := range []string{"/usr/bin/python3", "python3"} { // Debian's packages are for the first
		path, err := exec.LookPath(name)
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		out, err := exec.Command(path, "-c", "import zmq, msgpack").CombinedOutput()
		if err == nil {
			return path
		}
		reasons = append(reasons, fmt.Sprintf("%s: %s", path, lastLine(out)))
	}
	harness.Skip(t, "no Python with pyzmq and msgpack (python3-zmq, python3-msgpack): %s", strings.Join(reasons, "; "))
	return ""
}

func lastLine(out []byte) string {
	out = bytes.TrimSpace(out)
	return string(out[bytes.LastIndexByte(out, '\n')+1:])
}

// run runs tests of Python, each as a subtest. dir is where their modules are.
func run(t *testing.T, python, dir string, env []string, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	args := append([]string{"-B", filepath.Join(harness.Root(t), "tests", "python", "run.py"), dir}, names...)
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	n := 0
	for line := range bytes.Lines(stdout.Bytes()) {
		var o outcome
		if err := json.Unmarshal(line, &o); err != nil {
			t.Errorf("run.py printed %q", line)
			continue
		}
		n++
		t.Run(o.Name, func(t *testing.T) {
			switch o.Outcome {
			case "pass":
			case "skip":
				harness.Skip(t, "%s", o.Text)
			default:
				t.Error(o.Text)
			}
		})
	}
	if err != nil || stderr.Len() > 0 {
		t.Errorf("%s: %v\n%s", strings.Join(names, " "), err, stderr.Bytes())
	}
	if n == 0 {
		t.Errorf("%s: no test ran", strings.Join(names, " "))
	}
}

// mount starts a daemon with an SSD tier.
func mount(t *testing.T, flags ...string) *harness.Daemon {
	t.Helper()
	harness.KvfsOnly(t, "the control directory")
	return harness.Mount(t, harness.Options{Disk: "1GiB", Flags: flags})
}

// TestClient runs the tests of the client that need no daemon.
func TestClient(t *testing.T) {
	run(t, clientPython(t), clientDir(t), []string{leaks}, "test_kvfs")
}

// TestClientWheel shows that pip builds a wheel of the client from the tree, with the version of the changelog, and
// that the client can be imported from where pip has installed it.
func TestClientWheel(t *testing.T) {
	const python = "/usr/bin/python3" // Debian has what a build without downloads needs for this one alone
	if out, err := exec.Command(python, "-c", "import setuptools, wheel, pip").CombinedOutput(); err != nil {
		harness.Skip(t, "no python3-pip, python3-setuptools or python3-wheel: %s", lastLine(out))
	}
	changes, err := os.ReadFile(filepath.Join(harness.Root(t), "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^## \[([0-9.]+)\]`).FindSubmatch(changes)
	if version == nil {
		t.Fatal("CHANGELOG.md has no version")
	}
	src, dst := t.TempDir(), t.TempDir() // pip writes into the source
	if err := os.CopyFS(src, os.DirFS(clientDir(t))); err != nil {
		t.Fatal(err)
	}
	command := func(dir string, env []string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	command(src, nil, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", dst, ".")
	got := command(dst, []string{"PYTHONPATH=" + dst}, "-c",
		"import importlib.metadata, kvfs; print(kvfs.__file__, importlib.metadata.version('kvfs'))")
	if want := fmt.Sprintf("%s %s\n", filepath.Join(dst, "kvfs.py"), version[1]); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestClientLive runs every method of the client against a daemon.
func TestClientLive(t *testing.T) {
	python := clientPython(t)
	d := mount(t)
	run(t, python, clientDir(t), []string{leaks, "KVFS_TEST_MOUNT=" + d.Dir}, "test_kvfs_live")
}

// TestClientRestart shows that a client outlives its daemon: it finds the next one
// by itself, and while there is none its calls fail.
func TestClientRestart(t *testing.T) {
	python := clientPython(t)
	d := mount(t)
	if err := os.Mkdir(d.Path("g"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path("g", "0101010101010101"), []byte("block"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-B", filepath.Join(harness.Root(t), "tests", "python", "restart.py"), clientDir(t), d.Dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for _, step := range []struct {
		says string
		then func()
	}{
		{"asked", func() { d.Kill(); d.Restart() }},
		{"asked again", d.Kill},
		{"nobody there", d.Restart},
		{"there again", d.Restart},
		{"done", func() {}},
	} {
		if !lines.Scan() || lines.Text() != step.says {
			stdin.Close()
			t.Fatalf("before %q the client says %q and ends: %v\n%s", step.says, lines.Text(), cmd.Wait(), stderr.Bytes())
		}
		step.then()
		if _, err := io.WriteString(stdin, "\n"); err != nil && step.says != "done" {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("client: %v\n%s", err, stderr.Bytes())
	}
}

// TestZeroMQ shows that a subscriber written from the description of vLLM's publisher understands the events for
// routers: those of a running daemon, those that the next daemon sends about the blocks that it finds, and those for
// subscribers that come while nothing happens. The publisher connects to one subscriber.
func TestZeroMQ(t *testing.T) {
	python := zmqPython(t)
	dir := filepath.Join(harness.Root(t), "tests", "python")
	for _, tt := range []struct {
		form  string // see zmq_test.py
		flags []string
	}{
		{"new", nil},
		{"old", []string{
			"--events-zmq-encoding=array", "--events-zmq-hash=bytes", "--events-zmq-replay-bare", "--events-zmq-disk-medium=DISK",
			"--events-zmq-templates=m_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin",
		}},
	} {
		t.Run(tt.form, func(t *testing.T) {
			bound := "ipc://" + filepath.Join(t.TempDir(), "bound")
			d := mount(t, append(tt.flags, "--events-zmq-bind=tcp://127.0.0.1:0", "--events-zmq-connect="+bound,
				"--events-zmq-replay=tcp://127.0.0.1:0", "--events-zmq-block-size=16")...)
			env := []string{"KVFS_TEST_MOUNT=" + d.Dir, "KVFS_TEST_FORM=" + tt.form, "KVFS_TEST_BOUND=" + bound}
			run(t, python, dir, env, "zmq_test.Stream")
			d.Restart()
			run(t, python, dir, env, "zmq_test.Snapshot")
			run(t, python, dir, env, "zmq_test.Idle")
		})
	}
}
