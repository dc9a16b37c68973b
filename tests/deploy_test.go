package tests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestUnits shows that the units let the daemon pin memory for RDMA, open a file a block, and tell that it lives; and
// that no core dump contains the memory tier.
func TestUnits(t *testing.T) {
	for _, name := range []string{"kvfs.service", "kvfs-serve.service"} {
		text, err := os.ReadFile(filepath.Join("../deploy", name))
		must(t, err)
		lines := strings.Split(string(text), "\n")
		for _, want := range []string{"LimitMEMLOCK=infinity", "LimitCORE=0", "LimitNOFILE=1048576", "WatchdogSec=60", "Type=notify"} {
			if !slices.Contains(lines, want) {
				t.Errorf("%s: no line %s", name, want)
			}
		}
		bound := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "CapabilityBoundingSet=") })
		for _, want := range []string{"CAP_SYS_ADMIN", "CAP_IPC_LOCK"} {
			if bound < 0 || !strings.Contains(lines[bound], want) {
				t.Errorf("%s: CapabilityBoundingSet= without %s", name, want)
			}
		}
		if strings.Contains(string(text), ": Requires=") {
			t.Errorf("%s: engines with Requires= are stopped with the cache", name)
		}
	}
}
