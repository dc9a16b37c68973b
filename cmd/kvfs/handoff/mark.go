package handoff

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mark tells other processes of this machine that a mount has a living process. A mount that hangs cannot be
// asked. The process number does not help: a process with a thread stuck in the kernel does not end. A Mark is
// a file with a lock that ends with the process. Several processes may hold the lock, as both do in a takeover.
type Mark struct {
	p    *socketDir
	f    *os.File
	text []byte // that names this process
}

// MarkPath returns the path of the mark of the mount with a minor number, in the directory of the owner's socket.
func MarkPath(defaultPath, minor string) string {
	return filepath.Join(filepath.Dir(defaultPath), "mount-"+minor+".mark")
}

// markText is the content of a mark: the process, and the id and the path of the mount, because minor numbers are reused.
const markText = "%d %d %q\n"

// NewMark marks a new mount, with that id at point in the mount table, as served by this process. A file that is at path is of
// a mount that is gone, whose number the new one has got. The process of that mount may still be ending, with its lock; so
// the new mount gets a new file.
func NewMark(path string, id int, point string) (*Mark, error) { return mark(path, id, point, false) }

// JoinMark holds the mark of a mount that another process serves. Both have the file then, which names that process until
// Serving. Without such a mark JoinMark makes one.
func JoinMark(path string, id int, point string) (*Mark, error) { return mark(path, id, point, true) }

func mark(path string, id int, point string, join bool) (*Mark, error) {
	p, err := openSocketDir(path)
	if err != nil {
		return nil, fmt.Errorf("mark: %w", err)
	}
	m := &Mark{p: p, text: fmt.Appendf(nil, markText, os.Getpid(), id, point)}
	for {
		if err := m.reopen(path); err != nil {
			return nil, errors.Join(err, p.close())
		}
		if !p.leadsTo(m.f) { // the process before may remove its mark until it is locked
			continue
		}
		info, err := m.f.Stat()
		if err == nil {
			if join && marked(m.f, id, point) != 0 {
				return m, nil
			}
			if info.Size() == 0 {
				break
			}
			err = p.remove() // nobody else does while it is locked
		}
		if err != nil {
			return nil, errors.Join(err, m.f.Close(), p.close())
		}
	}
	if err := m.Serving(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Serving makes the mark name this process, as the one that serves the mount from now on.
func (m *Mark) Serving() error {
	if m == nil {
		return nil
	}
	if _, err := m.f.WriteAt(m.text, 0); err != nil {
		return err
	}
	return m.f.Truncate(int64(len(m.text))) // a longer text ends in another line until then
}

// reopen opens the file at path, and locks it.
func (m *Mark) reopen(path string) error {
	m.f.Close() // a nil file does nothing
	fd, err := unix.Openat(m.p.dir, m.p.name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	m.f = os.NewFile(uintptr(fd), path)
	if err := unix.Flock(fd, unix.LOCK_SH); err != nil { // others hold it exclusively only for a look
		return errors.Join(&os.PathError{Op: "flock", Path: path, Err: err}, m.f.Close())
	}
	return nil
}

// Open opens the mark for Free, in any process.
func (m *Mark) Open() (*os.File, error) { return os.Open(fmt.Sprintf("/proc/self/fd/%d", m.f.Fd())) }

// Close removes the mark, unless another process holds it, too.
func (m *Mark) Close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.p.removeFree(m.f), m.f.Close(), m.p.close())
}

// removeFree removes f, the file of a mark, if nobody holds it and it is still the one at the path.
func (p *socketDir) removeFree(f *os.File) error {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !p.leadsTo(f) {
		return nil
	}
	return p.remove()
}

func (p *socketDir) leadsTo(f *os.File) bool {
	var here, there unix.Stat_t
	return unix.Fstat(int(f.Fd()), &here) == nil && unix.Fstatat(p.dir, p.name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		here.Dev == there.Dev && here.Ino == there.Ino
}

// RemoveMark removes what a dead process left as the mark of the mount with that id at point, if nobody has taken it over.
func RemoveMark(path string, id int, point string) error {
	p, err := openSocketDir(path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return errors.Join(err, p.close())
	}
	if pid := marked(f, id, point); pid != 0 {
		err = p.removeFree(f)
	}
	return errors.Join(err, f.Close(), p.close())
}

// Abandoned reports whether a dead process served the mount with that id at point in the mount
// table. It is false if nothing is known.
func Abandoned(path string, id int, point string) bool {
	pid, free := readMark(path, id, point)
	return pid != 0 && free
}

// Server returns the process that serves the mount with that id at point in the mount table. It
// is 0 if nothing is known, or the process is dead.
func Server(path string, id int, point string) int {
	pid, free := readMark(path, id, point)
	if free {
		return 0
	}
	return pid
}

// readMark returns the process that marked the mount, or 0, and whether the mark is free.
func readMark(path string, id int, point string) (pid int, free bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if pid = marked(f, id, point); pid == 0 {
		return 0, false
	}
	return pid, Free(f)
}

// marked returns the process that marked the mount, as the mark f says, or 0 if f is of another mount.
func marked(f *os.File, id int, point string) (pid int) {
	var markedID int
	var marked string
	if _, err := fmt.Fscanf(f, markText, &pid, &markedID, &marked); err != nil || markedID != id || marked != point {
		return 0
	}
	return pid
}

// freeLooks bounds how often Free looks again because somebody held the lock who does not at the next glance.
const freeLooks = 100

// Free looks at the list of locks several times before it believes that no living process holds one.
const (
	sureLooks = 3
	sureEvery = 5 * time.Millisecond
)

// Free reports whether no living process holds the mark open in f. The lock of a killed process
// stays while one of its threads that shares the descriptors is stuck, or a child that it was
// starting has not come to its own program yet.
func Free(f *os.File) bool {
	for range freeLooks {
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			return true
		}
		living, others := holders(f)
		for range sureLooks { // the list lacks a lock now and then while other locks come and go
			if living > 0 || others == 0 {
				break
			}
			time.Sleep(sureEvery)
			living, others = holders(f)
		}
		if living+others > 0 {
			return living == 0
		}
	}
	return false // the holder is in another PID namespace, whose locks are not shown
}

// holders returns how many living processes hold the mark open in f, and how many others hold its lock: processes that
// have ended, and who holds it exclusively, to look or to remove the mark, which nobody can while a mark is held.
func holders(f *os.File) (living, others int) {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0, 0
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(text)) {
		// For example: "1: FLOCK ADVISORY READ 4711 00:1a:23 0 EOF"
		lock := strings.Fields(line)
		switch {
		case len(lock) < 6 || lock[1] != "FLOCK" || lock[5] != file:
		case lock[3] == "READ" && !ended(lock[4]):
			living++
		default:
			others++
		}
	}
	return living, others
}

// ended reports whether there is no such process any more, or its first thread has ended. kvfs keeps that to the end.
func ended(pid string) bool {
	if n, err := strconv.Atoi(pid); err == nil && n > 0 && unix.Kill(n, 0) == unix.ESRCH {
		return true
	}
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return false // hidden from this user
	}
	_, state, ok := strings.Cut(string(text), ") ")
	return ok && strings.HasPrefix(state, "Z")
}
