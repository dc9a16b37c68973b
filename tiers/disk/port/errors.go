package port

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
)

// kinds are the kinds of package block that errors of the tier wrap.
func kinds() []error {
	return []error{
		block.ErrNotFound, block.ErrPending, block.ErrCorrupt, block.ErrNoSpace, block.ErrBudget, block.ErrTooLarge, block.ErrUnavailable,
		block.ErrInvalid, block.ErrNameTooLong, block.ErrReserved, block.ErrClosed,
	}
}

// KindOf wraps an error of I/O in its kind of package block, unless it has one.
func KindOf(err error) error {
	for _, kind := range kinds() {
		if errors.Is(err, kind) {
			return err
		}
	}
	kind := block.ErrUnavailable
	var fault *directio.FaultError
	var budget *directio.BudgetError
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		kind = block.ErrNoSpace
	case errors.Is(err, syscall.EBADF), errors.Is(err, syscall.EFAULT), errors.Is(err, syscall.EINVAL), errors.As(err, &fault):
		kind = block.ErrInvalid
	case errors.As(err, &budget):
		kind = block.ErrTooLarge
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// OfDevice reports whether an error of an engine is the device's fault. Otherwise our own memory, a
// full file system, or the end of ctx caused it.
func OfDevice(err error) bool {
	for _, other := range []error{
		context.Canceled, context.DeadlineExceeded, os.ErrClosed,
		syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EFAULT, syscall.EBADF, syscall.ENOMEM,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return err != nil
}

// IsFull reports whether an error says that the file system is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
