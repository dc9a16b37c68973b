package mount

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// wantInLog fails unless the text has all of want in it.
func wantInLog(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("the log has no %q:\n%s", w, text)
		}
	}
}

// shmDir returns a directory on tmpfs.
func shmDir(t *testing.T) string {
	t.Helper()
	dir, err := harness.MemoryDir("disk")
	if err != nil || harness.FSType("/dev/shm") != "tmpfs" {
		os.Remove(dir)
		harness.Skip(t, "/dev/shm is no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// engineOf returns the I/O engine of the disk tier, as the status has it.
func engineOf(t *testing.T, d *harness.Daemon) string {
	t.Helper()
	text, err := json.Marshal(d.Status().Raw["secondaries"])
	must(t, "marshal", err)
	for _, name := range []string{"io_uring", "pread"} {
		if strings.Contains(string(text), `"`+name+`"`) {
			return name
		}
	}
	return "unknown: " + string(text)
}

// TestDiskEngines shows the choice of the I/O engine: io_uring where the kernel
// allows it, pread where it does not or is asked for; an explicit io_uring that
// is refused ends the daemon. The sysctl that forbids io_uring is the whole machine's: what it
// does is tested in directio, with a file in its place.
func TestDiskEngines(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	needRoot(t)
	t.Run("pread", func(t *testing.T) {
		d := diskMount(t, harness.Options{Flags: []string{"--directio-engine", "pread"}})
		engineWorks(t, d, "pread")
	})
	t.Run("auto under seccomp", func(t *testing.T) {
		d := diskMount(t, harness.Options{Launch: harness.Launch{NoIOUring: true}})
		engineWorks(t, d, "pread")
	})
	t.Run("io_uring under seccomp", func(t *testing.T) {
		d := diskMount(t, harness.Options{
			Launch: harness.Launch{NoIOUring: true}, Flags: []string{"--directio-engine", "io_uring"}, ExpectFail: true,
		})
		wantNoRing(t, d)
	})
	t.Run("io_uring", func(t *testing.T) {
		if !ringsAllowed() {
			harness.Skip(t, "no io_uring here")
		}
		d := diskMount(t, harness.Options{Flags: []string{"--directio-engine", "io_uring"}})
		engineWorks(t, d, "io_uring")
	})
	t.Run("auto", func(t *testing.T) {
		if !ringsAllowed() {
			harness.Skip(t, "no io_uring here")
		}
		engineWorks(t, diskMount(t, harness.Options{}), "io_uring")
	})
}

func engineWorks(t *testing.T, d *harness.Daemon, want string) {
	t.Helper()
	if got := engineOf(t, d); got != want {
		t.Errorf("engine: got %s, want %s", got, want)
	}
	blocks := sizedBlocks(d.Dir)
	cold(t, d, blocks)
	wantBlocks(t, blocks)
	crashAll(d)
	wantBlocks(t, blocks)
}

func wantNoRing(t *testing.T, d *harness.Daemon) {
	t.Helper()
	if d.ExitCode <= 0 {
		t.Errorf("exit code %d", d.ExitCode)
	}
	wantInLog(t, d.Log(), "io_uring")
	wantUnmounted(t, d)
}

// ringsAllowed reports whether this process may set up a ring. The call has no
// parameters, so that the answer is EFAULT where it is allowed.
func ringsAllowed() bool {
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	return errno == unix.EFAULT
}
