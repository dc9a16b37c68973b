package replay

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// Mount mounts kvfs, with a directory for the files of engines.
//
// If the test is root, engines run as a user of their own, which owns that
// directory and cannot write to the mount point. While no daemon runs, the mount
// point is the directory below, and what an engine stored there would be in the
// way of the next mount.
func Mount(tb testing.TB, opts harness.Options, dir string) *harness.Daemon {
	tb.Helper()
	harness.KvfsOnly(tb, "restarts")
	if opts.Disk != "" {
		// On a slow disk a writer waits rather than take what is not yet copied.
		opts.Flags = append([]string{"--mount-write-timeout", "2m", "--promotion-timeout", "2m"}, opts.Flags...)
	}
	d := harness.Mount(tb, opts)
	err := os.Mkdir(d.Path(dir), 0o755)
	if u := engineUser(); err == nil && u != nil {
		err = os.Chown(d.Path(dir), int(u.UID), int(u.GID))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// engineUser returns whom engines run as; nil is the user of the test.
func engineUser() *harness.User {
	if os.Getuid() != 0 {
		return nil
	}
	return &harness.User{UID: 65534, GID: 65534}
}
