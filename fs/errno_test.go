package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestErrnoKinds shows that each kind of error that package block declares has one row in the table, and that a row counts
// through each way of wrapping.
func TestErrnoKinds(t *testing.T) {
	declared, err := os.ReadFile("../tiers/block/errors.go")
	table, err2 := os.ReadFile("errno.go")
	must(t, errors.Join(err, err2))
	names := regexp.MustCompile(`(?m)^\t(Err\w+) += errors\.New`).FindAllSubmatch(declared, -1)
	for _, name := range names {
		if n := strings.Count(string(table), "{block."+string(name[1])+", "); n != 1 {
			t.Errorf("%s has %d rows in the table, want 1", name[1], n)
		}
	}
	if len(names) < 20 {
		t.Errorf("%d kinds", len(names))
	}
	for _, row := range errnos {
		for how, err := range map[string]error{
			"plain":       row.kind,
			"block.Error": &block.Error{Op: "load", Tier: "memory", Err: row.kind},
			"%w":          fmt.Errorf("a: %w", fmt.Errorf("b: %w", row.kind)),
			"joined":      errors.Join(errors.New("first"), row.kind),
		} {
			if got := status(err); got != fuse.Status(row.errno) {
				t.Errorf("%v, %s: got %v, want %v", row.kind, how, got, row.errno)
			}
		}
	}
}

// TestErrnoOther shows what becomes of errors that are no kind, and what engines count on.
func TestErrnoOther(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want fuse.Status
	}{
		{"none", nil, fuse.OK},
		{"lost", block.ErrNotFound, fuse.ENOENT},
		{"corrupt", block.ErrCorrupt, fuse.ENOENT},
		{"unreachable", block.ErrUnavailable, fuse.ENOENT},
		{"on its way", block.ErrPending, fuse.EAGAIN},
		{"no room", block.ErrNoSpace, fuse.Status(syscall.ENOSPC)},
		{"stale", state.ErrStale, fuse.Status(syscall.ESTALE)},
		{"unknown", errors.New("boom"), fuse.EIO},
		{"text alone is no kind", errors.New(block.ErrNotFound.Error()), fuse.EIO},
		{"errno", syscall.EBADF, fuse.EBADF},
		{"errno in a path error", &os.PathError{Op: "open", Path: "x", Err: syscall.ELOOP}, fuse.Status(syscall.ELOOP)},
		{"errno of a system call", os.NewSyscallError("copy_file_range", syscall.EXDEV), fuse.Status(syscall.EXDEV)},
		{"cancelled", fmt.Errorf("wait: %w", context.Canceled), fuse.EINTR},
		{"late", context.DeadlineExceeded, fuse.Status(syscall.ETIMEDOUT)},
		{"a kind beats the errno that came with it", fmt.Errorf("%w: %w", block.ErrNotFound, syscall.EIO), fuse.ENOENT},
		{"poisoned for lack of room", errors.Join(block.ErrPoisoned, block.ErrNoSpace), fuse.Status(syscall.ENOSPC)},
		{"poisoned by the file system", errors.Join(block.ErrPoisoned, syscall.EFBIG), fuse.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := status(c.err); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
