//go:build ofi && cgo

package fabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memlockFloor is the least that must be lockable besides the cache: blocks that are being read and
// written, and the queues.
const memlockFloor = 64 << 20

// memlockHint says how to raise the limit.
const memlockHint = "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, or the capability IPC_LOCK in a container"

// checkMemlock fails if this process may lock less memory than need.
func checkMemlock(need int64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return fmt.Errorf("fabric: limit of locked memory: %w", err)
	}
	if l.Cur == unix.RLIM_INFINITY || l.Cur >= uint64(need) || mayLock("/proc/self/status") {
		return nil
	}
	return fmt.Errorf("%w: %d KiB of memory may be locked, %d KiB are needed: %s", ErrUnavailable, l.Cur>>10, need>>10, memlockHint)
}

// mayLock reports whether the process has the capability that lifts the limit.
func mayLock(status string) bool {
	text, err := os.ReadFile(status)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		var caps uint64
		if _, err := fmt.Sscanf(line, "CapEff: %x", &caps); err == nil {
			return caps>>unix.CAP_IPC_LOCK&1 != 0
		}
	}
	return false
}

// checkCharDevices fails if dir has character devices of RDMA that this process may not open. If it
// has none, the provider says so.
func checkCharDevices(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var refused []string
	for _, name := range names {
		base := filepath.Base(name)
		if !strings.HasPrefix(base, "uverbs") && base != "rdma_cm" {
			continue
		}
		if err := unix.Access(name, unix.R_OK|unix.W_OK); err != nil {
			refused = append(refused, name)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("%w: no permission on %s: give the user that runs this read and write access (a udev rule, the group rdma), or the devices to its container",
		ErrUnavailable, strings.Join(refused, ", "))
}

// charDevices is the directory of the character devices.
const charDevices = "/dev/infiniband"

// whyNoMemory explains the failure of what, which needs locked memory.
func whyNoMemory(what string, err error) error {
	if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%s: %w; the limit of locked memory may be too low: %s", what, err, memlockHint)
	}
	return fmt.Errorf("%s: %w", what, err)
}
