package fs

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// kinds are all kinds of error by name, with the errno that clients get.
var kinds = map[string]struct {
	kind error
	want syscall.Errno
}{
	"ErrNotFound":    {block.ErrNotFound, syscall.ENOENT},
	"ErrPending":     {block.ErrPending, syscall.EAGAIN},
	"ErrCorrupt":     {block.ErrCorrupt, syscall.ENOENT},
	"ErrNoSpace":     {block.ErrNoSpace, syscall.ENOSPC},
	"ErrQuota":       {block.ErrQuota, syscall.ENOSPC},
	"ErrBudget":      {block.ErrBudget, syscall.ENOSPC},
	"ErrTooLarge":    {block.ErrTooLarge, syscall.ENOSPC},
	"ErrPinned":      {block.ErrPinned, syscall.EBUSY},
	"ErrUnavailable": {block.ErrUnavailable, syscall.ENOENT},
	"ErrInvalid":     {block.ErrInvalid, syscall.EINVAL},
	"ErrNameTooLong": {block.ErrNameTooLong, syscall.ENAMETOOLONG},
	"ErrReserved":    {block.ErrReserved, syscall.EPERM},
	"ErrReadOnly":    {block.ErrReadOnly, syscall.EROFS},
	"ErrClosed":      {block.ErrClosed, syscall.ENOTCONN},
	"ErrExist":       {block.ErrExist, syscall.EEXIST},
	"ErrNotDir":      {block.ErrNotDir, syscall.ENOTDIR},
	"ErrIsDir":       {block.ErrIsDir, syscall.EISDIR},
	"ErrNotEmpty":    {block.ErrNotEmpty, syscall.ENOTEMPTY},
	"ErrLoop":        {block.ErrLoop, syscall.EINVAL},
	"ErrPoisoned":    {block.ErrPoisoned, syscall.EIO},
	"ErrStale":       {state.ErrStale, syscall.ESTALE},
}

// TestErrnoKinds shows that each kind has one row in the table, that the row
// counts through both ways of wrapping, and what its errno is.
func TestErrnoKinds(t *testing.T) {
	rows := map[error]int{}
	for _, row := range errnos {
		rows[row.kind]++
	}
	for name, k := range kinds {
		if rows[k.kind] != 1 {
			t.Errorf("%s has %d rows in the table, want 1", name, rows[k.kind])
		}
		for how, err := range map[string]error{
			"plain":       k.kind,
			"block.Error": &block.Error{Op: "load", Tier: "memory", Err: k.kind},
			"%w":          fmt.Errorf("a: %w", fmt.Errorf("b: %w", k.kind)),
			"joined":      errors.Join(errors.New("first"), k.kind),
		} {
			if got := status(err); got != fuse.Status(k.want) {
				t.Errorf("%s, %s: got %v, want %v", name, how, got, k.want)
			}
		}
	}
}

// TestErrnoKindsComplete shows that TestErrnoKinds knows every kind: it reads the
// declarations of the package that lists them.
func TestErrnoKindsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../tiers/block/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, id := range spec.Names {
			if !strings.HasPrefix(id.Name, "Err") {
				continue
			}
			found++
			if _, ok := kinds[id.Name]; !ok {
				t.Errorf("%s is not tested", id.Name)
			}
		}
		return true
	})
	if want := len(kinds) - 1; found != want { // ErrStale is of package tiers
		t.Errorf("package block declares %d kinds, %d are tested", found, want)
	}
}

// TestErrnoOther shows what becomes of errors that are no kind.
func TestErrnoOther(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want fuse.Status
	}{
		{"none", nil, fuse.OK},
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
