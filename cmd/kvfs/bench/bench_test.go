package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// machine returns the options of a run in directories of the test, and the status of a mount with so much memory.
func machine(t *testing.T, memory, pinned int64) (Options, string, *status.Document) {
	o := Options{Tmpfs: t.TempDir(), Disk: t.TempDir(), Duration: time.Second}
	return o, t.TempDir(), &status.Document{Tiers: []status.Tier{{CapacityBytes: memory, PinnedBytes: pinned}}}
}

// wantEmpty fails the test if a run has left something.
func wantEmpty(t *testing.T, mount string, o Options) {
	t.Helper()
	for _, dir := range []string{mount, o.Tmpfs, o.Disk} {
		if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
			t.Errorf("%s has %v, %v", dir, names, err)
		}
	}
}

// TestRun shows that each operation is measured in each place, that no more is written than was said, and that nothing
// is left.
func TestRun(t *testing.T) {
	o, mount, doc := machine(t, 128<<20, 0)
	b, err := New(o, mount, doc)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.Note(), "at most 16.0 MiB of blocks in each") {
		t.Errorf("the note: %s", b.Note())
	}
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, mount, o)
	if len(r.Rows) != 14 || r.Bytes != 16<<20 {
		t.Errorf("%d rows with %d bytes", len(r.Rows), r.Bytes)
	}
	for _, row := range r.Rows {
		for _, target := range []string{"kvfs", "tmpfs", "disk"} {
			if row.Figures[target] <= 0 || row.Ratio <= 0 {
				t.Errorf("%+v has no figure of %s", row, target)
			}
		}
	}
	var text strings.Builder
	if err := r.Print(&text); err != nil || strings.Count(text.String(), "\n") != 15 {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestInterrupted shows that a run ends when it is told to, and that Close then removes what it has made.
func TestInterrupted(t *testing.T) {
	o, mount, doc := machine(t, 128<<20, 0)
	o.Duration = time.Hour
	b, err := New(o, mount, doc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	operations = append([]operation{}, operations...)
	defer func(do func(*blocks, int, []byte) error) { operations[1].do = do }(operations[1].do)
	operations[1].do = func(*blocks, int, []byte) error { cancel(); return nil } // the first read
	if r, err := b.Run(ctx); err == nil {
		t.Errorf("an interrupted run has a report: %+v", r)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, mount, o)
}

// TestNoRoom shows that a run is refused before it writes anything, and that a missing disk is only left out.
func TestNoRoom(t *testing.T) {
	for _, c := range []struct {
		memory, pinned int64
		tmpfs, want    string
	}{
		{100 << 20, 0, "", "too little room: 12.5 MiB where 16.0 MiB are needed"},
		{1 << 30, 1<<30 - 1<<20, "", "too little room: 1.0 MiB where 16.0 MiB"},
		{1 << 30, 0, "/nonexistent", "no such file"},
	} {
		o, mount, doc := machine(t, c.memory, c.pinned)
		if c.tmpfs != "" {
			o.Tmpfs = c.tmpfs
		}
		if _, err := New(o, mount, doc); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	o, mount, doc := machine(t, 1<<30, 0)
	o.Disk = "/nonexistent"
	b, err := New(o, mount, doc)
	if err != nil || !strings.Contains(b.Note(), "\nno disk: ") || len(b.targets) != 2 {
		t.Errorf("%v, %s", err, b.Note())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestWrongBytes shows that a block with the bytes of another is an error, not a figure.
func TestWrongBytes(t *testing.T) {
	b := &blocks{dir: filepath.Join(t.TempDir(), "b"), size: 4096, count: 3}
	if err := b.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(b.name(0), b.name(1)); err != nil {
		t.Fatal(err)
	}
	if err := b.read(1, b.buffers[0]); err == nil || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("block 0 in the place of 1: %v", err)
	}
	if err := b.exists(0, nil); err == nil {
		t.Error("block 0 is still there")
	}
}
