package mount

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// posixExceptions are the tests of go-fuse's suite that need what a mount may
// refuse, cleanly, because no client uses it: contract 3.1 and 3.2, P2. Each is
// skipped only where the mount does refuse.
//
// Two are never run: FcntlFlockLocksFile wants POSIX locks of one process to
// conflict, which they do on no Linux file system; FstatDeleted wants the access
// time unmoved by open, which contract 3.3 wants moved.
var posixExceptions = map[string]struct {
	needs func(dir string) error
	why   string
}{
	"Link":             {tryLink, "hard links"},
	"LinkUnlinkRename": {tryLink, "hard links"},
	"SetattrSymlink":   {trySymlink, "symbolic links"},
	"SymlinkReadlink":  {trySymlink, "symbolic links"},
	"OpenSymlinkRace":  {trySymlink, "symbolic links"},
	"XAttr":            {tryXattr, "user attributes beside user.kvfs"},
	"XAttrLarge":       {tryXattr, "user attributes beside user.kvfs"},

	"FcntlFlockLocksFile": {never, "lock conflicts within one process"},
	"FstatDeleted":        {never, "an access time that open leaves alone"},
}

func never(string) error { return unix.ENOTSUP }

func tryLink(dir string) error {
	if err := os.WriteFile(dir+"/probe", nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(dir + "/probe")
	defer os.Remove(dir + "/probe-link")
	return unix.Link(dir+"/probe", dir+"/probe-link")
}

func trySymlink(dir string) error {
	defer os.Remove(dir + "/probe-link")
	return unix.Symlink("probe", dir+"/probe-link")
}

func tryXattr(dir string) error {
	if err := os.WriteFile(dir+"/probe", nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(dir + "/probe")
	return unix.Setxattr(dir+"/probe", "user.probe", []byte("x"), 0)
}

// TestPosix runs the conformance tests of go-fuse, each in a directory of its
// own.
func TestPosix(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "512MiB"})
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			dir := d.Path(name)
			mkdir(t, dir)
			if ex, ok := posixExceptions[name]; ok {
				if err := ex.needs(dir); err != nil {
					wantErrno(t, ex.why, err, unix.EPERM, unix.ENOTSUP, unix.ENOSYS)
					harness.Skip(t, "the mount refuses %s", ex.why)
				}
			}
			posixtest.All[name](t, dir)
		})
	}
}
