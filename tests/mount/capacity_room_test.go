package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestRoomBehind takes up, with a file beside the store, the room that the tmpfs of the memory tier has beyond it, as
// files of a killed daemon do that its clients still have open: stores and loads evict, and none fails.
func TestRoomBehind(t *testing.T) {
	harness.KvfsOnly(t, "capacity rules")
	if os.Getuid() != 0 {
		harness.Skip(t, "needs a tmpfs of its own")
	}
	d := harness.Mount(t, harness.Options{
		MemorySize: "64MiB", Disk: "512MiB", Flags: []string{"--mount-lookup-lease", "0", "--mount-write-timeout", "60s"},
	})
	dir := d.Path("group")
	flood(t, dir, 2*smallMemory)
	var st unix.Statfs_t
	must(t, "statfs", unix.Statfs(d.MemoryDir, &st))
	beside, err := os.Create(filepath.Join(d.MemoryDir, "beside"))
	must(t, "create", err)
	defer beside.Close()
	must(t, "fallocate", unix.Fallocate(int(beside.Fd()), 0, 0, int64(st.Bavail)*st.Bsize))

	flood(t, d.Path("others"), smallMemory) // of a size that is not known yet: the daemon writes them
	flood(t, dir, 2*smallMemory)
	for i := range 2 * smallMemory / blockSize {
		p := fmt.Sprintf("%s/flood%d", dir, i)
		wantBytes(t, p, pattern(p, blockSize)) // most of them from the SSD
	}
	must(t, "free", beside.Truncate(0))
	flood(t, dir, 2*smallMemory)
	if used := d.Status().Tier(t, "memory").UsedBytes; used < smallMemory*3/4 {
		t.Errorf("%d bytes in use, now that there is room for %d again", used, smallMemory)
	}
}
