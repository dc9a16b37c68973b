package takeover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// watcher returns the process of the daemon's child, or "".
func (d *daemon) watcher() string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.pid)) // the pattern is right
	for _, name := range files {
		if text, _ := os.ReadFile(name); len(text) > 0 {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

// TestWatcherHolds shows that the watcher of a mount has no descriptor of its connection, which would not end with the daemon
// then.
func TestWatcherHolds(t *testing.T) {
	for _, passthrough := range []string{"auto", "off"} {
		t.Run(passthrough, func(t *testing.T) {
			watcher := newSite(t, "--memory-passthrough", passthrough).mount().watcher()
			files, err := filepath.Glob("/proc/" + watcher + "/fd/*")
			must(t, err)
			if watcher == "" || len(files) < 6 {
				t.Fatalf("the watcher, %q, has %d descriptors", watcher, len(files))
			}
			for _, name := range files {
				if target, _ := os.Readlink(name); target == "/dev/fuse" {
					t.Errorf("%s is %s", name, target)
				}
			}
		})
	}
}

// TestKilled kills the old daemon, the new one or both at every stage of a takeover. If the remaining daemon has the
// mount, its clients go on. If none has it, they get an error. No client waits for ever, though a process has the
// connection open.
func TestKilled(t *testing.T) {
	for _, stage := range []struct {
		name string
		is   func(old, heir *daemon) bool
	}{
		{"watched", func(_, heir *daemon) bool { return heir.watcher() != "" }},
		{"asked", func(old, _ *daemon) bool { return strings.Contains(old.text(), "handing the mount over") }},
		{"adopted", func(_, heir *daemon) bool { return strings.Contains(heir.text(), "memory of an earlier process") }},
		{"answered", func(_, heir *daemon) bool { return strings.Contains(heir.text(), `"mounted"`) || len(heir.ready) > 0 }},
		{"ready", func(_, heir *daemon) bool { return len(heir.ready) > 0 }},
	} {
		for _, killed := range []string{"old", "new", "old and new", "new and old"} {
			t.Run(stage.name+", "+killed, func(t *testing.T) {
				s := newSite(t)
				s.mount()
				old := s.takeover()
				harness.HoldConnection(t, old.pid)
				l := begin(s)
				l.goesOn()
				heir := s.begin(nil, "--takeover")
				deadline := time.Now().Add(harness.Deadline)
				for !stage.is(old, heir) && time.Now().Before(deadline) {
					// There is no event: it is to be met at this stage.
				}
				for name := range strings.SplitSeq(killed, " and ") {
					unix.Kill(map[string]*daemon{"old": old, "new": heir}[name].pid, unix.SIGKILL)
				}
				l.goesOn()
				if len(l.failed) == 0 {
					l.end()
					return
				}
				l.finish()
				for d, said := range map[*daemon]string{old: "another process has the mount", heir: "kvfs: takeover of"} {
					if d.end(); d.code != -1 && !strings.Contains(d.text(), said) {
						t.Errorf("process %d had the mount, and the clients got: %v", d.pid, <-l.failed)
					}
				}
			})
		}
	}
}

// TestUnmountedMeanwhile: where the mount is detached between the two daemons, both end, and no client waits.
func TestUnmountedMeanwhile(t *testing.T) {
	s := newSite(t)
	s.mount()
	l := begin(s)
	l.goesOn()
	old, heir := halfway(s)
	// Not by kvfs umount: a child of this process would have to close the clients' files first.
	must(t, unix.Unmount(s.dir, unix.MNT_DETACH))
	unix.Kill(heir.pid, unix.SIGCONT)
	l.finish() // some with an error: nothing beneath the mount has blocks
	old.end()
	heir.end()
	if left := append(harness.MountPoints(s.dir), harness.MountPoints(s.memory)...); len(left) > 0 {
		t.Errorf("still mounted: %q", left)
	}
}
