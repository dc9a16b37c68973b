package llama

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// waitsForOwner reports whether a thread of a process waits for the answer of a FUSE daemon: in request_wait_answer
// of the kernel, or in its caller if the compiler has inlined it.
func waitsForOwner(pid int) bool {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if where := string(text); err == nil && (strings.Contains(where, "request_wait_answer") || strings.Contains(where, "fuse_")) {
			return true
		}
	}
	return false
}

// position returns how far a process is in its open file of that path.
func position(pid int, path string) (off int64, open bool) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || strings.TrimSuffix(target, " (deleted)") != path { // the kernel forgets a name that is written anew
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, filepath.Base(link)))
		if err == nil {
			_, err = fmt.Sscanf(string(text), "pos: %d", &off)
		}
		if err == nil {
			return off, true
		}
	}
	return 0, false
}

// thaw lets a process go on that stands still.
func thaw(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// wait polls a descriptor for input until it has some.
func wait(t *testing.T, fd int, what string) {
	t.Helper()
	deadline := time.Now().Add(harness.Deadline)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(deadline)).Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			t.Fatalf("poll: %v", err)
		case n == 0:
			t.Fatalf("after %v still not: %s", harness.Deadline, what)
		default:
			return
		}
	}
}

// watch returns a function that waits until something happens to a file of a directory
// from now on: unix.IN_MODIFY is a write, unix.IN_CLOSE_WRITE the close after it.
func watch(t *testing.T, dir string, what uint32) (happened func()) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		_, err = unix.InotifyAddWatch(fd, dir, what)
	}
	if err != nil {
		t.Fatalf("inotify: %v", err)
	}
	return func() {
		t.Helper()
		wait(t, fd, "a write")
	}
}

// hold stops the process that reads a file at its first read(2), which does not begin before
// release.
type hold struct {
	t    *testing.T
	fd   int
	file int32 // of the event
}

// holdReads begins to hold the readers of a file. It skips the test where the kernel
// cannot.
func holdReads(t *testing.T, path string) *hold {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_ACCESS_PERM, unix.AT_FDCWD, path)
	}
	if err != nil {
		harness.Skip(t, "fanotify: %v", err)
	}
	h := &hold{t: t, fd: fd, file: -1}
	t.Cleanup(h.release)
	return h
}

// wait waits for a reader.
func (h *hold) wait() {
	h.t.Helper()
	wait(h.t, h.fd, "a read")
	buf := make([]byte, unix.FAN_EVENT_METADATA_LEN)
	n, err := unix.Read(h.fd, buf)
	if err != nil || n != len(buf) {
		h.t.Fatalf("fanotify: %d bytes, %v", n, err)
	}
	h.file = (*unix.FanotifyEventMetadata)(unsafe.Pointer(&buf[0])).Fd
}

// release lets the readers go on, for good.
func (h *hold) release() {
	if h.file >= 0 {
		unix.Close(int(h.file))
		h.file = -1
	}
	if h.fd >= 0 {
		unix.Close(h.fd) // which allows what was asked
		h.fd = -1
	}
}
