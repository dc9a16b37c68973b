package control

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestGoClient runs the tests of clients/go, which is a module of its own, each on a mount of its own.
func TestGoClient(t *testing.T) {
	program := filepath.Join(t.TempDir(), "live.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, ".")
	build.Dir = filepath.Join(harness.Root(t), "clients", "go")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, text)
	}
	for _, c := range []struct {
		test string
		opts harness.Options
	}{
		{"TestClient", harness.Options{Disk: "256MiB"}},
		{"TestEvents", harness.Options{}},
		{"TestErrors", harness.Options{MemorySize: "32MiB"}},
	} {
		t.Run(c.test, func(t *testing.T) {
			runLive(t, harness.Mount(t, c.opts), program, c.test)
		})
	}
}

// runLive runs one test of a program, and does to the daemon what the test asks for.
func runLive(t *testing.T, d *harness.Daemon, program, test string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run", "^"+test+"$")
	cmd.Env = append(os.Environ(), "KVFS_TEST_MOUNT="+d.Dir)
	in, err := cmd.StdinPipe()
	must(t, "stdin", err)
	out, err := cmd.StdoutPipe()
	must(t, "stdout", err)
	cmd.Stderr = cmd.Stdout
	must(t, "start", cmd.Start())
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		what, asked := strings.CutPrefix(lines.Text(), "do:")
		if !asked {
			continue
		}
		switch what {
		case "evict":
			kvfs(t, "drain", d.Dir)
			kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
		case "kill":
			d.Kill()
		case "restart":
			d.Restart()
		default:
			t.Errorf("the test asks for %q", what)
		}
		fmt.Fprintln(in, "done")
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(text.String(), "--- PASS: "+test) {
		t.Errorf("%s: %v\n%s", test, err, text.String())
	}
}

// TestGoGet shows that go get takes clients/go as a module of its own, from a repository with its tag.
func TestGoGet(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		harness.Skip(t, "git is not installed")
	}
	repo, user, cache := t.TempDir(), t.TempDir(), t.TempDir()
	env := append(os.Environ(), "GOPROXY=direct", "GOSUMDB=off", "GOFLAGS=-modcacherw", "GOWORK=off", "GOMODCACHE="+cache, "GIT_ALLOW_PROTOCOL=file",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+repo+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/kvfs/kvfs",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	run := func(dir string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, env
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	must(t, "copy", os.CopyFS(filepath.Join(repo, "clients", "go"), os.DirFS(filepath.Join(harness.Root(t), "clients", "go"))))
	must(t, "go.mod", os.WriteFile(filepath.Join(repo, "go.mod"), []byte("module github.com/kvfs/kvfs\n"), 0o644))
	run(repo, "git", "init", "-q")
	run(repo, "git", "add", ".")
	run(repo, "git", "commit", "-q", "-m", "all")
	run(repo, "git", "tag", "clients/go/v0.1.0")
	must(t, "go.mod", os.WriteFile(filepath.Join(user, "go.mod"), []byte("module example.org/user\n\ngo 1.23\n"), 0o644))
	must(t, "main.go", os.WriteFile(filepath.Join(user, "main.go"), []byte(`package main

import kvfs "github.com/kvfs/kvfs/clients/go"

func main() { kvfs.Open("/") }
`), 0o644))
	run(user, "go", "get", "github.com/kvfs/kvfs/clients/go@v0.1.0")
	run(user, "go", "build", "-o", os.DevNull, ".")
	mod, err := os.ReadFile(filepath.Join(user, "go.mod"))
	if err != nil || !strings.Contains(string(mod), "require github.com/kvfs/kvfs/clients/go v0.1.0") {
		t.Errorf("go.mod: %v\n%s", err, mod)
	}
}
