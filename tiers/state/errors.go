package state

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

// ErrStale asks the caller to look the name up again: the name means another file to its process.
// The FUSE front answers ESTALE. Then the kernel repeats the look-up by itself, once.
var ErrStale = errors.New("name must be looked up again")

// ErrHollow says that the block is not in memory, so that an open has to wait.
var ErrHollow = errors.New("block is not in memory")

// BringError returns what a caller hears if a block cannot be brought to memory and the caller asked for more than a read.
// Unlike MissError it says that there is no room.
func BringError(op string, err error) error {
	if errors.Is(err, block.ErrNoSpace) || errors.Is(err, block.ErrTooLarge) {
		return &block.Error{Op: op, Tier: "memory", Err: block.ErrNoSpace}
	}
	return MissError(err)
}

// MissError turns the failure of a promotion into an error that an open may report. Engines take a miss as a miss,
// and any other error for a broken file system.
func MissError(err error) error {
	if errors.Is(err, ErrStale) || errors.Is(err, block.ErrPending) || errors.Is(err, context.Canceled) || errors.Is(err, block.ErrNotFound) {
		return err
	}
	return &block.Error{Op: "open", Err: fmt.Errorf("%w: %v", block.ErrNotFound, err)} // of no other kind
}

// Futimens sets the times of an open file; x/sys has only the form with a path.
func Futimens(fd int, ts []unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
