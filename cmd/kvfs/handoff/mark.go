package handoff

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mark tells other processes of this machine that a mount has a living process. A mount that hangs
// cannot be asked that, and the number of a process that does not end (a thread of it may be stuck in
// the kernel) says nothing. It is a file with a lock that ends with the process; several
// processes may hold it, as both do in a takeover.
type Mark struct {
	p *place
	f *os.File
}

// MarkPath is where the mount of that minor number has its mark, in the directory of the owner's
// socket.
func MarkPath(defaultPath, minor string) string {
	return filepath.Join(filepath.Dir(defaultPath), "mount-"+minor+".mark")
}

// markText is what a mark says: whose it is, and of which mount, because minor numbers are used again.
const markText = "%d %d %q\n"

// NewMark marks the mount that the mount table has with that id at point as served by this process.
func NewMark(path string, id int, point string) (*Mark, error) {
	p, err := openPlace(path)
	if err != nil {
		return nil, fmt.Errorf("mark: %w", err)
	}
	fd, err := unix.Openat(p.dir, p.name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: path, Err: err}, p.close())
	}
	m := &Mark{p, os.NewFile(uintptr(fd), path)}
	if err := unix.Flock(fd, unix.LOCK_SH); err != nil { // nobody has it alone for longer than to look
		return nil, errors.Join(&os.PathError{Op: "flock", Path: path, Err: err}, m.f.Close(), p.close())
	}
	err = m.f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(m.f, markText, os.Getpid(), id, point)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Open opens the mark for Free, in whichever process.
func (m *Mark) Open() (*os.File, error) { return os.Open(fmt.Sprintf("/proc/self/fd/%d", m.f.Fd())) }

// Close removes the mark, unless another process has it, too.
func (m *Mark) Close() error {
	if m == nil {
		return nil
	}
	var err error
	if unix.Flock(int(m.f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		err = m.p.remove()
	}
	return errors.Join(err, m.f.Close(), m.p.close())
}

// Abandoned reports whether the mount that the mount table has with that id at point was served by
// a process that is dead. It is false where nothing is known.
func Abandoned(path string, id int, point string) bool {
	pid, free := readMark(path, id, point)
	return pid != 0 && free
}

// Server returns the process that serves the mount that the mount table has with that id at point; 0 if nothing
// is known, or the process is dead.
func Server(path string, id int, point string) int {
	pid, free := readMark(path, id, point)
	if free {
		return 0
	}
	return pid
}

// readMark returns the process that marked the mount, 0 if none has, and whether the mark is free.
func readMark(path string, id int, point string) (pid int, free bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	var markedID int
	var marked string
	if _, err := fmt.Fscanf(f, markText, &pid, &markedID, &marked); err != nil || markedID != id || marked != point {
		return 0, false
	}
	return pid, Free(f)
}

// Free reports whether no living process has the mark that f has open. The lock of a process that was killed
// stays while a thread of it is stuck that shares the descriptors.
func Free(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil || heldByZombies(f)
}

// heldByZombies reports whether there are processes with a lock of f, and all of them are zombies.
func heldByZombies(f *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	held := false
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK ADVISORY READ 4711 00:1a:23 0 EOF
		lock := strings.Fields(line)
		if len(lock) < 6 || lock[1] != "FLOCK" || lock[5] != file {
			continue
		}
		if !zombie(lock[4]) {
			return false
		}
		held = true
	}
	return held
}

// zombie reports whether the first thread of a process, which kvfs keeps to its end, has ended.
func zombie(pid string) bool {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return false
	}
	_, state, ok := strings.Cut(string(text), ") ")
	return ok && strings.HasPrefix(state, "Z")
}
