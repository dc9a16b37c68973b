package handoff

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultPath returns the socket of the user of this process: in /run/kvfs for root, else below
// runtimeDir, the value of XDG_RUNTIME_DIR. It returns "" if that is empty.
func DefaultPath(runtimeDir string) string {
	switch {
	case os.Geteuid() == 0:
		return "/run/kvfs/0/store.sock"
	case runtimeDir != "":
		return filepath.Join(runtimeDir, "kvfs", "store.sock")
	}
	return ""
}

// socketDir is the directory of a socket, held open. Every operation goes through its descriptor,
// so that no other process can exchange the directory.
type socketDir struct {
	dir  int    // descriptor of the directory
	lock int    // descriptor of the locked file; -1: not locked
	path string // of the socket, for messages
	name string // of the socket in dir
	made uint64 // inode of the socket that listen has made, or 0
}

// openSocketDir opens the directory of the socket at path. It makes the directory and the one above it if they are absent.
func openSocketDir(path string) (*socketDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{filepath.Dir(dir), 0o755}, {dir, 0o700}} {
		if err := os.Mkdir(d.path, d.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%w: %s is a symbolic link, or not a directory", ErrPlace, dir)
		}
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	p := &socketDir{dir: fd, lock: -1, path: path, name: filepath.Base(path)}
	if err := p.check(dir); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// check fails unless the directory is ours alone, and no other user can rename it.
func (p *socketDir) check(dir string) error {
	var st, above unix.Stat_t
	if err := unix.Fstat(p.dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	uid := uint32(os.Geteuid())
	if st.Uid != uid {
		return fmt.Errorf("%w: %s belongs to uid %d, want %d", ErrPlace, dir, st.Uid, uid)
	}
	if st.Mode&0o077 != 0 {
		return fmt.Errorf("%w: %s has mode %#o, want 0700", ErrPlace, dir, st.Mode&0o7777)
	}
	if err := unix.Fstatat(p.dir, "..", &above, 0); err != nil {
		return &os.PathError{Op: "stat", Path: filepath.Dir(dir), Err: err}
	}
	if above.Uid != uid && above.Uid != 0 {
		return fmt.Errorf("%w: %s belongs to uid %d", ErrPlace, filepath.Dir(dir), above.Uid)
	}
	if above.Mode&0o022 != 0 && above.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%w: others may write to %s", ErrPlace, filepath.Dir(dir))
	}
	return nil
}

// claim takes the lock, for which it waits that long, and removes the socket of a dead owner.
func (p *socketDir) claim(wait time.Duration) error {
	name := p.name + ".lock"
	fd, err := unix.Openat(p.dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Join(filepath.Dir(p.path), name), Err: err}
	}
	p.lock = fd
	if err := lock(fd, wait); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w at %s", ErrServing, p.path)
	} else if err != nil {
		return os.NewSyscallError("flock", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "stat", Path: p.path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%w: %s exists and is not a socket", ErrPlace, p.path)
	}
	// A process without the lock may still listen.
	c, err := net.Dial(network, p.address())
	if err == nil {
		c.Close()
		return fmt.Errorf("%w at %s", ErrServing, p.path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	return p.remove()
}

// lockTime is how long a second owner waits for the first to end. The kernel takes a moment to
// close the files of a killed process.
const lockTime = 2 * time.Second

// lock locks a file. It polls: the only call that waits for a lock cannot be ended.
func lock(fd int, wait time.Duration) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(wait)
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-tick.C:
		case <-late:
			return err
		}
	}
}

// address returns the address of the socket through the directory's descriptor. That is also
// short: the kernel takes 107 bytes.
func (p *socketDir) address() string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(p.dir), p.name)
}

func (p *socketDir) listen(network string) (*net.UnixListener, error) {
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: p.address(), Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", p.path, err)
	}
	l.SetUnlinkOnClose(false) // remove does it
	// No other user gets here before the chmod: the directory is ours alone.
	if err := unix.Fchmodat(p.dir, p.name, 0o600, 0); err != nil {
		return nil, errors.Join(&os.PathError{Op: "chmod", Path: p.path, Err: err}, l.Close(), p.remove())
	}
	var st unix.Stat_t
	if err := unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, errors.Join(&os.PathError{Op: "stat", Path: p.path, Err: err}, l.Close())
	}
	p.made = st.Ino
	return l, nil
}

// intact reports whether the path leads to the socket that listen has made.
func (p *socketDir) intact() bool {
	var st unix.Stat_t
	return unix.Lstat(p.path, &st) == nil && st.Ino == p.made
}

// remove removes the socket. After listen it removes only the socket of listen, not one that
// another process has put in its place.
func (p *socketDir) remove() error {
	var st unix.Stat_t
	if p.made != 0 && (unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Ino != p.made) {
		return nil
	}
	if err := unix.Unlinkat(p.dir, p.name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: p.path, Err: err}
	}
	return nil
}

// close gives up the lock and the descriptors.
func (p *socketDir) close() error {
	var err error
	if p.lock >= 0 {
		err = unix.Close(p.lock)
	}
	return errors.Join(err, unix.Close(p.dir))
}

// Private is a socket of one process, for its own user and root alone. Nobody else may reach its directory, and it
// has the mode 0600.
type Private struct {
	net.Listener
	dir *socketDir
}

// ListenPrivate makes the socket name.sock beside that of DefaultPath, which must not be empty. It makes the directory if it
// is absent; the directory must be ours alone. It removes the sockets of dead processes whose names begin with prefix.
func ListenPrivate(defaultPath, prefix, name string) (*Private, error) {
	p, err := openSocketDir(filepath.Join(filepath.Dir(defaultPath), name+".sock"))
	if err != nil {
		return nil, err
	}
	p.sweep(prefix)
	l, err := p.listenFirst()
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return &Private{l, p}, nil
}

// listenFirst makes the socket and only then gives it its name: the sweep of another process takes one that has its name and
// refuses connections for that of a dead process.
func (p *socketDir) listenFirst() (*net.UnixListener, error) {
	name := p.name
	p.name = "." + name
	_ = p.remove() // of a dead process that had our number; else listen fails
	l, err := p.listen("unix")
	if err != nil {
		return nil, err
	}
	if err := unix.Renameat2(p.dir, p.name, p.dir, name, unix.RENAME_NOREPLACE); err != nil {
		return nil, errors.Join(&os.PathError{Op: "rename", Path: p.path, Err: err}, l.Close(), p.remove())
	}
	p.name = name
	return l, nil
}

// Path returns the path of the socket.
func (p *Private) Path() string { return p.dir.path }

// Remove removes the socket, after Close.
func (p *Private) Remove() error { return errors.Join(p.dir.remove(), p.dir.close()) }

// sweep removes the sockets of dead processes whose names begin with prefix. What it cannot remove stays.
func (p *socketDir) sweep(prefix string) {
	entries, err := os.ReadDir(filepath.Dir(p.path))
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		of := *p
		of.name = e.Name()
		c, err := net.Dial("unix", of.address())
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = unix.Unlinkat(p.dir, of.name, 0) // another process may have done it
		}
	}
}
