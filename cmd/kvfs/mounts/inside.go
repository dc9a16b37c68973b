package mounts

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Inside returns the kvfs mount that path leads into, through symbolic links and bind mounts, or nil. What is absent of
// path counts as a file of the last directory that exists. Inside asks no kvfs mount: it goes no further than its root.
func Inside(path string) (*mountinfo.Info, error) {
	ours, err := devices()
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	var found *mountinfo.Info
	_, err = walk(path, func(st *unix.Statx_t) bool {
		found = ours[deviceOf(st)]
		return found != nil
	})
	return found, err
}

// Holds returns the kvfs mount of an open file of this process, or nil.
func Holds(fd int) (*mountinfo.Info, error) {
	ours, err := devices()
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	st, err := look(fd)
	return ours[deviceOf(&st)], err
}

// Below reports whether path is dir, which exists, or leads into it, as Inside does. A mount at dir would hide path.
func Below(path, dir string) (bool, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	at, err := look(fd)
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	return walk(path, func(st *unix.Statx_t) bool { return st.Ino == at.Ino && deviceOf(st) == deviceOf(&at) })
}

// devices returns the kvfs mounts of this machine by their devices. All mounts of one device are one file system.
func devices() (map[uint64]*mountinfo.Info, error) {
	list, err := List("")
	ours := map[uint64]*mountinfo.Info{}
	for _, m := range list {
		if dev := unix.Mkdev(uint32(m.Major), uint32(m.Minor)); ours[dev] == nil {
			ours[dev] = m
		}
	}
	return ours, err
}

func deviceOf(st *unix.Statx_t) uint64 { return unix.Mkdev(st.Dev_major, st.Dev_minor) }

// look returns what the kernel knows of a file. It does not ask the file system.
func look(fd int) (st unix.Statx_t, err error) {
	return st, os.NewSyscallError("statx", unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st))
}

// maxLinks bounds the symbolic links of a path, as the kernel does.
const maxLinks = 40

// walk goes the way of path and calls stop for each directory, link and file on it, from the first directory on. It ends when
// stop returns true, and returns that. It ends with false at a name that is absent or that this process may not look up. It
// takes single steps because a look-up of a whole path would wait for a mount on its way that does not answer.
func walk(path string, stop func(*unix.Statx_t) bool) (stopped bool, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at := unix.AT_FDCWD
	defer func() { unix.Close(at) }() // fails for AT_FDCWD
	names := append([]string{start(path)}, strings.Split(path, "/")...)
	for links := 0; len(names) > 0 && links <= maxLinks; names = names[1:] {
		if names[0] == "" {
			continue
		}
		fd, err := unix.Openat(at, names[0], flags, 0)
		if err != nil {
			return false, nil
		}
		st, err := look(fd)
		if err != nil || stop(&st) {
			unix.Close(fd)
			return err == nil, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(at)
			at = fd
			continue
		}
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", text)
		unix.Close(fd)
		if err != nil {
			return false, nil
		}
		links++
		target := string(text[:n])
		names = append(append([]string{"", start(target)}, strings.Split(target, "/")...), names[1:]...)
	}
	return false, nil
}

// start returns the name of the directory at which a path starts, for openat.
func start(path string) string {
	if strings.HasPrefix(path, "/") {
		return "/"
	}
	return "."
}
