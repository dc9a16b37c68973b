package blocks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// List are the options of kvfs ls.
type List struct {
	Long      bool // one line an entry, with all that is known
	Recursive bool // all blocks below a directory, not its entries
	JSON      bool // one object an entry; it is long
}

// entry is one line of a long list.
type entry struct {
	Path   string    `json:"path"` // escaped
	Mode   string    `json:"mode"` // as ls has it
	Size   int64     `json:"size"` // bytes; 0 for a directory
	Mtime  time.Time `json:"mtime"`
	Tiers  []string  `json:"tiers"` // fastest first
	State  string    `json:"state"` // hit, pending, late, miss; empty: unknown, or a directory
	Pinned bool      `json:"pinned"`
}

// listBatch is how many entries are looked up, and printed, at once.
const listBatch = 1000

// Run lists a block, or the entries of a directory, by name.
func (l *List) Run(ctx context.Context, s Streams, connect client.Connector, path string) error {
	c, err := connect()
	if err != nil {
		return err
	}
	mount, below, err := c.Locate([]string{path})
	if err != nil {
		return err
	}
	top := filepath.Join(mount, below[0])
	var failed client.Failures
	files, err := l.files(c, top, func(dir string, err error) { failed.Add(dir, err.Error()) })
	if err != nil {
		return err
	}
	d, err := c.Dial(mount, "query")
	if err != nil && !errors.Is(err, iofs.ErrPermission) { // without it, tiers are those of this node
		return err
	}
	if d != nil {
		defer d.Close()
	}
	out := bufio.NewWriter(s.Out)
	for batch := range slices.Chunk(files, listBatch) {
		if err := l.print(ctx, out, d, mount, top, batch); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if failed.Total > 0 {
		return failed.Err("%d directories could not be listed", failed.Total)
	}
	return nil
}

// files returns the paths to list: of a block, the block.
func (l *List) files(c *client.Controls, top string, failed func(dir string, err error)) (files []string, err error) {
	info, err := os.Lstat(top)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{top}, nil
	}
	if l.Recursive {
		err = c.WalkBlocks(top, func(path string) error { files = append(files, path); return nil }, failed)
		slices.Sort(files)
		return files, err
	}
	names, err := os.ReadDir(top)
	for _, e := range names {
		files = append(files, filepath.Join(top, e.Name()))
	}
	return files, err
}

// print writes the lines of some files. A file that is gone by now has none.
func (l *List) print(ctx context.Context, out *bufio.Writer, d *client.Dialogue, mount, top string, files []string) error {
	if !l.Long && !l.JSON {
		for _, f := range files {
			fmt.Fprintln(out, show.Text(shortName(top, f)))
		}
		return nil
	}
	states, err := statesOf(ctx, d, mount, files)
	if err != nil {
		return err
	}
	for i, f := range files {
		e, err := entryOf(f, states[i])
		if errors.Is(err, iofs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		e.Path = show.Text(shortName(top, f))
		if l.JSON {
			err = json.NewEncoder(out).Encode(e)
		} else {
			_, err = fmt.Fprintln(out, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shortName returns the path of a file below the directory that is listed.
func shortName(top, file string) string {
	if file == top {
		return filepath.Base(file)
	}
	return file[len(top)+1:]
}

// statesOf returns the states of files, as the query exists has them. Without a dialogue they are spaces.
func statesOf(ctx context.Context, d *client.Dialogue, mount string, files []string) (string, error) {
	if d == nil {
		return strings.Repeat(" ", len(files)), nil
	}
	names := &client.Blocks{Mount: mount, Names: files}
	for _, f := range files {
		rel, err := filepath.Rel(mount, f)
		if err != nil {
			return "", err
		}
		names.Paths = append(names.Paths, rel)
	}
	look := &lookup{Lookup: &Lookup{NoLease: true, JSON: true}, d: d} // JSON: nothing is printed here
	return look.ask(ctx, names)
}

// entryOf finds out what is known of a file, which is in a state.
func entryOf(file string, state byte) (*entry, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	e := &entry{Mode: info.Mode().String(), Mtime: info.ModTime(), Tiers: []string{}}
	if info.IsDir() {
		return e, nil
	}
	e.Size = info.Size()
	words := stateWords[state]
	e.State = words[0]
	tiers, err := xattr(file, "user.kvfs.tier")
	if errors.Is(err, iofs.ErrPermission) { // one may not read the block: the query may know its fastest tier
		if e.State == "hit" {
			e.Tiers = append(e.Tiers, words[1])
		}
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	if tiers != "" {
		e.Tiers = strings.Split(tiers, ",")
	}
	if words[1] == "peer" && !slices.Contains(e.Tiers, "peer") {
		e.Tiers = append(e.Tiers, "peer")
	}
	pinned, err := xattr(file, "user.kvfs.pinned")
	e.Pinned = pinned == "1"
	return e, err
}

// xattr returns an attribute of a block.
func xattr(file, name string) (string, error) {
	var buf [256]byte
	for {
		n, err := unix.Lgetxattr(file, name, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &os.PathError{Op: "getxattr " + name, Path: file, Err: err}
		default:
			return string(buf[:n]), nil
		}
	}
}

// String returns the entry as a line for people.
func (e *entry) String() string {
	size, tiers, pinned, name := show.Bytes(e.Size), strings.Join(e.Tiers, ","), "-", e.Path
	switch {
	case e.Mode[0] == 'd':
		size, name = "-", name+"/"
	case tiers == "":
		tiers = e.State // pending
	}
	if e.Pinned {
		pinned = "pinned"
	}
	age := max(time.Since(e.Mtime), 0)
	if age > time.Minute {
		age = age.Round(time.Second)
	}
	return fmt.Sprintf("%s  %10s  %10v  %-11s  %-6s  %s", e.Mode, size, age.Round(time.Millisecond), show.OrDash(tiers), pinned, name)
}
