package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// roleEnv makes this program a child of itself. It has the role as JSON.
const roleEnv = "BENCH_ROLE"

// role is the task of a child: to be a loopback.
type role struct {
	Mount string // the mount point
	Path  string // the directory below
}

// childArgs returns the command line of a child with a role.
func childArgs(r role) []string {
	// A server has the environment of this program; env(1) adds to it and becomes the child.
	return []string{"env", roleEnv + "=" + string(get(json.Marshal(r))), get(os.Executable()), "-test.run=^TestRole$"}
}

// play runs a child.
func play(text string) error {
	return try(func() {
		var r role
		must(json.Unmarshal([]byte(text), &r))
		runtime.UnlockOSThread() // see init: it starts no children
		playLoopback(r)
	})
}

// playLoopback mounts a directory through go-fuse's loopback file system, with the options of go-fuse's own example
// (v2.12.1, example/loopback/main.go): entries and attributes cached for a second, passthrough if the kernel and the
// user's capabilities allow it. SIGTERM unmounts.
func playLoopback(r role) {
	second := time.Second
	server := get(fusefs.Mount(r.Mount, get(fusefs.NewLoopbackRoot(r.Path)), &fusefs.Options{
		AttrTimeout: &second, EntryTimeout: &second, NullPermissions: true,
		MountOptions: fuse.MountOptions{FsName: r.Path, Name: "loopback"},
	}))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() { // ends with the process: after a busy unmount the next signal tries again
		for range signals {
			if err := server.Unmount(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	ready := os.NewFile(3, "ready")
	fmt.Fprintln(ready, "ready")
	ready.Close()
	server.Wait()
}
