package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestKilledInNotice shows what becomes of a client when the daemon is killed while it
// tells the kernel of a name that is gone, and the client itself keeps it from doing so:
// by a rename that waits for a copy of its block on another node, which holds the directory. The client gets
// an error, and the daemon ends.
func TestKilledInNotice(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{
		Nodes: 2, Options: harness.Options{MemorySize: "192MiB"}, PeerTimeout: time.Minute,
		Flags: func(node int) []string {
			if node == 0 {
				return nil
			}
			return []string{"--replicas", "1", "--peer-cascade", "sync"}
		},
	})
	a, b := w.Nodes[0], w.Nodes[1]
	large, gone := block("large"), block("gone")
	w.mustWrite(b, gone, mib)
	harness.Poll(t, "the block is known", func() bool { return w.exists(a, gone) && w.exists(b, gone) })
	version := w.begin(large)
	must(t, os.WriteFile(b.Path(large)+".tmp", content(large, version, 32*mib), 0o644))
	w.slow(1, "4mbit") // A minute for the block: its copy is not there while this test runs.
	renamed := make(chan error, 1)
	begin := w.received(0)
	go func() { renamed <- os.Rename(b.Path(large)+".tmp", b.Path(large)) }() // Ends with the daemon.
	harness.Poll(t, "the copy is under way", func() bool { return w.received(0)-begin > 64*kib })
	w.remove(a, gone)
	harness.Poll(t, "the daemon waits for the directory", func() bool { return sleeping(t, b.Pid) })
	must(t, unix.Kill(b.Pid, unix.SIGKILL))
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case err := <-renamed:
		if err == nil {
			t.Error("the rename succeeded")
		}
	case <-limit.C:
		b.Abort()
		t.Fatalf("the client hangs; it ended with %v when the mount was given up", <-renamed)
	}
	<-b.Exited()
	w.fast(1)
	b.Restart()
	w.WaitJoined()
	w.wantEverywhere(large, version)
}

// sleeping reports whether a thread of a process is in a sleep that no signal ends.
func sleeping(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	must(t, err)
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if end := bytes.LastIndexByte(stat, ')'); err == nil && end > 0 && bytes.HasPrefix(stat[end:], []byte(") D ")) {
			return true
		}
	}
	return false
}
