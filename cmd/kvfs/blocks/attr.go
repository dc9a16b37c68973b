package blocks

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// The attributes that may be set.
const (
	AttrPinned = "user.kvfs.pinned"
	AttrTTL    = "user.kvfs.ttl"
)

// AttrChange is one attribute to be set on many blocks.
type AttrChange struct {
	Attr, Value string
	Done        string // format of what then is said of the blocks; its argument is how many, in words
	JSON        bool   // how many were changed is printed as JSON, with the first errors
}

// Run sets the attribute on all paths below a mount, and on all blocks below those that are directories.
// names are what the paths were called. It prints how many were changed, and fails if some could not be.
func (a *AttrChange) Run(s Streams, c *client.Controls, mount string, paths, names []string) error {
	var done int64
	var failed client.Failures
	for i, name := range names {
		if err := a.changeAll(c, filepath.Join(mount, paths[i]), name, &done, &failed); err != nil {
			return client.Explain(mount, err)
		}
	}
	if err := a.print(s.Out, done, &failed); err != nil {
		return err
	}
	return failed.Err("%d of %s could not be changed", failed.Total, show.Blocks(failed.Total+done))
}

// print writes what was done.
func (a *AttrChange) print(w io.Writer, done int64, failed *client.Failures) error {
	if a.JSON {
		return show.JSON(w, struct {
			Changed int64              `json:"changed"`
			Failed  int64              `json:"failed"`
			Errors  []client.PathError `json:"errors,omitempty"`
		}{done, failed.Total, failed.First})
	}
	_, err := fmt.Fprintf(w, a.Done+"\n", show.Blocks(done))
	return err
}

// PrintNone returns what writes the answer about no blocks; nil where that is nothing.
func (a *AttrChange) PrintNone() func(io.Writer) error {
	if !a.JSON {
		return nil
	}
	return func(w io.Writer) error { return a.print(w, 0, &client.Failures{}) }
}

// changeAll sets the attribute on a block, or on all below a directory, which name
// stands for in errors. Its error is that of a mount whose daemon is gone.
func (a *AttrChange) changeAll(c *client.Controls, path, name string, done *int64, failed *client.Failures) error {
	set := func(path, name string) error {
		err := c.Setxattr(path, a.Attr, a.Value)
		switch {
		case err == nil:
			*done++
		case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EISDIR):
			return err
		default:
			failed.Add(name, err.Error())
		}
		return nil
	}
	err := set(path, name)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	// Names below are shown as if they had been given.
	shown := func(below string) string { return filepath.Join(name, below[len(path):]) }
	return c.WalkBlocks(path, func(block string) error {
		err := set(block, shown(block))
		if errors.Is(err, unix.EISDIR) { // it was replaced by a directory
			failed.Add(shown(block), err.Error())
			return nil
		}
		return err
	}, func(dir string, err error) { failed.Add(shown(dir), err.Error()) })
}
