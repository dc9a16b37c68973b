// Package exit is how a command of kvfs ends: its exit codes, and errors that carry one.
package exit

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
)

// The exit codes of kvfs.
const (
	OK       = 0
	Runtime  = 1 // an error at run time
	Usage    = 2 // wrong usage: unknown command or flag, wrong number of arguments
	Config   = 3 // the configuration is refused
	Mount    = 4 // the mount failed
	NotMount = 5 // not a kvfs mount, or its daemon does not run
)

// coded is an error with the exit code of the process.
type coded struct {
	code int
	err  error
}

// With gives err an exit code, also one outside the list above. It returns nil for nil.
func With(code int, err error) error {
	if err == nil {
		return nil
	}
	return &coded{code: code, err: err}
}

// Error returns the text of the error.
func (e *coded) Error() string { return e.err.Error() }

// Unwrap returns the error without its code.
func (e *coded) Unwrap() error { return e.err }

// Code returns the code of err from With, else the code of its kind.
func Code(err error) int {
	if coded, ok := errors.AsType[*coded](err); ok {
		return coded.code
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return Config
	}
	return Runtime
}

// Each returns the errors joined in err, or err alone.
func Each(err error) []error {
	inner := err
	if coded, ok := err.(*coded); ok {
		inner = coded.err
	}
	if joined, ok := inner.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		if _, whole := inner.(*config.Error); !whole {
			return joined.Unwrap()
		}
	}
	return []error{err}
}

// InUsage returns an error in the command line of command: one line that ends with the name of its help.
func InUsage(command, format string, args ...any) error {
	return With(Usage, fmt.Errorf("%w (see %s --help)", fmt.Errorf(format, args...), command))
}
