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
	iofs "io/fs"
	"os"
	"path/filepath"
	"time"

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
		return writeTo(path, text)
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

// writeTo writes to what is there already.
func writeTo(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// pack returns the archive.
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
