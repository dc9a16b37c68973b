package main

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountInfoFile lists the mounts of our mount namespace.
const mountInfoFile = "/proc/self/mountinfo"

// fsType is the type of our mounts in mount tables.
const fsType = "fuse.kvfs"

// mountInfo is one mount.
type mountInfo struct {
	id     int    // unique among present mounts
	device string // of its files, major:minor
	point  string // absolute, as our root sees it
	fsType string
}

// readMounts parses the mount table. Source: proc_pid_mountinfo(5).
func readMounts(r io.Reader) ([]mountInfo, error) {
	var mounts []mountInfo
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// id parent major:minor root point options [optional...] - type source super-options
		head, tail, ok := strings.Cut(lines.Text(), " - ")
		fields, rest := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 6 || len(rest) < 1 {
			continue
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		mounts = append(mounts, mountInfo{id: id, device: fields[2], point: unescapeMount(fields[4]), fsType: rest[0]})
	}
	return mounts, lines.Err()
}

// unescapeMount decodes the octal escapes \040, \011, \012 and \134.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountAt returns the topmost mount at dir, which must be a clean absolute path.
func mountAt(dir string) (m mountInfo, found bool, err error) {
	f, err := os.Open(mountInfoFile)
	if err != nil {
		return mountInfo{}, false, err
	}
	defer f.Close()
	mounts, err := readMounts(f)
	for _, candidate := range mounts {
		if candidate.point == dir {
			m, found = candidate, true // later ones lie on top
		}
	}
	return m, found, err
}

// findMount returns the mount at dir, with dir as the mount table has it. It
// looks into the table before it touches dir, because a dead or stuck mount
// answers nothing.
func findMount(dir string) (m mountInfo, found bool, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return mountInfo{}, false, err
	}
	if m, found, err = mountAt(abs); found || err != nil {
		return m, found, err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return mountInfo{}, false, err
	}
	resolved := filepath.Join(parent, filepath.Base(abs))
	if m, found, err = mountAt(resolved); found || err != nil {
		return m, found, err
	}
	if resolved, err = filepath.EvalSymlinks(resolved); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = &fs.PathError{Op: "stat", Path: dir, Err: fs.ErrNotExist}
		}
		return mountInfo{}, false, err
	}
	return mountAt(resolved)
}
