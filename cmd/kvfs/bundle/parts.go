package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// Machine returns the parts about the machine, with proc below root.
func Machine(root string) []Part {
	return []Part{
		{"kernel.txt", file(filepath.Join(root, "proc/version"))},
		{"mounts.txt", func(context.Context) ([]byte, error) { return mountLines(root) }},
		{"limits.txt", file(filepath.Join(root, "proc/self/limits"))},
	}
}

// Mount returns the parts that the mount at dir tells by its control files.
func Mount(dir string) []Part {
	var parts []Part
	for _, p := range []struct{ file, name string }{{"status", "status.json"}, {"metrics", "metrics.txt"}, {"members", "members.json"}, {"jobs", "jobs.json"}} {
		parts = append(parts, Part{p.name, func(context.Context) ([]byte, error) { return client.Read(dir, p.file, mounts.Timeout) }})
	}
	return parts
}

// Daemon returns the parts about the process of a daemon, with proc below root and its socket for pprof.
func Daemon(root string, pid int, socket string) []Part {
	proc := filepath.Join(root, "proc", strconv.Itoa(pid))
	return []Part{
		{"daemon-limits.txt", file(filepath.Join(proc, "limits"))},
		{"daemon-process.txt", file(filepath.Join(proc, "status"))},
		{"goroutines.txt", profile(socket, "goroutine?debug=2")},
		{"heap.pb.gz", profile(socket, "heap")},
		{"log.txt", func(context.Context) ([]byte, error) { return logOf(proc) }},
	}
}

// NoDaemon returns the one part about a daemon that is not there: its error.
func NoDaemon() []Part {
	return []Part{{"daemon", func(context.Context) ([]byte, error) { return nil, errors.New("its process is dead or not known") }}}
}

// file returns the content of a file of the machine.
func file(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return os.ReadFile(path) }
}

// mountLines returns the lines of the mount table about kvfs: the mounts, and their memory.
func mountLines(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	var ours bytes.Buffer
	for line := range strings.Lines(string(text)) {
		_, what, _ := strings.Cut(line, " - ")
		if f := strings.Fields(what); len(f) > 1 && (f[0] == mounts.Type || f[0] == "tmpfs" && f[1] == "kvfs") {
			ours.WriteString(line)
		}
	}
	return ours.Bytes(), nil
}

// maxProfile bounds a profile, and maxLog the end of the log, in bytes.
const (
	maxProfile = 64 << 20
	maxLog     = 4 << 20
)

// profile asks a daemon for a profile of pprof.
func profile(socket, name string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		if socket == "" {
			return nil, errors.New("this user has no directory for the sockets of daemons: XDG_RUNTIME_DIR is not set")
		}
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
		ctx, cancel := context.WithTimeout(ctx, mounts.Timeout)
		defer cancel()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kvfs/debug/pprof/"+name, nil)
		if err != nil {
			return nil, err
		}
		reply, err := c.Do(q)
		if err != nil {
			return nil, err
		}
		defer reply.Body.Close()
		if reply.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the daemon answers %s", reply.Status)
		}
		return io.ReadAll(io.LimitReader(reply.Body, maxProfile))
	}
}

// logOf returns the end of the log of a process, if its standard error is a file.
func logOf(proc string) ([]byte, error) {
	f, err := os.Open(filepath.Join(proc, "fd", "2"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("the daemon does not log to a file")
	}
	from := max(info.Size()-maxLog, 0)
	return io.ReadAll(io.NewSectionReader(f, from, maxLog))
}
