package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// TestMemoryLimit shows where the limit of a control group is found: of both versions, of those above, in
// containers, and what is none.
func TestMemoryLimit(t *testing.T) {
	const v2, v1 = "memory.max", "memory.limit_in_bytes"
	for _, c := range []struct {
		name, groups string
		files        map[string]string // below /sys/fs/cgroup
		want         scalar.Size
	}{
		{"nothing", "", map[string]string{}, 0},
		{"version 2", "0::/a/b\n", map[string]string{"a/b/" + v2: "1073741824\n"}, scalar.GiB},
		{"version 2, no limit", "0::/a\n", map[string]string{"a/" + v2: "max\n", v2: "max\n"}, 0},
		{"version 2, above", "0::/a/b\n", map[string]string{"a/b/" + v2: "max\n", "a/" + v2: "2147483648\n"}, 2 * scalar.GiB},
		{"version 2, container", "0::/\n", map[string]string{v2: "1073741824\n"}, scalar.GiB},
		{"version 1", "5:cpu:/\n4:memory:/x\n0::/\n", map[string]string{"memory/x/" + v1: "1073741824\n", "memory/" + v1: "9223372036854771712\n"}, scalar.GiB},
		{"version 1, no limit", "4:memory:/\n", map[string]string{"memory/" + v1: "9223372036854771712\n"}, 0},
		{"version 1, container", "4:memory:/docker/abc\n", map[string]string{"memory/" + v1: "1073741824\n"}, scalar.GiB},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			c.files["../../../proc/self/cgroup"] = c.groups
			for name, text := range c.files {
				name = filepath.Join(root, "sys/fs/cgroup", name)
				must(t, os.MkdirAll(filepath.Dir(name), 0o755))
				must(t, os.WriteFile(name, []byte(text), 0o644))
			}
			if got, ok := MemoryLimitBelow(root); ok != (c.want > 0) || ok && got != c.want {
				t.Errorf("got %v, %v, want %v", got, ok, c.want)
			}
		})
	}
}
