package block

import (
	"errors"
	"strings"
)

// The kinds of error. The list is closed: a new kind needs a row in fs/errno.go.
// Test with errors.Is, never by text. A miss is a value, not an error, wherever
// it is an expected outcome.
var (
	// ErrNotFound: the tier lacks the block.
	ErrNotFound = errors.New("block not found")
	// ErrPending: the block's transfer is under way and the caller will not wait.
	ErrPending = errors.New("block pending")
	// ErrCorrupt: the checksum disagrees; the tier has already evicted its copy.
	ErrCorrupt = errors.New("block corrupt")
	// ErrNoSpace: everything that could make room is pinned.
	ErrNoSpace = errors.New("no space: everything evictable is gone, the rest is pinned")
	// ErrQuota: the quota of the group, the user or the control group is used up.
	ErrQuota = errors.New("quota exceeded")
	// ErrBudget: the tier has written as much as it may today.
	ErrBudget = errors.New("daily write budget used up")
	// ErrTooLarge: the block exceeds what the tier or its staging can ever hold.
	ErrTooLarge = errors.New("block larger than the tier")
	// ErrPinned: an explicit evict met a pinned block.
	ErrPinned = errors.New("block pinned")
	// ErrUnavailable: the device or peer is gone for now.
	ErrUnavailable = errors.New("tier unavailable")
	// ErrInvalid: the caller's mistake at an API edge: length, alignment, name.
	ErrInvalid = errors.New("invalid argument")
	// ErrNameTooLong: a path component or path is over its limit.
	ErrNameTooLong = errors.New("name too long")
	// ErrReserved: the name belongs to the control directory.
	ErrReserved = errors.New("name reserved for the control directory")
	// ErrReadOnly: the tier takes no stores.
	ErrReadOnly = errors.New("read-only")
	// ErrClosed: the engine or tier is closed.
	ErrClosed = errors.New("closed")

	// Errors of the name space, one for each errno that POSIX asks for.
	ErrExist    = errors.New("name exists")
	ErrNotDir   = errors.New("not a directory")
	ErrIsDir    = errors.New("is a directory")
	ErrNotEmpty = errors.New("directory not empty")
	ErrLoop     = errors.New("directory moved into itself")
	// ErrPoisoned: a write to this file failed, so it can never be committed.
	ErrPoisoned = errors.New("an earlier write failed; the file cannot be committed")
)

// Error adds the operation, tier and key to a kind, like os.PathError.
type Error struct {
	Op   string // what was tried, for example "load"
	Tier string // name of the tier; empty if none is meant
	Key  Key    // zero if none is meant
	Err  error  // the kind, or an error that wraps one
}

// Error prints "<op> <tier> <key>: <kind>", leaving out what is empty.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Tier != "" {
		b.WriteString(" " + e.Tier)
	}
	if e.Key != (Key{}) {
		b.WriteString(" " + e.Key.String())
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Err }
