// Command kvfs mounts a directory in which every KV-cache block of an inference
// engine is a file.
//
// # Exit codes
//
//	0  success
//	1  runtime error
//	2  wrong usage: unknown command or flag, wrong number of arguments
//	3  configuration refused; every error is reported, one a line
//	4  the mount failed
//	5  not a kvfs mount, or its daemon does not run
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
)

// The exit codes, as documented above.
const (
	exitOK       = 0
	exitRuntime  = 1
	exitUsage    = 2
	exitConfig   = 3
	exitMount    = 4
	exitNotMount = 5
)

// The main thread stays with the main goroutine, which only waits: the kernel gives signals to that
// thread first, and one that is stuck in a device's read would keep SIGTERM for as long.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) == 2 && os.Args[1] == watchCommand {
		os.Exit(watchMount(os.NewFile(3, "goodbye"), os.NewFile(4, "abort"), os.NewFile(5, "mark")))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line, without the program's name, and returns its
// exit code. Results go to stdout, one line an error to stderr.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	for _, e := range flatten(err) {
		fmt.Fprintf(stderr, "kvfs: %v\n", shownLines(e.Error()))
	}
	return exitCode(err)
}

// codedError is an error with the exit code of the process.
type codedError struct {
	code int
	err  error
}

// withCode gives err an exit code. It returns nil for nil.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code: code, err: err}
}

// Error returns the text of the error.
func (e *codedError) Error() string { return e.err.Error() }

// Unwrap returns the error without its code.
func (e *codedError) Unwrap() error { return e.err }

// exitCode returns the code that err was given, else that of its kind.
func exitCode(err error) int {
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return exitConfig
	}
	return exitRuntime
}

// flatten returns the errors that were joined in err, or err alone.
func flatten(err error) []error {
	inner := err
	if coded, ok := err.(*codedError); ok {
		inner = coded.err
	}
	if joined, ok := inner.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		if _, whole := inner.(*config.Error); !whole {
			return joined.Unwrap()
		}
	}
	return []error{err}
}
