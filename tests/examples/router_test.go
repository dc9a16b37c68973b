package examples

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// zmqPython returns a Python that has pyzmq and msgpack, or skips.
func zmqPython(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} { // Debian's packages are for the first
		if exec.Command(name, "-c", "import zmq, msgpack").Run() == nil {
			return name
		}
	}
	harness.Skip(t, "no Python with pyzmq and msgpack (python3-zmq, python3-msgpack)")
	return ""
}

// publishing mounts a node whose endpoints outlive its daemon. It returns the argument of the router, too.
func publishing(t *testing.T, name string) (*harness.Daemon, string) {
	t.Helper()
	dir := t.TempDir()
	events, replays := "ipc://"+filepath.Join(dir, "events"), "ipc://"+filepath.Join(dir, "replays")
	d := harness.Mount(t, harness.Options{Disk: "64MiB", Flags: []string{"--events-zmq-bind=" + events, "--events-zmq-replay=" + replays}})
	return d, name + "=" + events + "," + replays
}

// router starts docs/examples/router.py and returns its address.
func router(t *testing.T, python string, nodes ...string) string {
	t.Helper()
	script := filepath.Join(harness.Root(t), "docs", "examples", "router.py")
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-B", script, "127.0.0.1:0"}, nodes...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("router: %s", stderr.Bytes())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("router: %v\n%s", err, stderr.Bytes())
	}
	return strings.TrimSpace(line)
}

// answer is what the router says.
type answer struct {
	Node     string `json:"node"`
	Blocks   int    `json:"blocks"`
	InMemory int    `json:"in_memory"`
}

// ask posts a request to the router. got is undefined unless the code is 200.
func ask(t *testing.T, address string, request any) (got answer, code int) {
	t.Helper()
	body, err := json.Marshal(request)
	must(t, err)
	resp, err := http.Post(address, "application/json", bytes.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, &got)
	}
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return got, resp.StatusCode
}

// TestRouter shows that the router of docs/examples names the node with the longest prefix: blocks that were there
// before it came, new ones, removed ones, those that left memory, and those that the next daemon of a node finds (A39).
func TestRouter(t *testing.T) {
	harness.KvfsOnly(t, "events")
	python := zmqPython(t)
	a, nodeA := publishing(t, "a")
	b, nodeB := publishing(t, "b")
	var hashes []string
	for i := range 5 {
		hashes = append(hashes, fmt.Sprintf("%064x", 0xabc0+i))
	}
	write := func(d *harness.Daemon, hashes ...string) {
		t.Helper()
		must(t, os.MkdirAll(d.Path("g0"), 0o755))
		for _, h := range hashes {
			must(t, os.WriteFile(d.Path("g0", h), []byte("the bytes of a block"), 0o644))
		}
	}
	write(a, hashes[:3]...)
	address := router(t, python, nodeA, nodeB)
	says := func(what string, want answer) {
		t.Helper()
		harness.Poll(t, what, func() bool {
			got, code := ask(t, address, hashes)
			return code == http.StatusOK && got == want
		})
	}
	says("a has the first three", answer{"a", 3, 3})
	write(b, hashes...)
	says("b has all five", answer{"b", 5, 5})
	harness.Poll(t, "the SSD of b has them, too", func() bool { return b.Status().Secondary(t, "disk").Blocks == 5 })
	if _, stderr, code := harness.Kvfs(t, "evict", "--tier", "memory", "--all", b.Dir); code != 0 {
		t.Fatalf("kvfs evict: %d, %s", code, stderr)
	}
	says("b has them on its SSD", answer{"b", 5, 0})
	must(t, os.Remove(b.Path("g0", hashes[1])))
	says("b lacks the second", answer{"a", 3, 3})
	a.Kill()
	b.Kill()
	b.DropMemory()
	a.Restart()
	b.Restart()
	write(b, hashes[1])
	says("b has all again, after a restart", answer{"b", 5, 1})
	must(t, os.Remove(b.Path("g0", hashes[0])))
	says("a has the first three, after a restart", answer{"a", 3, 3})
	address = router(t, python, nodeA, nodeB)
	says("a second router asks for the messages that it missed", answer{"a", 3, 3})
	if got, code := ask(t, address, []string{"beef"}); code != http.StatusOK || got != (answer{}) {
		t.Errorf("for a block that nobody has the router answers %d %+v", code, got)
	}
	if _, code := ask(t, address, []string{"no hash"}); code != http.StatusBadRequest {
		t.Errorf("for what is no hash the router answers with code %d", code)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
