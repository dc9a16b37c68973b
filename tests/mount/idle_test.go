package mount

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// processorTime returns what a process has used, in hundredths of a second.
func processorTime(t *testing.T, pid int) (used int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, "read", err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
	for _, field := range fields[12:14] { // utime and stime of proc_pid_stat(5)
		n, err := strconv.Atoi(field)
		must(t, "read", err)
		used += n
	}
	return used
}

// TestIdle shows that a daemon that spun for the next request of one client, and of several, sleeps when none comes.
func TestIdle(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{MemorySize: "128MiB"})
	store(t, d.Path("x"), pattern("x", 64<<10))
	for _, clients := range []int{1, 4} {
		ended := make(chan error)
		for range clients {
			go func() {
				var err error
				for i := 0; i < 1000 && err == nil; i++ {
					_, err = os.ReadFile(d.Path("x"))
				}
				ended <- err
			}()
		}
		for range clients {
			must(t, "read", <-ended)
		}
		pid := d.Status().PID
		before := processorTime(t, pid)
		harness.Poll(t, fmt.Sprintf("all threads sleep after %d clients", clients), func() bool {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
			for _, name := range threads {
				stat, err := os.ReadFile(name)
				_, state, _ := strings.Cut(string(stat), ") ")
				if err == nil && !strings.HasPrefix(state, "S") {
					return false
				}
			}
			return len(threads) > 0
		})
		if used := processorTime(t, pid) - before; used > 100 {
			t.Errorf("after %d clients the daemon uses %d0 ms of a processor before it sleeps", clients, used)
		}
	}
}
