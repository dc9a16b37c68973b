package mount

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestBucketFsckAndPrefetch follows the blocks of a mount in a bucket: kvfs fsck finds nothing wrong, a prefetch brings
// blocks that only the bucket has into the memory of a new mount, and what is damaged later is found, and deleted on
// demand.
func TestBucketFsckAndPrefetch(t *testing.T) {
	harness.KvfsOnly(t, "object storage")
	s := s3test.Start(t, s3test.Options{})
	url := "s3://" + s3test.Bucket + "/prod"
	access := "endpoint=" + s.URL + ",credentials=file,credentials_file=" + s.Credentials
	check := func(code int, says string, flags ...string) {
		t.Helper()
		args := append([]string{"fsck", url, "--object", access}, flags...)
		stdout, stderr, got := harness.Kvfs(t, args...)
		if got != code || !strings.Contains(stdout+stderr, says) || strings.Contains(stdout+stderr, s3test.SecretKey) {
			t.Errorf("kvfs %q: exit code %d, want %d and %q\n%s%s", args, got, code, says, stdout, stderr)
		}
	}
	check(8, "no objects of kvfs there, 0 others")

	flags := []string{"--object", "url=" + url + "," + access}
	first := harness.Mount(t, harness.Options{Flags: flags})
	written := sizedBlocks(first.Dir)
	writeAll(t, written)
	if code := first.Stop(); code != 0 {
		t.Fatalf("exit code: got %d, want 0", code)
	}
	check(0, "no errors")

	second := harness.Mount(t, harness.Options{Flags: flags})
	harness.Poll(t, "the bucket is listed", func() bool { return second.Status().Tier(t, "object").State == "online" })
	blocks := map[string][]byte{}
	for p, b := range written {
		blocks[second.Path(strings.TrimPrefix(p, first.Dir))] = b
	}
	stdout, stderr, code := harness.Kvfs(t, append([]string{"prefetch"}, slices.Sorted(maps.Keys(blocks))...)...)
	if code != 0 {
		t.Errorf("prefetch: exit code %d\n%s%s", code, stdout, stderr)
	}
	for p := range blocks {
		wantTier(t, p, "memory,object")
	}
	wantBlocks(t, blocks)

	packs, err := filepath.Glob(filepath.Join(s.Dir, s3test.Bucket, "prod", "*.pack"))
	if err != nil || len(packs) < 2 {
		t.Fatalf("got packs %q, %v, want some", packs, err)
	}
	text, err := os.ReadFile(packs[0])
	must(t, "read", err)
	text[70] ^= 1 // in the path of the first block
	must(t, "damage", os.WriteFile(packs[0], text, 0o600))
	check(0, "data not read", "--no-data")
	check(4, filepath.Base(packs[0])+" block")
	check(4, `"damaged": 1,`, "--json")
	check(1, "1 damaged, all deleted", "--repair")
	check(0, "no errors", "--repair")
}
