package device

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTopMount: of mounts at one directory the last one is found, also under a name that mount
// tables write with escapes; what is mounted beside it is not.
func TestTopMount(t *testing.T) {
	base := t.TempDir()
	dir, beside := base+"/a b\t\\040\n#", base+"/a"
	for _, d := range []string{dir, beside} {
		must(t, os.Mkdir(d, 0o755))
	}
	check := func(source string) {
		t.Helper()
		m, err := TopMount(dir)
		if err != nil || (m == nil) != (source == "") || m != nil && (m.Source != source || m.Mountpoint != dir) {
			t.Errorf("got %+v, %v, want %q", m, err, source)
		}
	}
	check("")
	for _, source := range []string{"low", "", "top # 1"} {
		if err := unix.Mount(source, dir, "tmpfs", 0, ""); err != nil {
			t.Skipf("no tmpfs: %v", err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	must(t, unix.Mount("beside", beside, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(beside, unix.MNT_DETACH) })
	check("top # 1")
	must(t, unix.Unmount(dir, 0))
	if m, err := TopMount(dir); m == nil || err != nil || m.Source != "" && m.Source != "none" {
		t.Errorf("got %+v, %v", m, err)
	}
}
