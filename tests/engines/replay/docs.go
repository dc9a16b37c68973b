package replay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// Page returns the recipe of that name, a page of docs/engines.
func Page(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(tb), "docs", "engines", name))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// Template shows that a template of a recipe fits the files that the replay has left on the mount. With it kvfs
// lookup finds all blocks of a prompt, kvfs prefetch brings them back into memory, and kvfs events shows that for the
// group of the engine. The page must have the template as it is here.
func Template(t *testing.T, d *harness.Daemon, page, template string, prompt []Block) {
	t.Helper()
	if !strings.Contains(Page(t, page), template) {
		t.Errorf("%s lacks the template %s", page, template)
	}
	args := []string{"--mount", d.Dir, "--template", template}
	if strings.Contains(template, "{group}") {
		args = append(args, "--group", "0")
	}
	for _, b := range prompt {
		if b.Group == 0 {
			args = append(args, b.Hash)
		}
	}
	Settle(t, d) // A copy to the SSD is stored, too.
	Evict(t, d)
	since := nextEvent(d)
	for _, c := range []struct{ command, want string }{
		{"lookup", "disk"}, {"prefetch", ""}, {"lookup", "memory"},
	} {
		out, errs, code := harness.Kvfs(t, append([]string{c.command}, args...)...)
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("kvfs %s: exit code %d, want 0 and %q in\n%s%s", c.command, code, c.want, out, errs)
		}
	}
	group, _, _ := strings.Cut(template, "/")
	events := func(count int, flags ...string) string {
		t.Helper()
		args := append([]string{"events", "--json", "--since", fmt.Sprint(since), "--count", fmt.Sprint(count), d.Dir}, flags...)
		out, errs, code := harness.Kvfs(t, args...)
		if code != 0 {
			t.Errorf("kvfs events: exit code %d\n%s", code, errs)
		}
		return out
	}
	// They are brought in any order. Without flags there are as many events as numbers.
	stored := strings.Count(events(nextEvent(d)-since), `"event": "stored"`)
	if out := events(stored, "--group", group, "--event", "stored"); !strings.Contains(out, prompt[0].Hash) {
		t.Errorf("kvfs events: want %s in\n%s", prompt[0].Hash, out)
	}
}

// nextEvent returns the number that the next event of a daemon will have.
func nextEvent(d *harness.Daemon) int {
	events, _ := d.Status().Raw["events"].(map[string]any)
	next, _ := events["next"].(float64)
	return int(next)
}
