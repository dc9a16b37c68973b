package control

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestTrace records what is asked of one mount, plays it on another one, and shows that the other is asked the same and
// is empty afterwards.
func TestTrace(t *testing.T) {
	harness.KvfsOnly(t, "an access log")
	if os.Getuid() != 0 {
		harness.Skip(t, "an access log needs a mount by root")
	}
	from, to := harness.Mount(t, harness.Options{}), harness.Mount(t, harness.Options{})
	store(t, from.Path("group/before"), pattern("before", 3000))
	file := filepath.Join(t.TempDir(), "trace.gz")
	p := harness.StartCommand(t, harness.ProcessOptions{}, "sh", "-c", `exec "$0" trace record -o "$1" "$2" 2>&1`, harness.Binary(t), file, from.Dir)
	lines := bufio.NewReader(p.Stdout)
	first, err := lines.ReadString('\n') // the recording has begun
	if err != nil || !strings.HasPrefix(first, "recording ") {
		t.Fatalf("kvfs trace record: %q, %v", first, err)
	}
	wantMiss(t, from.Path("group/none"))
	for _, h := range hashes(5) {
		store(t, from.Path("group", h), pattern(h, 100*kib))
		wantBytes(t, from.Path("group", h), pattern(h, 100*kib))
	}
	wantBytes(t, from.Path("group/before"), pattern("before", 3000))
	must(t, "SIGINT", unix.Kill(p.Pid, unix.SIGINT))
	out, err := lines.ReadString('\n')
	must(t, "kvfs trace record", err)
	if code := p.Wait(); code != 0 || !strings.Contains(out, " operations, 0 lost") {
		t.Fatalf("kvfs trace record: exit code %d, %s%s", code, out, p.Stderr())
	}

	var report struct {
		Hits     float64 `json:"hit_ratio"`
		Recorded float64 `json:"recorded_hit_ratio"`
		Ops      []struct {
			Do     string           `json:"operation"`
			Count  int64            `json:"count"`
			Bytes  int64            `json:"bytes"`
			Errors map[string]int64 `json:"errors"`
		} `json:"operations"`
	}
	must(t, "report", json.Unmarshal([]byte(kvfs(t, "trace", "replay", "--speed", "max", "--fill", "--json", file, to.Dir)), &report))
	if report.Hits != report.Recorded || len(report.Ops) != 3 {
		t.Errorf("hits %v, recorded %v", report.Hits, report.Recorded)
	}
	for _, o := range report.Ops {
		want := map[string][2]int64{"lookup": {1, 0}, "read": {6, 5*100*kib + 3000}, "write": {5, 5 * 100 * kib}}[o.Do]
		if len(o.Errors) > 0 || o.Count != want[0] || o.Bytes != want[1] {
			t.Errorf("%+v, want %v", o, want)
		}
	}
	if names, err := os.ReadDir(to.Dir); err != nil || len(names) > 0 {
		t.Errorf("the other mount has %v, %v afterwards", names, err)
	}
	if _, stderr, code := harness.Kvfs(t, "trace", "record", "-o", from.Path("trace"), from.Dir); code != 3 || !strings.Contains(stderr, "it is in the mount at "+from.Dir) {
		t.Errorf("a trace in the mount itself: exit code %d, %s", code, stderr)
	}
}

// TestTraceNone shows that a mount without an access log is not recorded, in one line, and that no file is left.
func TestTraceNone(t *testing.T) {
	harness.KvfsOnly(t, "an access log")
	d := harness.Mount(t, harness.Options{Flags: []string{"--memory-passthrough", "off"}})
	file := filepath.Join(t.TempDir(), "trace")
	_, stderr, code := harness.Kvfs(t, "trace", "record", "-o", file, d.Dir)
	if code != 1 || !strings.Contains(stderr, "this mount has no access log") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
}
