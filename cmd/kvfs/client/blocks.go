package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/kvfs/kvfs/fs/query"
)

// Naming is the way in which a command line names blocks: by path, or by hash.
type Naming struct {
	Mount, Group, Template string // of hashes; Mount is empty for paths
	Ranks                  int
	Request                string // name of this request in logs
	NUL, Escaped           bool   // how names are written
}

// Blocks are the blocks of one command line.
type Blocks struct {
	Mount  string
	Names  []string // as given
	Paths  []string // below the mount; nil if names are hashes
	Shared BlockRequest
}

// BlockRequest is the part of requests that names blocks.
type BlockRequest struct {
	Keys     []string `json:"keys,omitempty"`
	Hashes   []string `json:"hashes,omitempty"`
	Group    string   `json:"group,omitempty"`
	Template string   `json:"template,omitempty"`
	Ranks    int      `json:"ranks,omitempty"`
	Escaped  bool     `json:"escaped,omitempty"`
	Request  string   `json:"request,omitempty"`
}

// Open connects, reads the names of the blocks, and begins a dialogue with a control file of
// their mount. The caller closes it.
func (b *Naming) Open(connect Connector, stdin io.Reader, args []string, file string) (*Controls, *Blocks, *Dialogue, error) {
	c, err := connect()
	if err != nil {
		return nil, nil, nil, err
	}
	blocks, err := b.read(c, stdin, args)
	if err != nil {
		return nil, nil, nil, err
	}
	d, err := c.Dial(blocks.Mount, file)
	return c, blocks, d, err
}

// read reads the names, and finds their mount.
func (b *Naming) read(c *Controls, stdin io.Reader, args []string) (*Blocks, error) {
	names, err := ReadNames(args, stdin, b.NUL)
	if errors.Is(err, ErrNoNames) && b.Mount != "" {
		if _, wrong := c.Root(b.Mount); wrong != nil {
			return nil, wrong
		}
	}
	if err != nil {
		return nil, err
	}
	for i := 0; b.Escaped && i < len(names); i++ {
		name, err := query.Unescape(names[i])
		if err != nil {
			return nil, fmt.Errorf("%q: not an escape of Go (write \\\\ for a backslash)", names[i])
		}
		names[i] = name
	}
	n := &Blocks{Names: names, Shared: BlockRequest{Escaped: b.Escaped, Request: b.Request}}
	if b.Mount == "" {
		if n.Mount, n.Paths, err = c.Locate(names); err == nil {
			err = n.openMount()
		}
		return n, err
	}
	n.Shared.Group, n.Shared.Template = b.Group, b.Template
	if b.Ranks > 1 {
		n.Shared.Ranks = b.Ranks
	}
	n.Mount, err = c.Root(b.Mount)
	return n, err
}

// openMount replaces the mount itself among the names by the entries in it: the daemon has no name for it.
func (n *Blocks) openMount() error {
	at := slices.Index(n.Paths, ".")
	if at < 0 {
		return nil
	}
	entries, err := os.ReadDir(n.Mount)
	if err != nil {
		return err
	}
	root := n.Names[at]
	n.Names, n.Paths = slices.Delete(n.Names, at, at+1), slices.Delete(n.Paths, at, at+1)
	for _, e := range entries {
		n.Names, n.Paths = append(n.Names, filepath.Join(root, e.Name())), append(n.Paths, e.Name())
	}
	return n.openMount()
}

// Asked returns the names in the form of requests.
func (n *Blocks) Asked() []string {
	if n.Paths != nil {
		return n.Paths
	}
	return n.Names
}

// Request names a batch of blocks. It escapes all if one of them is not UTF-8, which JSON needs.
func (n *Blocks) Request(batch []string) BlockRequest {
	q := n.Shared
	q.Escaped = q.Escaped || slices.ContainsFunc(batch, func(name string) bool { return !utf8.ValidString(name) })
	if q.Escaped {
		batch = slices.Clone(batch)
		for i := range batch {
			batch[i] = query.Escape(batch[i])
		}
	}
	if n.Paths != nil {
		q.Keys = batch
	} else {
		q.Hashes = batch
	}
	return q
}

// IsDir reports whether the name at a position is a directory.
func (n *Blocks) IsDir(i int) bool {
	if n.Paths == nil {
		return false // it is a hash
	}
	info, err := os.Lstat(filepath.Join(n.Mount, n.Paths[i]))
	return err == nil && info.IsDir()
}

// Below returns the blocks below the directories at some positions, with names in the form of
// the given ones. It reports what cannot be listed to failed, with its name.
func (n *Blocks) Below(ctx context.Context, c *Controls, dirs []int, failed func(name string, err error)) (*Blocks, error) {
	all := &Blocks{Mount: n.Mount, Paths: []string{}, Shared: n.Shared}
	for _, i := range dirs {
		top := filepath.Join(n.Mount, n.Paths[i])
		named := func(path string) string { return filepath.Join(n.Names[i], path[len(top):]) }
		err := c.WalkBlocks(top, func(path string) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if len(all.Names) == maxNames {
				return fmt.Errorf("more than %d blocks; name the directories below it instead", maxNames)
			}
			rel, err := filepath.Rel(n.Mount, path)
			all.Names, all.Paths = append(all.Names, named(path)), append(all.Paths, rel)
			return err
		}, func(dir string, err error) { failed(named(dir), err) })
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
