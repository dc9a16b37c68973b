package client

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// shownFailures is how many failures a command names.
const shownFailures = 5

// Failures are the first failures of a command, and their number.
type Failures struct {
	First []PathError
	Total int64
}

// PathError is a path, and its fault.
type PathError struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// Add counts a failure, and keeps it if it is among the first.
func (f *Failures) Add(path, why string) {
	f.Total++
	if len(f.First) < shownFailures {
		f.First = append(f.First, PathError{path, why})
	}
}

// Err names the first failures, one a line, and their number. It is nil if there are none.
func (f *Failures) Err(format string, args ...any) error {
	if f.Total == 0 {
		return nil
	}
	var all []error
	for _, e := range f.First {
		all = append(all, fmt.Errorf("%s: %s", show.Text(e.Path), show.Text(e.Error)))
	}
	if f.Total == 1 && len(all) == 1 {
		return all[0]
	}
	return errors.Join(append(all, fmt.Errorf(format, args...))...)
}
