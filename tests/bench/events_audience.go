package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"

	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

type audienceCounts struct{ Each []listenerCounts }

type listenerCounts struct {
	Units int64 // lines
	Gaps  int64
}

// listener counts what one of the audience gets.
type listener struct{ units, gaps atomic.Int64 }

// playAudience listens until in ends. For each line of in it writes the counts so far.
func playAudience(r role, in io.Reader, out io.Writer) {
	// A processor for each listener in a system call, and some for the rest.
	runtime.GOMAXPROCS(runtime.NumCPU() + r.Count)
	// No collection, because it would wait for listeners in a system call; there is almost nothing to collect.
	debug.SetGCPercent(-1)
	list := make([]listener, r.Count)
	failed := make(chan error, r.Count)
	for i := range list {
		l := &list[i]
		go func() { // Ends with the process.
			runtime.LockOSThread()
			failed <- errors.Join(blockPreemption(), try(func() {
				l.follow(bareFile(open(get(unix.BytePtrFromString(r.Path)), unix.O_RDONLY)))
			}))
		}()
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		select {
		case err := <-failed:
			must(err)
		default:
		}
		var counts audienceCounts
		for i := range list {
			counts.Each = append(counts.Each, listenerCounts{list[i].units.Load(), list[i].gaps.Load()})
		}
		must(json.NewEncoder(out).Encode(counts))
	}
}

// bareFile reads with bare system calls, as client does, so that the Go scheduler adds nothing to the cost of the
// audience.
type bareFile int

// Read implements io.Reader.
func (f bareFile) Read(p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(f), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, os.NewSyscallError("read events", errno)
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

const gapLine = `{"event": "gap"`

func (l *listener) follow(from io.Reader) {
	const keep = len(gapLine) - 1 // A gap may be cut by the end of a read.
	buf := make([]byte, keep+128*kib)
	for {
		text := buf[:keep+get(from.Read(buf[keep:]))]
		l.units.Add(int64(bytes.Count(text[keep:], []byte{'\n'})))
		if gaps := bytes.Count(text, []byte(gapLine)); gaps > 0 {
			l.gaps.Add(int64(gaps))
		}
		copy(buf, text[len(text)-keep:])
	}
}
