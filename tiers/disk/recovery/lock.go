package recovery

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy: another process has the directory open. The error is a *BusyError.
var ErrBusy = errors.New("directory in use")

// BusyError names a directory and the process that has it open.
type BusyError struct {
	Dir string
	PID int // 0 if unknown, for example in another pid namespace
}

// Error prints "<dir>: directory in use by process <pid>".
func (e *BusyError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s: %v by another process", e.Dir, ErrBusy)
	}
	return fmt.Sprintf("%s: %v by process %d", e.Dir, ErrBusy, e.PID)
}

// Unwrap returns ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// lock takes the lock on kvfs-disk, or fails with a BusyError.
func (d *Dir) lock() error {
	for {
		err := unix.Flock(int(d.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return &BusyError{Dir: d.path, PID: lockHolder(d.file)}
		default:
			return &os.PathError{Op: "flock", Path: d.file.Name(), Err: err}
		}
	}
}

// lockHolder asks the kernel which process holds the flock on f. It returns 0 for a process of
// another pid namespace.
func lockHolder(f *os.File) int {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	for range 3 { // the kernel may skip a line while other locks come and go
		list, err := os.Open("/proc/locks")
		if err != nil {
			return 0
		}
		pid := findLock(bufio.NewScanner(list), fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev)), st.Ino)
		list.Close()
		if pid != 0 {
			return pid
		}
	}
	return 0
}

// findLock reads lines such as
//
//	1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234567 0 EOF
//
// A line with the inode but another device is the second choice. On btrfs and overlayfs, stat and
// the kernel's list disagree about the device.
func findLock(lines *bufio.Scanner, dev string, inode uint64) int {
	second := 0
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) < 6 || w[1] != "FLOCK" || w[3] != "WRITE" {
			continue
		}
		i := strings.LastIndexByte(w[5], ':')
		if i < 0 || w[5][i+1:] != strconv.FormatUint(inode, 10) {
			continue
		}
		pid, err := strconv.Atoi(w[4])
		if err != nil || pid <= 0 {
			continue
		}
		if w[5][:i] == dev {
			return pid
		}
		second = pid
	}
	return second
}
