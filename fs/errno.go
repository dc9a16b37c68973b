package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// errnos is the only table from kinds of error to errno. The first matching row counts. Lost,
// corrupt and unreachable are all ENOENT because engines take ENOENT for a miss and break on
// anything else (SGLang's prefetch thread ends, vLLM unlinks).
var errnos = []struct {
	kind  error
	errno syscall.Errno
}{
	{state.ErrStale, syscall.ESTALE},
	{block.ErrNoSpace, syscall.ENOSPC}, // before ErrPoisoned, which wraps the cause
	{block.ErrQuota, syscall.ENOSPC},
	{block.ErrBudget, syscall.ENOSPC},
	{block.ErrTooLarge, syscall.ENOSPC},
	{block.ErrPoisoned, syscall.EIO},
	{block.ErrNotFound, syscall.ENOENT},
	{block.ErrCorrupt, syscall.ENOENT},
	{block.ErrUnavailable, syscall.ENOENT},
	{block.ErrPending, syscall.EAGAIN},
	{block.ErrPinned, syscall.EBUSY},
	{block.ErrNameTooLong, syscall.ENAMETOOLONG},
	{block.ErrReserved, syscall.EPERM},
	{block.ErrReadOnly, syscall.EROFS},
	{block.ErrClosed, syscall.ENOTCONN},
	{block.ErrExist, syscall.EEXIST},
	{block.ErrNotDir, syscall.ENOTDIR},
	{block.ErrIsDir, syscall.EISDIR},
	{block.ErrNotEmpty, syscall.ENOTEMPTY},
	{block.ErrLoop, syscall.EINVAL},
	{block.ErrInvalid, syscall.EINVAL},
	{block.ErrNoAttr, syscall.ENODATA},
	{block.ErrAttrSize, syscall.E2BIG},
	{syscall.EMFILE, syscall.ENOSPC}, // of this process, or of the machine; clients have room for files of their own
	{syscall.ENFILE, syscall.ENOSPC},
	{context.Canceled, syscall.EINTR},
	{context.DeadlineExceeded, syscall.ETIMEDOUT},
}

// outOfFiles reports whether this process, or the machine, can open no more files. A read is a miss then.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// status turns an error into an errno: the row of the table, else the errno that err wraps,
// else EIO. EIO is a bug of kvfs.
func status(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	for _, row := range errnos {
		if errors.Is(err, row.kind) {
			return fuse.Status(row.errno)
		}
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fuse.Status(errno)
	}
	return fuse.EIO
}
