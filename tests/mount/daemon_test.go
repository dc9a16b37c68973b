package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// field follows path into doc; of a list it takes the first.
func field(doc any, path []string) any {
	for _, key := range path {
		if list, ok := doc.([]any); ok && len(list) > 0 {
			doc = list[0]
		}
		m, _ := doc.(map[string]any)
		doc = m[key]
	}
	return doc
}

// TestRefused: a mount that cannot be right fails with one line and a code for the kind of failure, also in the background, and
// nothing is mounted.
func TestRefused(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	dir, ssd := t.TempDir(), harness.NewDiskDir(t, nil)
	file, full, good := filepath.Join(dir, "file"), filepath.Join(dir, "full"), filepath.Join(dir, "good")
	must(t, "file", os.WriteFile(file, []byte("x"), 0o644))
	must(t, "mkdir", os.MkdirAll(full+"/something", 0o755))
	must(t, "mkdir", os.Mkdir(good, 0o755))
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--sise", good}, 2, "unknown flag"},
		{[]string{"--memory-size=1KiB", good}, 3, "want at least 1MiB"},
		{[]string{"--memory-size=12", "-d", good}, 3, "needs a unit"},
		{[]string{"--memory-dir", file, good}, 1, file},
		{[]string{"--memory-numa=bind:1023", good}, 3, "bind:1023"},
		{[]string{"--disk=path=" + full + ",size=64MiB", good}, 1, "choose an empty directory"},
		{[]string{"--disk=path=" + ssd + ",size=64MiB", ssd}, 3, "in the directory of the SSD tier"},
		{[]string{file}, 4, file},
		{[]string{full}, 4, "not empty"},
		{[]string{"-d", dir + "/none/mnt"}, 4, dir + "/none"},
	} {
		args := append([]string{"mount", "--memory-dir", dir + "/memory", "--memory-size=64MiB"}, c.args...)
		stdout, stderr, code := harness.Kvfs(t, args...)
		if code != c.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.text) {
			t.Errorf("kvfs %q: exit code %d, %q, %q; want %d and one line with %q", c.args, code, stdout, stderr, c.code, c.text)
		}
	}
	if got := append(harness.MountPoints(dir), harness.MountPoints(ssd)...); len(got) != 0 {
		t.Errorf("left mounted: %q", got)
	}
}
