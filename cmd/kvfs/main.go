// Command kvfs mounts a directory in which every KV-cache block of an inference engine is a file.
//
// # Exit codes
//
//	0  success
//	1  runtime error
//	2  wrong usage: unknown command or flag, wrong number of arguments, no mount named where there are several
//	3  configuration refused; every error is reported, one a line
//	4  the mount failed
//	5  not a kvfs mount, or its daemon does not run
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// The main thread stays with the main goroutine, which only waits. The kernel delivers signals to that thread
// first, and a thread stuck in a device's read would hold SIGTERM up. /proc/self also shows the descriptors of
// that thread, so it must not be one that fs sets apart (fs/device/isolate.go).
func init() { runtime.LockOSThread() }

func main() {
	if code, is := daemon.Watcher(os.Args); is {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line, without the program's name, and returns its exit code. Results
// go to stdout, errors to stderr, one a line.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return exit.OK
	}
	for _, e := range exit.Each(err) {
		fmt.Fprintf(stderr, "kvfs: %v\n", show.Lines(e.Error()))
	}
	return exit.Code(err)
}
