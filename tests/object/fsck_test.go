package object

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestFsck: kvfs fsck finds nothing wrong with the blocks of a mount in a bucket, and what is damaged later is found, and deleted
// on demand.
func TestFsck(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	check := func(code int, says string, flags ...string) {
		t.Helper()
		access := "endpoint=" + s.URL + ",credentials=file,credentials_file=" + s.Credentials
		args := append([]string{"fsck", "s3://" + s3test.Bucket + "/" + prefix, "--object", access}, flags...)
		stdout, stderr, got := harness.Kvfs(t, args...)
		if got != code || !strings.Contains(stdout+stderr, says) || strings.Contains(stdout+stderr, s3test.SecretKey) {
			t.Errorf("kvfs %q: exit code %d, want %d and %q\n%s%s", args, got, code, says, stdout, stderr)
		}
	}
	check(8, "no objects of kvfs there, 0 others")

	first := mount(t, s.URL, "", harness.Options{})
	bs := numbered("group", 20, 100*kib)
	maps.Copy(bs, numbered("large", 1, 5*mib)) // an object of its own
	storeAll(t, first, bs)
	if code := first.Stop(); code != 0 {
		t.Fatalf("exit code: got %d, want 0", code)
	}
	check(0, "no errors")

	names := packs(s)
	if len(names) < 2 {
		t.Fatalf("got packs %q, want some", names)
	}
	s.Put(prefix+"/.probe", nil)
	check(0, "note: .probe: left by a process that was killed")
	check(0, " 0 foreign objects")
	check(0, "was killed (deleted)", "--repair")
	if left := s.Names(prefix); slices.Contains(left, ".probe") {
		t.Errorf("left in the bucket: %q", left)
	}
	damage(s, names[0], func(b []byte) { b[70] ^= 1 }) // in the path of the first block
	check(0, "data not read", "--no-data")
	check(4, names[0]+" block")
	check(4, `"damaged": 1,`, "--json")
	check(1, "1 damaged, all deleted", "--repair")
	check(0, "no errors", "--repair")
}
