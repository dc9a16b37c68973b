package control

import (
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestStoppedDaemon: every command that asks a mount ends with one line that says so where the daemon is
// stopped, as a debugger or an operator does it.
func TestStoppedDaemon(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{})
	busy, err := unix.Open(d.Dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(busy)
	harness.Freeze(t, d.Pid)
	var wg sync.WaitGroup
	for _, args := range [][]string{
		{"status", d.Dir}, {"members", d.Dir}, {"lookup", d.Path("x")}, {"prefetch", d.Path("x")}, {"pin", d.Path("x")},
		{"unpin", d.Path("x")}, {"ttl", "1h", d.Path("x")}, {"evict", "--tier=memory", d.Path("x")},
		{"evict", "--tier=memory", "--all", d.Dir}, {"why", d.Path("x")}, {"events", d.Dir}, {"specs", d.Dir},
		{"ls", "-l", d.Dir}, {"stats", d.Dir}, {"du", d.Dir},
		{"umount", "--timeout=2s", d.Dir}, {"mount", d.Dir}, {"mount", "--takeover", d.Dir},
		{"run", "--ready-timeout=2s", "--mount", d.Dir, "true"},
	} {
		wg.Go(func() { // all at once: each takes the seconds that it waits
			stdout, stderr, code := harness.Kvfs(t, args...)
			lines := 0
			for line := range strings.Lines(stderr) {
				if strings.HasPrefix(line, "kvfs: ") {
					lines++
				}
			}
			if code == 0 || stdout != "" || lines != 1 || !strings.Contains(stderr, "answer") {
				t.Errorf("kvfs %q: exit code %d, stdout %q, stderr %q; want one line that says that the daemon does not answer", args, code, stdout, stderr)
			}
		})
	}
	wg.Wait()
}
