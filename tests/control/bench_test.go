package control

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestBench shows that kvfs bench measures a mount, keeps the blocks of others, and leaves nothing, also if it is
// interrupted.
func TestBench(t *testing.T) {
	d := diskMount(t, harness.Options{})
	shm := t.TempDir() // that it is tmpfs does not matter here
	store(t, d.Path("mine/block"), pattern("mine", 100*kib))
	var report struct {
		Rows []struct {
			Figures map[string]float64 `json:"figures"`
		} `json:"rows"`
	}
	before, asks := d.Status().Reads, sampledAsks(t, d)
	out := kvfs(t, "bench", "--duration", "1s", "--tmpfs", shm, "--disk", t.TempDir(), "--json", d.Dir)
	must(t, "report", json.Unmarshal([]byte(out), &report))
	for _, row := range report.Rows {
		if row.Figures["kvfs"] <= 0 || row.Figures["tmpfs"] <= 0 || row.Figures["disk"] <= 0 {
			t.Errorf("figures %v", row.Figures)
		}
	}
	if now := d.Status().Reads; now.Served != before.Served || now.Misses != before.Misses || sampledAsks(t, d) != asks {
		t.Errorf("the bench counts as use of blocks: reads %+v, before %+v; asks %q, before %q", now, before, sampledAsks(t, d), asks)
	}
	if len(report.Rows) == 0 {
		t.Error("no figures")
	}
	left := func(when string) {
		t.Helper()
		for dir, want := range map[string]string{d.Dir: "mine", shm: ""} {
			names, err := os.ReadDir(dir)
			must(t, "list", err)
			if len(names) > 1 || len(names) == 1 && names[0].Name() != want {
				t.Errorf("%s %s has %v", when, dir, names)
			}
		}
		wantBytes(t, d.Path("mine/block"), pattern("mine", 100*kib))
	}
	left("after the end")

	p := harness.StartCommand(t, harness.ProcessOptions{}, "sh", "-c", `exec "$0" bench --duration 1h --tmpfs "$1" "$2" 2>&1`, harness.Binary(t), shm, d.Dir)
	note, err := bufio.NewReader(p.Stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(note, "measuring ") {
		t.Fatalf("kvfs bench: %q, %v", note, err)
	}
	must(t, "SIGINT", unix.Kill(p.Pid, unix.SIGINT))
	if code := p.Wait(); code != 1 {
		t.Errorf("an interrupted bench ends with %d", code)
	}
	left("after SIGINT")
	if _, stderr, code := harness.Kvfs(t, "bench", "--tmpfs", "/proc", d.Dir); code != 1 || !strings.Contains(stderr, "too little room") {
		t.Errorf("no room: exit code %d, %s", code, stderr)
	}
}

// sampledAsks returns the asks from which kvfs estimates what other sizes would bring.
func sampledAsks(t *testing.T, d *harness.Daemon) string {
	t.Helper()
	text, err := os.ReadFile(d.Path(".kvfs", "metrics"))
	must(t, "metrics", err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "kvfs_reuse_sampled_asks_total") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
