package control

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// audits returns the lines of the audit log, without their times and processes. Each must name a process and its
// program, which is one of commands.
func audits(t testing.TB, d *harness.Daemon, commands ...string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(d.Log()) {
		_, rest, ok := strings.Cut(line, "\taudit\t")
		if !ok {
			continue
		}
		what, text, _ := strings.Cut(rest, "\t")
		var f map[string]any
		must(t, "fields of "+line, json.Unmarshal([]byte(text), &f))
		if pid, _ := f["pid"].(float64); pid < 2 || f["uid"] != 0.0 || f["gid"] != 0.0 || !slices.Contains(commands, fmt.Sprint(f["command"])) {
			t.Errorf("%swant a process of root that runs one of %q", line, commands)
		}
		for _, who := range []string{"pid", "uid", "gid", "command"} {
			delete(f, who)
		}
		fields, err := json.Marshal(f)
		must(t, "fields", err)
		lines = append(lines, what+" "+string(fields))
	}
	return lines
}

// TestAudit shows that the log says who has removed, replaced and pinned what, if that is asked for, and what an
// operator has done by a command in any case.
func TestAudit(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "the audit of removals needs a mount by root")
	}
	operator := []string{
		`evict {"all":false,"blocks":1,"bytes":5,"force":false,"paths":["g/b"],"paths_total":1,"tier":"memory"}`,
		`drain {}`,
		`specs {"removed":[],"set":["s"]}`,
	}
	changes := []string{
		`replace {"from":"g/a","path":"g/b"}`,
		`pin {"path":"g/b","pinned":true}`, `pin {"path":"g/b","pinned":false}`,
		`ttl {"path":"g/b","ttl":"1h0m0s"}`,
		`remove {"path":"g/b"}`, `remove {"path":"g"}`,
	}
	for name, c := range map[string]struct {
		flags []string
		want  []string
	}{
		"commands": {nil, operator},
		"changes":  {[]string{"--log-audit-changes"}, append(slices.Clone(changes[:4]), append(operator, changes[4:]...)...)},
	} {
		t.Run(name, func(t *testing.T) {
			d := diskMount(t, harness.Options{Flags: c.flags})
			put(t, d.Path("g/a"), []byte("first"))
			put(t, d.Path("g/b"), []byte("other"))
			run := func(argv ...string) {
				t.Helper()
				out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
				must(t, fmt.Sprintf("%q: %s", argv, out), err)
			}
			run("mv", "-f", d.Path("g/a"), d.Path("g/b"))
			if _, err := os.Stat(d.Path("g/b")); err != nil { // no line: nothing changes
				t.Error(err)
			}
			kvfs(t, "pin", d.Path("g/b"))
			kvfs(t, "unpin", d.Path("g/b"))
			kvfs(t, "ttl", "1h", d.Path("g/b"))
			waitOnDisk(t, d.Path("g/b"))
			kvfs(t, "evict", "--tier", "memory", d.Path("g/b"))
			kvfs(t, "drain", d.Dir)
			spec := filepath.Join(t.TempDir(), "s.json")
			must(t, "spec", os.WriteFile(spec, []byte(`{"hash_block_size": 16, "groups": [{"kind": "full", "block_size": 16}]}`), 0o644))
			kvfs(t, "specs", d.Dir, "set", "s", spec)
			run("rm", d.Path("g/b"))
			run("rmdir", d.Path("g"))
			var got []string
			harness.Poll(t, "the last line", func() bool { // it comes after the answer
				got = audits(t, d, "mv", "rm", "rmdir", "kvfs")
				return len(got) >= len(c.want)
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("the audit log:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
