package control

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestProgress shows that commands say on a terminal how far they are, and take that away at the end; where standard
// error is none they say nothing.
func TestProgress(t *testing.T) {
	d, g := gateMount(t, harness.Options{MemorySize: "64MiB"})
	const blocks = 600 // more than recovery reads between two looks
	fill := func() {
		t.Helper()
		g.holdWrites()
		for i := range blocks {
			p := d.Path(fmt.Sprintf("g/%d", i))
			store(t, p, pattern(p, 4*kib))
		}
	}
	for _, args := range [][]string{{"drain", d.Dir}, {"evict", "--tier", "memory", "--all", d.Dir}} {
		must(t, "remove", os.RemoveAll(d.Path("g")))
		fill()
		s := onScreen(t, 24, 200, args...)
		s.until("copying 600 blocks to lower tiers  0 %")
		g.release()
		if code, rest := s.ended(); code != 0 || !strings.Contains(rest, " \r") {
			t.Errorf("%s: exit code %d: %q", args[0], code, rest)
		}
	}
	d.Stop()

	s := onScreen(t, 24, 200, "fsck", d.DiskDir)
	s.until("checking " + d.DiskDir + "  ")
	if code, rest := s.ended(); code != 0 || !strings.Contains(rest, " \r"+d.DiskDir) { // the line is taken away
		t.Errorf("fsck: exit code %d, %q", code, rest)
	}
	if _, stderr, code := harness.Kvfs(t, "fsck", d.DiskDir); code != 0 || stderr != "" {
		t.Errorf("fsck without a terminal: exit code %d, %q", code, stderr)
	}

	s = onScreen(t, 24, 200, "mount", "--memory-dir", d.MemoryDir, "--memory-size", "64MiB", "--disk", "path="+d.DiskDir+",size=512MiB", d.Dir)
	s.until("reading " + d.DiskDir + "  ")
	s.until("mounted")
	kvfs(t, "umount", d.Dir)
	if code, rest := s.ended(); code != 0 {
		t.Errorf("mount: exit code %d, %q", code, rest)
	}
}
