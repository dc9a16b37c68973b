package client

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// shownFailures is how many failures a command names.
const shownFailures = 5

// Failures are what a command could not do: the first of them, and how many.
type Failures struct {
	First []PathError
	Total int64
}

// PathError is a path, and what is wrong with it.
type PathError struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// Add counts one, and keeps it if it is among the first.
func (f *Failures) Add(path, why string) {
	f.Total++
	if len(f.First) < shownFailures {
		f.First = append(f.First, PathError{path, why})
	}
}

// Err names the first failures, one a line, and then says how many there are. It is
// nil if there are none.
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
