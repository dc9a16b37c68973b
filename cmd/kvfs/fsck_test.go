package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk"
)

// TestFsckCodes pins what the codes of a report become.
func TestFsckCodes(t *testing.T) {
	for _, tc := range []struct {
		report disk.Report
		repair bool
		code   int
		says   string
	}{
		{disk.Report{}, false, exit.OK, ""},
		{disk.Report{Notes: 2}, true, exit.OK, ""},
		{disk.Report{Errors: 2, Repaired: 2}, true, fsckRepaired, "fsck: /d was damaged and is repaired"},
		{disk.Report{Errors: 2, Repaired: 1}, true, fsckFindings, "fsck: /d is damaged, and not all of it could be repaired"},
		{disk.Report{Errors: 2}, false, fsckFindings, "fsck: /d is damaged; to drop the bad blocks, run: kvfs fsck --repair"},
	} {
		err := fsckError("/d", tc.report.ExitCode(), tc.repair)
		switch {
		case tc.code == exit.OK && err != nil:
			t.Errorf("%+v: got %v", tc.report, err)
		case tc.code != exit.OK && (exit.Code(err) != tc.code || fmt.Sprint(err) != tc.says):
			t.Errorf("%+v: got %v, code %d, want %q, code %d", tc.report, err, exit.Code(err), tc.says, tc.code)
		}
	}
}

// TestFsckStopped shows what a check says that Ctrl-C ends.
func TestFsckStopped(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ssd")
	tier, err := disk.Open(t.Context(), disk.Options{
		Devices:   []disk.DeviceOptions{{Dir: dir, CapacityBytes: 16 << 20}},
		SlabBytes: 1 << 20, AllowTmpfs: true, DirectIO: directio.Options{Engine: "pread"},
	})
	must(t, err)
	must(t, tier.Close(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = fsck(ctx, new(bytes.Buffer), dir, nil, disk.CheckOptions{Data: true}, false)
	if exit.Code(err) != fsckUnchecked || !strings.Contains(fmt.Sprint(err), "stopped before the end") {
		t.Errorf("got %v, code %d", err, exit.Code(err))
	}
}

// TestFsckBucketArguments shows what is refused before a bucket is asked, and that no secret is printed. tests/object
// checks real buckets.
func TestFsckBucketArguments(t *testing.T) {
	cleanEnv(t)
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{t.TempDir(), "--object", "region=x"}, exit.Usage, "--object needs s3://BUCKET/PREFIX"},
		{[]string{"s3://b/p", "--object", "regoin=x"}, exit.Config, "regoin"},
		{[]string{"s3://b/p", "--object", "region"}, exit.Config, "key=value"},
		{[]string{"s3://b/p", "--object", "url=s3://c/p"}, exit.Config, "url"},
		{[]string{"s3://bucket/p", "--repair", "--object", "read_only=true"}, fsckUnchecked, "read_only excludes a repair"},
		{[]string{"s3://key:secret@b/p"}, exit.Config, "names a user or a key"},
	} {
		code, out, errs := runCLI(append([]string{"fsck"}, tc.args...)...)
		if code != tc.code || out != "" || !strings.Contains(errs, tc.says) || strings.Contains(errs, "secret") {
			t.Errorf("%q: exit code %d, want %d\nstdout %q\nstderr %q, want %q", tc.args, code, tc.code, out, errs, tc.says)
		}
	}
}
