package object

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestWarm shows that a new node with an empty memory gets the blocks of a bucket by one command, those that were stored
// last first, also at once after its start, and also from a prefix to which another program has copied the objects.
func TestWarm(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	old, recent := numbered("old", 20, 100*kib), numbered("recent", 20, 100*kib)
	storeAll(t, d, old)
	waitStored(t, d, old)
	storeAll(t, d, recent)
	waitStored(t, d, recent)
	d.Stop()

	warm := func(d *harness.Daemon, code int, says, from string, flags ...string) {
		t.Helper()
		args := []string{"warm", "--from", "s3://" + s3test.Bucket + "/" + from, "--object", "endpoint=" + s.URL + ",credentials=file,credentials_file=" + s.Credentials}
		args = slices.Concat(args, flags, []string{d.Dir})
		stdout, stderr, got := harness.Kvfs(t, args...)
		if got != code || !strings.Contains(stdout+stderr, says) || strings.Contains(stdout+stderr, s3test.SecretKey) {
			t.Errorf("kvfs %q: exit code %d, want %d and %q\n%s%s", args, got, code, says, stdout, stderr)
		}
	}
	inMemory := func(d *harness.Daemon, bs blocks) (n int) {
		for name := range bs {
			if slices.Contains(tiersOf(d, name), "memory") {
				n++
			}
		}
		return n
	}

	part := mount(t, s.URL, "", harness.Options{})
	warm(part, 0, "loaded 20 blocks", prefix, "--size", "2000KiB")
	if n, m := inMemory(part, recent), inMemory(part, old); n != len(recent) || m != 0 {
		t.Errorf("got %d blocks of the recent ones in memory and %d of the old ones, want %d and none", n, m, len(recent))
	}
	warm(part, 0, "loaded 20 blocks", prefix)
	wantBlocks(t, part, old)
	wantBlocks(t, part, recent)
	remove(t, part, "recent/0007")
	delete(recent, "recent/0007")
	warm(part, 0, "in memory before 39", prefix)
	wantAbsent(t, part, "recent/0007")
	warm(part, 1, "has no blocks", "elsewhere")
	part.Stop() // the bucket knows of the removal by then

	s.Copy(prefix, "copy")
	there := harness.Mount(t, harness.Options{Flags: []string{"--object", "url=s3://" + s3test.Bucket + "/copy,refresh=1s,endpoint=" + s.URL}, Env: keys})
	warm(there, 0, `"loaded": 39`, "copy", "--json")
	if n := inMemory(there, old) + inMemory(there, recent); n != 39 {
		t.Errorf("copied objects: got %d blocks in memory, want 39", n)
	}
	wantBlocks(t, there, old)
	wantBlocks(t, there, recent)

	none := harness.Mount(t, harness.Options{})
	warm(none, 1, "no tier on object storage", prefix)
	other := harness.Mount(t, harness.Options{Flags: []string{"--object", "url=s3://" + s3test.Bucket + "/other,endpoint=" + s.URL}, Env: keys})
	warm(other, 1, "has none of these blocks", prefix)
	if _, stderr, code := harness.Kvfs(t, "warm", other.Dir); code != 2 || !strings.Contains(stderr, "--from is missing") {
		t.Errorf("kvfs warm without --from: exit code %d, want 2\n%s", code, stderr)
	}
}
