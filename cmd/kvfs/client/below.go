package client

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// belowMount returns the one mount that all names are in, and their paths below it. It does not
// look at files in the mount: a look-up is a lease, and would keep a block from being evicted.
func belowMount(table []*mountinfo.Info, names []string) (mount string, paths []string, err error) {
	dirs := map[string]string{} // by directory, as given
	for _, name := range names {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", nil, err
		}
		dir, base := filepath.Split(abs)
		resolved, known := dirs[dir]
		if !known {
			resolved = resolveOutside(table, dir)
			dirs[dir] = resolved
		}
		m, path, err := mountOf(table, resolveOutside(table, filepath.Join(resolved, base)))
		switch {
		case err != nil:
			return "", nil, fmt.Errorf("%s %w", name, err)
		case mount == "":
			mount = m
		case mount != m:
			return "", nil, fmt.Errorf("%s is in the mount %s, others are in %s", name, m, mount)
		}
		paths = append(paths, path)
	}
	return mount, paths, nil
}

// resolveOutside follows the symbolic links in an absolute path, up to the beginning of a kvfs
// mount. It keeps what it cannot resolve.
func resolveOutside(table []*mountinfo.Info, path string) string {
	done := "/"
	for rest := range strings.SplitSeq(strings.Trim(filepath.Clean(path), "/"), "/") {
		next := filepath.Join(done, rest)
		if _, _, err := mountOf(table, next); err != nil {
			if resolved, err := filepath.EvalSymlinks(next); err == nil {
				next = resolved
			}
		}
		done = next
	}
	return done
}

// mountOf returns the kvfs mount that the absolute path is in, and the path below it, "." for
// the mount itself.
func mountOf(table []*mountinfo.Info, path string) (mount, below string, err error) {
	in := &mountinfo.Info{}
	for _, m := range table {
		inside := m.Mountpoint == path || m.Mountpoint == "/" || strings.HasPrefix(path, m.Mountpoint+"/")
		if inside && len(m.Mountpoint) >= len(in.Mountpoint) { // later ones lie on top
			in = m
		}
	}
	if in.FSType != mounts.Type {
		return "", "", errors.New("is not in a kvfs mount")
	}
	below, err = filepath.Rel(in.Mountpoint, path)
	return in.Mountpoint, below, err
}

// WalkBlocks calls each with the path of every file below a directory. It takes the types from
// the directories, and does not look at the files. It leaves out mounts inside. It reports a
// directory that cannot be read to failed, and goes on.
func (c *Controls) WalkBlocks(dir string, each func(path string) error, failed func(dir string, err error)) error {
	subs, err := c.readBlocks(dir, each, failed)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if slices.ContainsFunc(c.Mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == sub }) {
			continue
		}
		if err := c.WalkBlocks(sub, each, failed); err != nil {
			return err
		}
	}
	return nil
}

// readBlocks is WalkBlocks for one directory. It returns the directories below. Its error is
// that of each.
func (c *Controls) readBlocks(dir string, each func(path string) error, failed func(dir string, err error)) (subs []string, err error) {
	f, err := os.Open(dir)
	if err != nil {
		failed(dir, show.Reason(err))
		return nil, nil
	}
	defer f.Close()
	for {
		entries, readErr := f.ReadDir(4096)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case e.IsDir():
				subs = append(subs, path)
			case e.Type().IsRegular():
				if err := each(path); err != nil {
					return nil, err
				}
			}
		}
		if errors.Is(readErr, io.EOF) {
			return subs, nil
		}
		if readErr != nil {
			failed(dir, show.Reason(readErr))
			return subs, nil
		}
	}
}
