package mount

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDescriptors shows what clients get when the daemon may have no more files open: an open for reading is a miss or works,
// one for writing waits, and then fails with ENOSPC. The daemon itself goes on, also its commands.
func TestDescriptors(t *testing.T) {
	harness.KvfsOnly(t, "the limits of a daemon")
	for name, flags := range map[string][]string{"passthrough": nil, "no passthrough": {"--memory-passthrough", "off"}} {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"--mount-write-timeout", "1s"}, flags...)
			d := harness.Mount(t, harness.Options{Flags: flags, Launch: harness.Launch{MaxFiles: 1100}})
			for i := range 10 {
				store(t, d.Path(fmt.Sprint("block", i)), pattern("x", 1000))
			}
			var open []int
			closeAll := func() {
				for _, fd := range open {
					unix.Close(fd)
				}
				open = nil
			}
			defer closeAll()
			var last error
			for i := 0; i < 1500 && last == nil; i++ {
				last = again(func() error {
					fd, err := unix.Open(d.Path(fmt.Sprintf("w%d.tmp", i)), unix.O_WRONLY|unix.O_CREAT, 0o644)
					if err == nil {
						open = append(open, fd)
					}
					return err
				})
			}
			if last != unix.ENOSPC {
				t.Errorf("after %d files: %v, want ENOSPC", len(open), last)
			}
			for i := range 10 {
				switch got, err := os.ReadFile(d.Path(fmt.Sprint("block", i))); {
				case err == nil:
					sameBytes(t, "a block", got, pattern("x", 1000))
				case !os.IsNotExist(err) || name == "passthrough":
					t.Errorf("a block: %v", err)
				}
			}
			d.Status()
			if _, stderr, code := harness.Kvfs(t, "status", d.Dir); code != 0 {
				t.Errorf("kvfs status: exit code %d: %s", code, stderr)
			}
			first := open[0]
			time.AfterFunc(100*time.Millisecond, func() { unix.Close(first) }) // that one waits for it
			open = open[1:]
			must(t, "an open that waits", again(func() error {
				fd, err := unix.Open(d.Path("late.tmp"), unix.O_WRONLY|unix.O_CREAT, 0o644)
				if err == nil {
					open = append(open, fd)
				}
				return err
			}))
			closeAll()
			for i := range 10 {
				wantBytes(t, d.Path(fmt.Sprint("block", i)), pattern("x", 1000))
			}
		})
	}
}
