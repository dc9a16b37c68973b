package harness

import (
	"bufio"
	"encoding/gob"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Actor does system calls in a process: the test's own (Self) or another one
// (NewActor). Errors are syscall.Errno or nil. An Actor serves one call at a
// time.
type Actor struct {
	Pid  int
	call func(request) response
	kill func()
}

const actorHelper = "kvfs-actor"

type request struct {
	Op     string
	Path   string
	Path2  string
	FD     int
	Flags  int
	Mode   uint32
	Off, N int64
	Data   []byte
	Thread bool // on another thread than the actor's main one
}

type response struct {
	N     int64
	Errno int
	Data  []byte
	Names []string
	Stat  unix.Stat_t
	VFS   unix.Statfs_t
}

func (r response) err() error {
	if r.Errno == 0 {
		return nil
	}
	return syscall.Errno(r.Errno)
}

// Self returns an Actor that is the test process.
func Self() *Actor {
	return &Actor{Pid: os.Getpid(), call: perform, kill: func() {}}
}

// NewActor starts a process that acts for the test. user may be nil.
func NewActor(tb testing.TB, user *User) *Actor {
	tb.Helper()
	p := StartHelper(tb, ProcessOptions{User: user}, actorHelper)
	enc, dec := gob.NewEncoder(p.Stdin), gob.NewDecoder(bufio.NewReader(p.Stdout))
	a := &Actor{Pid: p.Pid, kill: p.Kill}
	var over atomic.Bool // a goroutine of a test that failed may still wait for an answer
	tb.Cleanup(func() { over.Store(true) })
	a.call = func(req request) response {
		var resp response
		err := enc.Encode(req)
		if err == nil {
			err = dec.Decode(&resp)
		}
		if err != nil && over.Load() {
			return response{Errno: int(unix.ECANCELED)}
		}
		if err != nil {
			panic(fmt.Sprintf("actor %d: %s: %v", p.Pid, req.Op, err))
		}
		return resp
	}
	return a
}

// actorMain serves requests until its standard input ends, on its main thread except those of
// OtherThread.
func actorMain([]string) int {
	runtime.LockOSThread()
	unix.Umask(0o022)
	enc, dec := gob.NewEncoder(os.Stdout), gob.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var req request
		if dec.Decode(&req) != nil {
			return 0
		}
		if err := enc.Encode(perform(req)); err != nil {
			return 1
		}
	}
}

// OtherThread returns an Actor of the same process that works on another thread than the main one.
// Only one of the two may be called at a time.
func (a *Actor) OtherThread() *Actor {
	return &Actor{Pid: a.Pid, kill: a.kill, call: func(req request) response {
		req.Thread = true
		return a.call(req)
	}}
}

// Kill kills the process with SIGKILL and waits until it is gone. On Self it does nothing.
func (a *Actor) Kill() { a.kill() }

// Open opens path and returns the descriptor. O_CLOEXEC is added.
func (a *Actor) Open(path string, flags int, mode uint32) (int, error) {
	r := a.call(request{Op: "open", Path: path, Flags: flags, Mode: mode})
	return int(r.N), r.err()
}

// Close closes the descriptor.
func (a *Actor) Close(fd int) error { return a.call(request{Op: "close", FD: fd}).err() }

// Write is one write(2).
func (a *Actor) Write(fd int, p []byte) (int, error) {
	r := a.call(request{Op: "write", FD: fd, Data: p})
	return int(r.N), r.err()
}

// Pwrite is one pwrite(2).
func (a *Actor) Pwrite(fd int, p []byte, off int64) (int, error) {
	r := a.call(request{Op: "pwrite", FD: fd, Data: p, Off: off})
	return int(r.N), r.err()
}

// Pread is one pread(2) of up to n bytes.
func (a *Actor) Pread(fd, n int, off int64) ([]byte, error) {
	r := a.call(request{Op: "pread", FD: fd, N: int64(n), Off: off})
	return r.Data, r.err()
}

// Fsync is fsync(2).
func (a *Actor) Fsync(fd int) error { return a.call(request{Op: "fsync", FD: fd}).err() }

// Fdatasync is fdatasync(2).
func (a *Actor) Fdatasync(fd int) error { return a.call(request{Op: "fdatasync", FD: fd}).err() }

// Append does this n times: it opens path with O_APPEND, creates it if it is missing, writes p with
// one write(2) and closes it.
func (a *Actor) Append(path string, p []byte, n int) error {
	return a.call(request{Op: "append", Path: path, Data: p, N: int64(n)}).err()
}

// Ftruncate is ftruncate(2).
func (a *Actor) Ftruncate(fd int, size int64) error {
	return a.call(request{Op: "ftruncate", FD: fd, N: size}).err()
}

// Stat is stat(2).
func (a *Actor) Stat(path string) (unix.Stat_t, error) {
	r := a.call(request{Op: "stat", Path: path})
	return r.Stat, r.err()
}

// Fstat is fstat(2).
func (a *Actor) Fstat(fd int) (unix.Stat_t, error) {
	r := a.call(request{Op: "fstat", FD: fd})
	return r.Stat, r.err()
}

// Statfs is statfs(2).
func (a *Actor) Statfs(path string) (unix.Statfs_t, error) {
	r := a.call(request{Op: "statfs", Path: path})
	return r.VFS, r.err()
}

// Access is access(2).
func (a *Actor) Access(path string, mode uint32) error {
	return a.call(request{Op: "access", Path: path, Mode: mode}).err()
}

// Rename is rename(2).
func (a *Actor) Rename(from, to string) error {
	return a.call(request{Op: "rename", Path: from, Path2: to}).err()
}

// Unlink is unlink(2).
func (a *Actor) Unlink(path string) error { return a.call(request{Op: "unlink", Path: path}).err() }

// Mkdir is mkdir(2).
func (a *Actor) Mkdir(path string, mode uint32) error {
	return a.call(request{Op: "mkdir", Path: path, Mode: mode}).err()
}

// Rmdir is rmdir(2).
func (a *Actor) Rmdir(path string) error { return a.call(request{Op: "rmdir", Path: path}).err() }

// Chmod is chmod(2).
func (a *Actor) Chmod(path string, mode uint32) error {
	return a.call(request{Op: "chmod", Path: path, Mode: mode}).err()
}

// Chown is chown(2).
func (a *Actor) Chown(path string, uid, gid int) error {
	return a.call(request{Op: "chown", Path: path, Off: int64(uid), N: int64(gid)}).err()
}

// Getxattr is getxattr(2).
func (a *Actor) Getxattr(path, name string) (string, error) {
	r := a.call(request{Op: "getxattr", Path: path, Path2: name, N: 4096})
	return string(r.Data), r.err()
}

// Setxattr is setxattr(2).
func (a *Actor) Setxattr(path, name, value string) error {
	return a.call(request{Op: "setxattr", Path: path, Path2: name, Data: []byte(value)}).err()
}

// Names lists a directory.
func (a *Actor) Names(path string) ([]string, error) {
	r := a.call(request{Op: "names", Path: path})
	return r.Names, r.err()
}

// ReadFile opens path, reads all of it and closes it.
func (a *Actor) ReadFile(path string) ([]byte, error) {
	r := a.call(request{Op: "readfile", Path: path})
	return r.Data, r.err()
}

// WriteFile creates or truncates path, writes p with one write(2), and closes
// it.
func (a *Actor) WriteFile(path string, p []byte) error {
	fd, err := a.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	n, err := a.Write(fd, p)
	if cerr := a.Close(fd); err == nil {
		err = cerr
	}
	if err == nil && n != len(p) {
		err = unix.EIO
	}
	return err
}
