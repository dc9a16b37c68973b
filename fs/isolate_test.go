package fs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoticesIsolated: one thread has a table of descriptors of its own, in which the mount
// is there once and nothing else of ours is; the others have the mount's other descriptors.
func TestNoticesIsolated(t *testing.T) {
	s, dir := mountHere(t)
	if s.files.splice {
		t.Skip("go-fuse reads the requests")
	}
	c := startClient(t)
	c.do("write", filepath.Join(dir, "group", "block"))
	s.files.kernel.Flush(t.Context())
	tables := map[string]int{} // what a thread has open, and how many threads have that
	tasks, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, task := range tasks {
		fds, err := filepath.Glob("/proc/self/task/" + task.Name() + "/fd/*")
		must(t, err)
		var has []string
		for _, fd := range fds {
			target, err := os.Readlink(fd)
			if err != nil || filepath.Base(fd) == "0" || filepath.Base(fd) == "1" || filepath.Base(fd) == "2" ||
				strings.HasPrefix(target, "anon_inode:[event") {
				continue
			}
			if target == "/dev/fuse" || strings.Contains(target, "memory") {
				has = append(has, target)
			}
		}
		tables[strings.Join(has, " ")]++
	}
	if tables["/dev/fuse"] != 1 {
		t.Errorf("threads by what they have open: %v; want one with /dev/fuse once and no block", tables)
	}
}
