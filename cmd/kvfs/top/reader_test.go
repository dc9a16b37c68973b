package top

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestReader shows that a frame has the changes since the one before, that it does without events and metrics, and not
// without the daemon.
func TestReader(t *testing.T) {
	dir := t.TempDir()
	write := func(name, format string, args ...any) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, ".kvfs", name), fmt.Appendf(nil, format, args...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	denied, asked := errors.New("denied"), 0
	r := &Reader{Dir: dir, Connect: func() (*client.Controls, error) { asked++; return nil, denied }}
	if _, err := r.Next(t.Context()); exit.Code(err) != exit.NotMount {
		t.Errorf("no daemon: got error %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".kvfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	const doc = `{"schema": 2, "pid": 1, "uptime_seconds": %d, "counters": {"stored_blocks": %d}, "events": {"next": %d}}`
	const page = "# TYPE kvfs_fuse_request_duration_seconds histogram\n" +
		"kvfs_fuse_request_duration_seconds_bucket{op=\"OPEN\",le=\"1.024e-06\"} %[1]d\nkvfs_fuse_request_duration_seconds_bucket{op=\"OPEN\",le=\"+Inf\"} %[1]d\n" +
		"kvfs_fuse_request_duration_seconds_sum{op=\"OPEN\"} 1\nkvfs_fuse_request_duration_seconds_count{op=\"OPEN\"} %[1]d\n"
	write("status", doc, 1, 10, 0)
	f, err := r.Next(t.Context())
	if err != nil || f.Rates != nil || len(f.Requests) != 0 || f.EventErr != nil || asked != 0 {
		t.Fatalf("got %+v, %v", f, err)
	}
	write("metrics", page, 5)
	if f, err = r.Next(t.Context()); err != nil || f.Rates == nil || f.Rates.Writes != 0 || len(f.Requests) != 0 {
		t.Errorf("got %+v, %v", f, err)
	}
	write("metrics", page, 8)
	write("status", doc, 2, 30, 7)
	f, err = r.Next(t.Context())
	opens := f.Requests["OPEN"]
	if err != nil || f.Rates.Writes <= 0 || opens.Total() != 3 || !errors.Is(f.EventErr, denied) {
		t.Errorf("got %+v, %v", f, err)
	}
}
