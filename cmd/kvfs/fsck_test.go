package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestFsckUnchecked shows what is refused: code 8, one line, nothing printed.
func TestFsckUnchecked(t *testing.T) {
	plain := t.TempDir()
	file := writeTemp(t, "file", "x")
	for _, args := range [][]string{{plain}, {"--repair", plain}, {file}, {plain + "/absent"}, {"--json", "--no-data", plain}} {
		code, out, errs := runCLI(append([]string{"fsck"}, args...)...)
		dir := args[len(args)-1]
		if code != fsckUnchecked || out != "" || !strings.HasPrefix(errs, "kvfs: fsck: "+dir+": ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	if entries, err := os.ReadDir(plain); err != nil || len(entries) > 0 {
		t.Errorf("left behind %v, %v", entries, err)
	}
	if _, err := os.Stat(plain + "/absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made the directory: %v", err)
	}
}

// fsckStopped runs a check that Ctrl-C ends at once.
func fsckStopped(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return fsck(ctx, new(bytes.Buffer), dir, disk.CheckOptions{Data: true}, false, checkDir)
}

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

// TestFsckReport shows both forms of a report.
func TestFsckReport(t *testing.T) {
	report := &disk.Report{Dir: "/d", Blocks: 3, Errors: 1, Findings: []disk.Finding{{
		Severity: disk.SeverityError, Path: "/d/slab-00000007", Offset: 4096, Key: "g/a", What: "checksum differs",
	}}}
	var text, document bytes.Buffer
	if err := errors.Join(printReport(&text, report, false), printReport(&document, report, true)); err != nil {
		t.Fatal(err)
	}
	if text.String() != report.String() || !strings.Contains(text.String(), `/d/slab-00000007 at 4096 block "g/a": checksum differs`) {
		t.Errorf("text:\n%s", text.String())
	}
	var again disk.Report
	if err := json.Unmarshal(document.Bytes(), &again); err != nil || again.String() != report.String() {
		t.Errorf("%v, JSON:\n%s", err, document.String())
	}
}

// openDisk opens a small SSD tier in dir.
func openDisk(t *testing.T, dir string) *disk.Tier {
	t.Helper()
	tier, err := disk.Open(t.Context(), disk.Options{
		Devices:   []disk.DeviceOptions{{Dir: dir, CapacityBytes: 16 << 20}},
		SlabBytes: 1 << 20, AllowTmpfs: true, DirectIO: directio.Options{Engine: "pread"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tier
}

// storeOn stores a block.
func storeOn(t *testing.T, tier *disk.Tier, key block.Key, data []byte) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "block")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	done := make(chan *driver.Result, 1)
	tier.Store(&driver.Job{
		ID:     1,
		Blocks: []driver.Transfer{{Key: key, Size: int64(len(data)), File: f, Attrs: driver.Attrs{Seq: 1, Mode: 0o644}}},
		Done:   func(r *driver.Result) { done <- r },
	})
	if r := <-done; r.Outcomes[0].Status != driver.Stored {
		t.Fatalf("store: %+v", r.Outcomes[0])
	}
}

// closeDisk closes a tier.
func closeDisk(t *testing.T, tier *disk.Tier) {
	t.Helper()
	if err := tier.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFsck follows one directory: in use, clean, damaged, repaired.
func TestFsck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ssd")
	data := bytes.Repeat([]byte("the bytes of a block"), 10_000)
	tier := openDisk(t, dir)
	storeOn(t, tier, block.Key{Group: "g", Hash: "a"}, data)
	fails := func(what string, code int, stdout, stderr string, args ...string) {
		t.Helper()
		gotCode, out, errs := runCLI(append(append([]string{"fsck"}, args...), dir)...)
		if gotCode != code || !strings.Contains(out, stdout) || (out == "") != (stdout == "") || !strings.HasPrefix(errs, stderr) || (errs == "") != (stderr == "") {
			t.Errorf("%s: exit code %d, want %d\nstdout %s\nwant   %s\nstderr %s\nwant   %s", what, gotCode, code, out, stdout, errs, stderr)
		}
	}
	fails("in use", fsckUnchecked, "", fmt.Sprintf("kvfs: fsck: %s: directory in use by process %d\n", dir, os.Getpid()))
	closeDisk(t, tier)
	fails("clean", exit.OK, "no errors", "")
	if err := fsckStopped(dir); exit.Code(err) != fsckUnchecked || !strings.Contains(fmt.Sprint(err), "stopped before the end") {
		t.Errorf("Ctrl-C: got %v, code %d", err, exit.Code(err))
	}

	flipByte(t, dir, data)
	fails("damaged, not looked at", exit.OK, "data not read", "", "--no-data")
	fails("damaged", fsckFindings, `block "g/a"`, "kvfs: fsck: "+dir+" is damaged; to drop the bad blocks, run: kvfs fsck --repair\n")
	fails("as JSON", fsckFindings, `"key": "g/a"`, "kvfs: fsck: "+dir+" is damaged", "--json")
	fails("repaired", fsckRepaired, "1 errors, all repaired", "kvfs: fsck: "+dir+" was damaged and is repaired\n", "--repair")
	fails("clean again", exit.OK, "0 blocks", "", "--repair")
}

// flipByte damages the block that consists of data.
func flipByte(t *testing.T, dir string, data []byte) {
	t.Helper()
	slabs, err := filepath.Glob(filepath.Join(dir, "slab-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slabs {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(text, data)
		if at < 0 {
			continue
		}
		text[at+len(data)/2] ^= 1
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("the block is in none of %q", slabs)
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
