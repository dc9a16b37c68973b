package object

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestShare shows that two daemons that know nothing of each other find what the other one stored in their bucket, hear of
// its removals, and that a third one gets the later of two versions (G6).
func TestShare(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	a, b := mount(t, s.URL, "", harness.Options{}), mount(t, s.URL, "", harness.Options{})
	ofA, ofB := numbered("a", 20, 30_000), numbered("b", 2, 5*mib)
	storeAll(t, a, ofA)
	storeAll(t, b, ofB)
	waitFound(t, b, ofA)
	waitFound(t, a, ofB)
	wantBlocks(t, a, ofB)

	if _, err := os.Stat(b.Path("a/0003")); err != nil { // b knows it by name now
		t.Errorf("stat: %v", err)
	}
	remove(t, a, "a/0003")
	wantAbsent(t, a, "a/0003")
	harness.Poll(t, "the removal reaches the other daemon", func() bool { return b.Status().Secondary(t, "object").Blocks == 21 })
	harness.Poll(t, "a removed block that was looked up is gone", func() bool {
		_, err := os.Stat(b.Path("a/0003"))
		return errors.Is(err, unix.ENOENT)
	})
	wantAbsent(t, b, "a/0003")
	delete(ofA, "a/0003")
	wantBlocks(t, b, ofA)

	// A version after the one that the other daemon has in memory.
	remove(t, b, "b/0001")
	ofB["b/0001"] = pattern("another version", 6*mib)
	store(t, b.Path("b/0001"), ofB["b/0001"])
	waitStored(t, b, ofB)
	c := mount(t, s.URL, "", harness.Options{})
	waitListed(t, c)
	wantBlocks(t, c, ofA)
	wantBlocks(t, c, ofB)
}
