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

// The attributes that commands set.
const (
	AttrPinned = "user.kvfs.pinned"
	AttrTTL    = "user.kvfs.ttl"
)

// AttrChange sets one attribute on many blocks.
type AttrChange struct {
	Attr, Value string
	Done        string // format of the result; its argument is the number of blocks, in words
	JSON        bool   // print the number of changed blocks and the first errors as JSON
}

// Run sets the attribute on all paths below a mount, and on all blocks below directories among
// them. names are the paths as they were given. It prints how many were changed, and fails if
// some could not be.
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

// PrintNone returns the function that writes the answer for no blocks, or nil if there is
// nothing to write.
func (a *AttrChange) PrintNone() func(io.Writer) error {
	if !a.JSON {
		return nil
	}
	return func(w io.Writer) error { return a.print(w, 0, &client.Failures{}) }
}

// changeAll sets the attribute on a block, or on all blocks below a directory. name stands for
// path in errors. It fails if the daemon of the mount is gone.
func (a *AttrChange) changeAll(c *client.Controls, path, name string, done *int64, failed *client.Failures) error {
	set := func(path, name string) error {
		err := c.Setxattr(path, a.Attr, a.Value)
		switch {
		case err == nil:
			*done++
		case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EISDIR):
			return err
		case errors.Is(err, unix.EDQUOT):
			failed.Add(name, "the quota of pinned bytes of its group, its owner or its cgroup is used up: see kvfs quota")
		default:
			failed.Add(name, err.Error())
		}
		return nil
	}
	err := set(path, name)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	// Names below a directory are shown in the form of the given name.
	shown := func(below string) string { return filepath.Join(name, below[len(path):]) }
	return c.WalkBlocks(path, func(block string) error {
		err := set(block, shown(block))
		if errors.Is(err, unix.EISDIR) { // a directory has replaced it
			failed.Add(shown(block), err.Error())
			return nil
		}
		return err
	}, func(dir string, err error) { failed.Add(shown(dir), err.Error()) })
}
