package main

import (
	"errors"
	iofs "io/fs"
	"path/filepath"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/fs/device"
)

// fsType is the type of our mounts in mount tables.
const fsType = "fuse.kvfs"

// isOurs reports whether m is there and of our type.
func isOurs(m *mountinfo.Info) bool { return m != nil && m.FSType == fsType }

// findMount returns the mount at dir, with dir as the mount table has it; nil if there is none. It
// looks into the table before it touches dir, because a dead or stuck mount
// answers nothing.
func findMount(dir string) (m *mountinfo.Info, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if m, err = device.TopMount(abs); m != nil || err != nil {
		return m, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	resolved := filepath.Join(parent, filepath.Base(abs))
	if m, err = device.TopMount(resolved); m != nil || err != nil {
		return m, err
	}
	if resolved, err = filepath.EvalSymlinks(resolved); err != nil {
		if errors.Is(err, iofs.ErrNotExist) {
			err = &iofs.PathError{Op: "stat", Path: dir, Err: iofs.ErrNotExist}
		}
		return nil, err
	}
	return device.TopMount(resolved)
}
