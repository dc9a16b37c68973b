// Loopback mounts a directory through go-fuse's loopback file system, with the options of go-fuse's
// own example (v2.12.1, example/loopback/main.go): entries and attributes cached for a second,
// passthrough if the kernel and the user's capabilities allow it. The benchmark compares kvfs with
// it.
//
//	loopback MOUNTPOINT ORIGINAL
//
// If descriptor 3 is open, one line is written to it when the mount is ready.
// SIGTERM and SIGINT unmount.
package main

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: loopback MOUNTPOINT ORIGINAL")
		os.Exit(2)
	}
	server, err := mount(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// Ends with the process: after a busy unmount the next signal tries again.
	go func() {
		for range signals {
			if err := server.Unmount(); err != nil {
				log.Print(err)
			}
		}
	}()
	ready := os.NewFile(3, "ready")
	fmt.Fprintln(ready, "ready") // fails, harmlessly, without the descriptor
	ready.Close()
	server.Wait()
}

func mount(dir, original string) (*fuse.Server, error) {
	root, err := fusefs.NewLoopbackRoot(original)
	if err != nil {
		return nil, err
	}
	second := time.Second
	return fusefs.Mount(dir, root, &fusefs.Options{
		AttrTimeout:     &second,
		EntryTimeout:    &second,
		NullPermissions: true,
		MountOptions:    fuse.MountOptions{FsName: original, Name: "loopback"},
	})
}
