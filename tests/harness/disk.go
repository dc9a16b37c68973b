package harness

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Directories of disk tiers. They must be on a file system that reads and writes past the page
// cache. tmpfs only pretends to do that.

// DiskEnv names the environment variable with the parent directory of disk tiers.
const DiskEnv = "KVFS_TEST_DISK"

const varTmp = "/var/tmp" // on a disk where TMPDIR is in memory

// tempParents returns the parents of the directories of test processes: the one for mount points
// and logs, the one for memory tiers, those for disk tiers.
func tempParents() []string {
	parents := []string{os.TempDir(), "/dev/shm", varTmp}
	if dir := os.Getenv(DiskEnv); dir != "" {
		parents = append(parents, dir)
	}
	return parents
}

// diskParent returns the directory for disk tiers: KVFS_TEST_DISK, or the first
// of TMPDIR and /var/tmp that is not in memory.
func diskParent() string {
	if dir := os.Getenv(DiskEnv); dir != "" {
		return dirIn(dir)
	}
	for _, dir := range []string{os.TempDir(), varTmp} {
		if !inMemory(dir) {
			return dirIn(dir)
		}
	}
	return processDir()
}

func inMemory(dir string) bool {
	var vfs unix.Statfs_t
	err := unix.Statfs(dir, &vfs)
	return err != nil || vfs.Type == unix.TMPFS_MAGIC || vfs.Type == unix.RAMFS_MAGIC
}

// NewDiskDir returns a new empty directory for a disk tier, owned by user unless that is nil. It is
// removed when the test ends. The test is skipped if all possible directories are in memory.
func NewDiskDir(tb testing.TB, user *User) string {
	tb.Helper()
	parent := diskParent()
	if inMemory(parent) {
		Skip(tb, "%s is in memory: name a directory on a disk with %s", parent, DiskEnv)
	}
	dir := newDir(tb, parent, "disk")
	if user != nil {
		must(tb, os.Chown(dir, int(user.UID), int(user.GID)))
	}
	return dir
}

// NewDir returns a new empty directory. It is removed when the test ends.
func NewDir(tb testing.TB) string {
	tb.Helper()
	return newDir(tb, processDir(), "dir")
}

// ProcessDir returns a new empty directory that is removed when the test process ends.
func ProcessDir(pattern string) (string, error) { return os.MkdirTemp(processDir(), pattern) }

// MemoryDir is ProcessDir for files of memory tiers: it is on tmpfs where possible.
func MemoryDir(pattern string) (string, error) { return os.MkdirTemp(memoryDir(), pattern) }

// newDir makes a directory in parent. It is removed, with all mounts in it, when the test ends.
func newDir(tb testing.TB, parent, pattern string) string {
	tb.Helper()
	dir, err := os.MkdirTemp(parent, pattern)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	must(tb, err)
	tb.Cleanup(func() { removeTree(dir) })
	return dir
}

// DropMemory removes the files that the memory tier of an ended daemon left, as a restart of the machine does.
func (d *Daemon) DropMemory() {
	d.tb.Helper()
	if d.Running() {
		d.tb.Fatal("DropMemory: the daemon is running")
	}
	// The mount of a dead daemon keeps files of the memory tier open.
	for range MountPoints(d.Dir) {
		unmount(d.Dir)
	}
	removeTree(d.MemoryDir)
	if err := os.Mkdir(d.MemoryDir, 0o755); err != nil {
		d.tb.Fatal(err)
	}
	if u := d.opts.User; u != nil {
		if err := os.Chown(d.MemoryDir, int(u.UID), int(u.GID)); err != nil {
			d.tb.Fatal(err)
		}
	}
}
