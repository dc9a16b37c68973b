package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// TestOpenBeyondMemory opens more than memory holds. The open that does not fit fails, and status and the log say
// why. It works when other files are closed. A file that is larger than memory fails at once.
func TestOpenBeyondMemory(t *testing.T) {
	d := smallMount(t, "1s")
	dir := d.Path("group")
	mkdir(t, dir)
	if r := d.Status().Tier(t, "memory").Reason; r != "" {
		t.Errorf("before: %q", r)
	}
	pins := fillWithPins(t, dir)
	step, err := tryStore(t, dir+"/over", pattern("over", blockSize))
	wantErrno(t, step, err, unix.ENOSPC)
	if r := d.Status().Tier(t, "memory").Reason; !strings.Contains(r, "open") {
		t.Errorf("status says %q", r)
	}
	if !strings.Contains(d.Log(), "memory is full of files that are open") {
		t.Error("the log does not say it")
	}
	for _, f := range pins {
		f.close()
	}
	flood(t, dir, smallMemory)

	w := smallMount(t, "1h")
	f := open(t, w.Path("large"), unix.O_RDWR|unix.O_CREAT, 0o644)
	wantErrno(t, "ftruncate beyond memory", again(func() error { return unix.Ftruncate(f.fd, 2*smallMemory) }), unix.ENOSPC)
	wantErrno(t, "fallocate beyond memory", again(func() error { return unix.Fallocate(f.fd, 0, 0, 2*smallMemory) }), unix.ENOSPC)
}
