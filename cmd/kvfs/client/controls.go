// Package client is how commands ask the daemons of mounts: they find the mount of the names of
// a command line (Controls, Naming), and read its control files or hold a dialogue with one of
// them (Read, Dialogue). Errors carry an exit code if it is not exit.Runtime.
package client

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of what commands read and ask.
const (
	requestBytes = 8 << 20    // of the names in one request, as JSON: half of what the daemon takes
	maxNames     = 20_000_000 // in one command line, with its standard input
	maxAnswer    = 256 << 20  // bytes of one line of an answer
	maxDocument  = 16 << 20   // bytes of a file that becomes part of a request
)

// RequestNames is the largest number of names in one request.
const RequestNames = 100_000

// Controls finds the mounts and reaches their daemons.
type Controls struct {
	Mounts   []*mountinfo.Info
	Open     func(path string) (io.ReadWriteCloser, error) // a control file, for reading and writing
	Setxattr func(path, attr, value string) error
	answers  func(mount string) error // nil: not asked
}

// Connector makes the controls for one run of a command.
type Connector func() (*Controls, error)

// System returns the controls of the mounts of this system.
func System() (*Controls, error) {
	table, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return &Controls{Mounts: table, Open: openControl, Setxattr: setxattr, answers: mounts.Answers}, nil
}

// openControl opens a control file. Its descriptor can be closed without waiting while a read waits for
// the daemon, unlike that of os.Open: the kernel closes it when the read ends, or with the process.
func openControl(path string) (io.ReadWriteCloser, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		default:
			return os.NewFile(uintptr(fd), path), nil
		}
	}
}

// setxattr sets an extended attribute of a file. It does not follow a link.
func setxattr(path, attr, value string) error {
	for {
		if err := unix.Lsetxattr(path, attr, []byte(value), 0); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Locate returns the one mount that all names are in, and their paths below it. It fails if the
// daemon does not answer.
func (c *Controls) Locate(names []string) (mount string, paths []string, err error) {
	mount, paths, err = belowMount(c.Mounts, names)
	if err == nil && c.answers != nil {
		if err := c.answers(mount); err != nil {
			return "", nil, Explain(mount, err)
		}
	}
	return mount, paths, exit.With(exit.NotMount, err)
}

// Root returns the mount at dir, with the path in the mount table.
func (c *Controls) Root(dir string) (string, error) {
	mount, paths, err := c.Locate([]string{dir})
	if err == nil && paths[0] != "." {
		err = exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: it is a directory in the mount %s", dir, mount))
	}
	return mount, err
}

// Dial opens a control file of the daemon of a mount.
func (c *Controls) Dial(mount, name string) (*Dialogue, error) {
	file, err := c.Open(filepath.Join(mount, block.Reserved, name))
	switch {
	case err == nil:
		return &Dialogue{mount, file}, nil
	case errors.Is(err, iofs.ErrPermission):
		return nil, fmt.Errorf("%w: only root, the user of the daemon, and for some files the users of control.users and control.group may ask it", err)
	case errors.Is(err, iofs.ErrNotExist):
		if _, other := os.Lstat(filepath.Join(mount, block.Reserved, "status")); other == nil {
			return nil, fmt.Errorf("the daemon of %s has no %s: it runs an older version", mount, filepath.Join(block.Reserved, name))
		}
	}
	return nil, Explain(mount, err)
}
