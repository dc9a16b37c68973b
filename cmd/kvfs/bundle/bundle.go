// Package bundle makes the archive of kvfs debug bundle: what is known of a machine and of a daemon, for a report of a
// fault. It collects parts (Collect) and writes them as one tar.gz (Write). What could not be had is a line in the
// file errors.txt of the archive.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Part is one file of a bundle. Read ends soon after its context, or it is given up.
type Part struct {
	Name string
	Read func(context.Context) ([]byte, error)
}

// File is a part with its content.
type File struct {
	Name string
	Text []byte
}

// errorsName is the file with what could not be had.
const errorsName = "errors.txt"

// ErrLate reports a part that has not come in time.
var ErrLate = errors.New("no answer in time")

// Collect reads all parts at a time, each for at most the deadline. It returns those that came, and errors.txt for the
// others, if any.
func Collect(ctx context.Context, parts []Part, deadline time.Duration) []File {
	type result struct {
		text []byte
		err  error
	}
	calls := make([]func(context.Context) result, len(parts))
	for i, p := range parts {
		calls[i] = func(ctx context.Context) result {
			text, err := p.Read(ctx)
			return result{text, err}
		}
	}
	var files []File
	var lost bytes.Buffer
	for i, r := range mounts.Within(ctx, deadline, calls) {
		name := parts[i].Name
		if r == nil {
			r = &result{err: fmt.Errorf("%w: %v", ErrLate, deadline)}
		}
		if r.err != nil {
			fmt.Fprintf(&lost, "%s: %s\n", name, show.Text(r.err.Error()))
		}
		if len(r.text) > 0 {
			files = append(files, File{name, r.text})
		}
	}
	if lost.Len() > 0 {
		files = append(files, File{errorsName, lost.Bytes()})
	}
	return files
}

// Write writes the files to the archive at path, in the directory dir of the archive. Only the user may read it. A file
// at path is replaced when the archive is complete; after an error nothing is left. A device or a pipe is written to.
func Write(path, dir string, files []File, now time.Time) error {
	text, err := pack(dir, files, now)
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, text, 0)
	} else if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".kvfs-bundle-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = temp.Write(text)
	if err == nil {
		err = temp.Sync()
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", path, show.Reason(err)), os.Remove(temp.Name()))
	}
	return nil
}

func pack(dir string, files []File, now time.Time) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	t := tar.NewWriter(zip)
	for _, f := range files {
		h := &tar.Header{Name: dir + "/" + f.Name, Mode: 0o600, Size: int64(len(f.Text)), ModTime: now}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.Text); err != nil {
			return nil, err
		}
	}
	err := errors.Join(t.Close(), zip.Close())
	return out.Bytes(), err
}

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

// Daemon returns the parts about the process of a daemon, with proc below root and its socket for pprof. Process 0 is dead or
// not known.
func Daemon(root string, pid int, socket string) []Part {
	if pid == 0 {
		return []Part{{"daemon", func(context.Context) ([]byte, error) { return nil, errors.New("its process is dead or not known") }}}
	}
	proc := filepath.Join(root, "proc", strconv.Itoa(pid))
	return []Part{
		{"daemon-limits.txt", file(filepath.Join(proc, "limits"))},
		{"daemon-process.txt", file(filepath.Join(proc, "status"))},
		{"goroutines.txt", profile(socket, "goroutine?debug=2")},
		{"heap.pb.gz", profile(socket, "heap")},
		{"log.txt", func(context.Context) ([]byte, error) { return logOf(proc) }},
	}
}

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
