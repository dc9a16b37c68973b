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
// by a rename of a block that is being fetched, which holds the directory. The client gets
// an error, and the daemon ends.
func TestKilledInNotice(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{
		Nodes: 2, Options: harness.Options{MemorySize: "192MiB"}, PeerTimeout: time.Minute,
	})
	a, b := w.Nodes[0], w.Nodes[1]
	far, near := block("far"), block("near")
	w.mustWrite(a, far, 32*mib)
	w.mustWrite(b, near, mib)
	harness.Poll(t, "the block is known", func() bool { return w.exists(b, far) })
	w.slow(0, "4mbit") // A minute for the block: it does not come while this test runs.
	renamed, evicted := make(chan error, 1), make(chan struct{})
	go func() { renamed <- os.Rename(b.Path(far), b.Path(far+"-new")) }() // Ends with the daemon.
	begin := w.received(1)
	harness.Poll(t, "the fetch is under way", func() bool { return w.received(1)-begin > 64*kib })
	go func() { // Ends with the daemon.
		harness.Kvfs(t, "evict", "--force", "--tier", "memory", b.Path(near))
		close(evicted)
	}()
	harness.Poll(t, "the daemon waits for the directory", func() bool { return sleeping(t, b.Pid) })
	if err := unix.Kill(b.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
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
	<-evicted
	<-b.Exited()
	w.fast(0)
	b.Restart()
	w.WaitJoined()
	w.wantEverywhere(far, w.mustRead(a, far))
}

// sleeping reports whether a thread of a process is in a sleep that no signal ends.
func sleeping(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if end := bytes.LastIndexByte(stat, ')'); err == nil && end > 0 && bytes.HasPrefix(stat[end:], []byte(") D ")) {
			return true
		}
	}
	return false
}
