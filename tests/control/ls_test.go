package control

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// listed is a line of kvfs ls --json.
type listed struct {
	Path, Mode, State string
	Size              int64
	Tiers             []string
	Pinned            bool
}

// list runs kvfs ls --json, and returns what it says of each path.
func list(t testing.TB, args ...string) (paths []string, of map[string]listed) {
	t.Helper()
	of = map[string]listed{}
	for line := range strings.Lines(kvfs(t, append([]string{"ls", "--json"}, args...)...)) {
		var e listed
		must(t, line, json.Unmarshal([]byte(line), &e))
		paths, of[e.Path] = append(paths, e.Path), e
	}
	return paths, of
}

// TestLs shows that kvfs ls lists names in order, with what is known of each: its mode, size and tiers, and whether it
// is pinned.
func TestLs(t *testing.T) {
	d := diskMount(t, harness.Options{})
	for i, name := range []string{"cold", "hot", "pinned", "odd\n"} {
		put(t, d.Path("g", name), make([]byte, 1000*(i+1)))
		waitOnDisk(t, d.Path("g", name))
	}
	put(t, d.Path("g/sub/block"), []byte("x"))
	must(t, "chmod", os.Chmod(d.Path("g/hot"), 0o640))
	kvfs(t, "pin", d.Path("g/pinned"))
	kvfs(t, "evict", "--tier", "memory", d.Path("g/cold"))

	paths, of := list(t, d.Path("g"))
	if want := []string{"cold", "hot", `odd\n`, "pinned", "sub"}; !slices.Equal(paths, want) {
		t.Errorf("paths %q, want %q", paths, want)
	}
	both := []string{"memory", "disk"}
	for _, want := range []listed{
		{"cold", "-rw-r--r--", "hit", 1000, []string{"disk"}, false},
		{"hot", "-rw-r-----", "hit", 2000, both, false},
		{"pinned", "-rw-r--r--", "hit", 3000, both, true},
		{`odd\n`, "-rw-r--r--", "hit", 4000, both, false},
		{"sub", "drwxr-xr-x", "", 0, []string{}, false},
	} {
		if got := of[want.Path]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if got := tierOf(d.Path("g/cold")); got != "disk" {
		t.Errorf("the list has brought a block to %q", got)
	}
	if paths, _ := list(t, "-R", d.Dir); !slices.Contains(paths, "g/sub/block") || slices.Contains(paths, "g") {
		t.Errorf("-R: %q", paths)
	}
	lines := strings.Split(kvfs(t, "ls", "-l", d.Path("g")), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[1], "-rw-r-----     2.0 KiB  ") || !strings.HasSuffix(lines[1], "  memory,disk  -       hot") ||
		!strings.HasSuffix(lines[3], "  pinned  pinned") || !strings.HasSuffix(lines[4], "  sub/") {
		t.Errorf("ls -l:\n%s", strings.Join(lines, "\n"))
	}
	if got := kvfs(t, "ls", d.Path("g/hot")); got != "hot\n" {
		t.Errorf("ls of a block: %q", got)
	}
	if _, stderr, code := harness.Kvfs(t, "ls", "-l", d.Path("none")); code != 1 || strings.Count(stderr, "\n") != 1 {
		t.Errorf("nothing there: exit code %d, %q", code, stderr)
	}
	if os.Getuid() == 0 {
		out, stderr, code := harness.KvfsAs(t, stranger, "ls", "-l", d.Path("g"))
		if code != 0 || !strings.Contains(out, "memory,disk") {
			t.Errorf("a user who may not ask: exit code %d, %s%s", code, out, stderr)
		}
	}
}
