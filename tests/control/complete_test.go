package control

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestComplete shows what a shell is offered for flags and arguments, of a mount that is there.
func TestComplete(t *testing.T) {
	d := diskMount(t, harness.Options{Config: "groups: {llama: {quota: 8MiB}}"})
	for _, dir := range []string{"gemma", "odd\\name"} {
		must(t, "mkdir", os.Mkdir(d.Path(dir), 0o755))
		store(t, d.Path(dir, "a"), pattern("a", 4*kib))
	}
	kvfs(t, "quota", "set", "--user", "4711", "8MiB", d.Dir)
	kvfs(t, "quota", "set", "--cgroup", "/a/b", "8MiB", d.Dir)
	for _, row := range []struct {
		args string // DIR is the mount
		want string
	}{
		{"events DIR --group ", "gemma llama"},
		{"lookup --mount DIR --group ", "gemma llama"},
		{"prefetch --mount DIR hash --group ", "gemma llama"},
		{"quota set DIR --group ", "gemma llama"},
		{"quota clear DIR --user ", "4711"},
		{"quota clear DIR --cgroup ", "/a/b"},
		{"events DIR --event ", "evicted removed renamed stored"},
		{"evict DIR/gemma --tier ", "disk memory"},
		{"mount --disk-cascade ", "async off on_evict sync"},
		{"config check --memory-policy ", "arc lru mq s3fifo"},
	} {
		args := strings.Split(strings.ReplaceAll(row.args, "DIR", d.Dir), " ")
		got := offered(t, args...)
		if want := strings.Fields(row.want); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", row.args, got, want)
		}
	}
	for _, args := range [][]string{{"umount", ""}, {"du", ""}, {"lookup", "--mount", ""}} { // there may be mounts of other tests
		if got := offered(t, args...); !slices.Contains(got, d.Dir) {
			t.Errorf("%q: %q", args, got)
		}
	}
	if got := offered(t, "events", "/proc", "--event", "", "--group", ""); len(got) > 0 && slices.Contains(got, "/proc") {
		t.Errorf("outside of mounts: %q", got)
	}
}

// offered returns what the shell is offered for a command line, sorted.
func offered(t *testing.T, args ...string) []string {
	t.Helper()
	out := kvfs(t, append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, ":") {
		t.Errorf("%q: no directive in %s", args, out)
	}
	return slices.Sorted(slices.Values(lines[:len(lines)-1]))
}
