package control

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// compileC compiles a program of clients/c with all warnings and with the sanitizers of addresses and of undefined
// behaviour, or skips the test.
func compileC(t *testing.T, compiler, std, name string) string {
	t.Helper()
	path, err := exec.LookPath(compiler)
	if err != nil {
		harness.Skip(t, "%s is not installed", compiler)
	}
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), path, "-std="+std, "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic",
		"-fsanitize=address,undefined", "-g", "-o", out, name)
	cmd.Dir = filepath.Join(harness.Root(t), "clients", "c")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	return out
}

// runC returns what a program prints, and its exit code.
func runC(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// TestCClient shows that programs in C and C++ ask through clients/c/kvfs.h, what they get for a refused request, and
// that the header leaves no memory behind.
func TestCClient(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	must(t, "mkdir", os.Mkdir(d.Path("h"), 0o755))
	hashes := make([]string, 200)
	for i := range hashes {
		hashes[i] = hash(i)
		if i < 150 {
			must(t, "store", os.WriteFile(d.Path("g", hashes[i]), []byte("x"), 0o644))
			must(t, "store", os.WriteFile(d.Path("h", hashes[i]), []byte("x"), 0o644))
		}
	}
	_, specs := talk(t, d, "query"), talk(t, d, "specs")
	(&dialogue{t, specs.fd}).specs(`{"set": {"two": {"hash_block_size": 16, "groups": [
		{"name": "g", "kind": "full", "block_size": 16}, {"name": "h", "kind": "full", "block_size": 16, "variant": 1}]}}}`)
	for _, c := range [][2]string{{"gcc", "c99"}, {"g++", "c++11"}} {
		t.Run(c[1], func(t *testing.T) {
			exists := compileC(t, c[0], c[1], "example.c")
			out, code := runC(t, exists, append([]string{d.Dir, "g"}, hashes...)...)
			want := fmt.Sprintf("%s%s hits 150 pending 0 late 0 prefix 150\n", strings.Repeat("m", 150), strings.Repeat(".", 50))
			if out != want || code != 0 {
				t.Errorf("exists: code %d, got %q, want %q", code, out, want)
			}
			if out, code := runC(t, exists, t.TempDir(), "g", "x"); code != 1 || !strings.Contains(out, "No such file or directory") {
				t.Errorf("no mount: code %d, %q", code, out)
			}
			if out, code := runC(t, exists, d.Dir, "g/", "x"); code != 1 || !strings.Contains(out, "g/") {
				t.Errorf("a refused group: code %d, %q", code, out)
			}

			longest := compileC(t, c[0], c[1], "test_kvfs.c")
			load := strings.Repeat("1", 150)
			for _, q := range []struct {
				spec, most, want string
			}{
				{"two", "2", fmt.Sprintf("hit 2400 pending 0 late 0 capped 0 %s %s\n", load, load)},
				{"two", "1", "errno 2: "},
				{"absent", "2", "errno 1: "},
			} {
				out, code := runC(t, longest, append([]string{d.Dir, q.spec, "{group}/{hash}", q.most}, hashes...)...)
				if code != 0 || strings.Count(out, q.want) != 2 {
					t.Errorf("longest hit of %s: code %d, %q, want %q twice", q.spec, code, out, q.want)
				}
			}
		})
	}
}

// TestCBlocks shows that programs in C and C++ write and read blocks: in new directories, whole, and without leaving a
// temporary file behind.
func TestCBlocks(t *testing.T) {
	const size = 3<<20 + 5
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i*7 + i/251)
	}
	for _, c := range [][2]string{{"gcc", "c99"}, {"g++", "c++11"}} {
		t.Run(c[1], func(t *testing.T) {
			d := harness.Mount(t, harness.Options{MemorySize: "32MiB"})
			out, code := runC(t, compileC(t, c[0], c[1], "test_block.c"), d.Dir, "g/deep/er", fmt.Sprint(size), fmt.Sprint(64<<20))
			answers := []string{
				"key ENAMETOOLONG", "key ok", "g/deep/er/9f0800ef", "get ENOENT", "put ok", "put ok", fmt.Sprintf("get ok %d 1", size),
				fmt.Sprintf("get EOVERFLOW %d", size), "put ok", "get ok 0", "put ENOSPC", "put EINVAL",
			}
			if text := strings.Join(answers, "\n") + "\n"; code != 0 || out != text {
				t.Errorf("code %d, got\n%swant\n%s", code, out, text)
			}
			wantBytes(t, d.Path("g/deep/er/9f0800ef"), want)
			left, err := filepath.Glob(d.Path("g/*"))
			if must(t, "glob", err); len(left) != 2 { // deep, empty
				t.Errorf("left: %v", left)
			}
			left, err = filepath.Glob(d.Path("g/deep/er/*"))
			if must(t, "glob", err); len(left) != 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
