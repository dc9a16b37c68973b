package mount

import (
	"os/exec"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingNonRoot runs TestWritingNonRootInside, where /dev/fuse is open to all users.
func TestWritingNonRoot(t *testing.T) {
	harness.KvfsOnly(t, "rules of writing")
	if _, err := exec.LookPath("fusermount3"); err != nil {
		harness.Skip(t, "fusermount3 is not installed")
	}
	runInside(t, "TestWritingNonRootInside", "with")
}

// TestWritingNonRootInside is each rule with a daemon and processes of another user, without
// passthrough. The storms are not run: their readers may miss for a moment a block that was closed.
func TestWritingNonRootInside(t *testing.T) {
	insideOnly(t)
	for _, kind := range stages {
		if len(kind.opts.Flags) > 0 {
			continue // there is no passthrough either way
		}
		if testing.Short() && kind.opts.Disk == "" {
			continue
		}
		opts := kind.opts
		opts.User = nobody
		t.Run(kind.name, func(t *testing.T) {
			for _, rule := range []struct {
				name string
				acts []act
			}{
				{"in place", inPlaceActs}, {"anew", anewActs}, {"empty", emptyActs}, {"shell", shellActs}, {"plain", plainActs}, {"shared", sharedActs}, {"names", nameActs}, {"sync", syncActs},
			} {
				t.Run(rule.name, func(t *testing.T) { playActs(t, opts, rule.acts) })
			}
		})
	}
}
