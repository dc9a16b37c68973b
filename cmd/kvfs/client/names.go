package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
)

// ErrNoNames reports an empty list of names: there is nothing to do, and the command succeeds.
var ErrNoNames = errors.New("standard input has no names: nothing to do")

// ReadNames returns the names in args. It replaces "-" by the names on stdin, one a line or,
// with nul, each ended by a NUL byte. It fails with ErrNoNames if there are none.
func ReadNames(args []string, stdin io.Reader, nul bool) ([]string, error) {
	var names []string
	for _, arg := range args {
		if arg != "-" {
			names = append(names, arg)
			continue
		}
		in := bufio.NewScanner(stdin)
		in.Buffer(nil, unix.PathMax*2)
		if nul {
			in.Split(scanNUL)
		}
		for in.Scan() {
			if name := in.Text(); name != "" {
				names = append(names, name)
			}
			if len(names) > maxNames {
				return nil, fmt.Errorf("standard input: more than %d names; give them in parts", maxNames)
			}
		}
		if err := in.Err(); errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("standard input: the name after %d others is too long: names are one a line, or with -0 end with a NUL byte", len(names))
		} else if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
	}
	if len(names) == 0 {
		return nil, ErrNoNames
	}
	return names, nil
}

// scanNUL splits at NUL bytes, as bufio.ScanLines does at ends of lines.
func scanNUL(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// CheckText fails for names that are not UTF-8: a request in JSON cannot hold them.
func CheckText(names []string, hint string) error {
	for _, name := range names {
		if !utf8.ValidString(name) {
			return fmt.Errorf("%q is not UTF-8: %s", name, hint)
		}
	}
	return nil
}

// CutBatch returns the names of the next request and the rest.
func CutBatch(names []string) (batch, rest []string) {
	size := 0
	for i, name := range names {
		text, _ := json.Marshal(name) // a string always has a JSON form
		if size += len(text) + 1; (size > requestBytes || i >= RequestNames) && i > 0 {
			return names[:i], names[i:]
		}
	}
	return names, nil
}

// ReadText reads a file of at most limit bytes, or stdin for "-". shown is its name in errors.
func ReadText(name string, stdin io.Reader, limit int) (text []byte, shown string, err error) {
	in, shown := stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, name, err
		}
		defer f.Close()
		in, shown = f, name
	}
	text, err = io.ReadAll(io.LimitReader(in, int64(limit)+1))
	switch {
	case err != nil:
		return nil, shown, fmt.Errorf("%s: %w", shown, show.Reason(err))
	case len(text) > limit:
		return nil, shown, fmt.Errorf("%s: more than %d bytes", shown, limit)
	}
	return text, shown, nil
}

// ReadDocument reads a file, or stdin for "-". The text must be one JSON object.
func ReadDocument(name string, stdin io.Reader) (json.RawMessage, error) {
	text, shown, err := ReadText(name, stdin, maxDocument/2)
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	err = json.Unmarshal(text, &object)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return nil, fmt.Errorf("%s: byte %d: %w", shown, syntax.Offset, err)
	}
	if err != nil || object == nil {
		return nil, fmt.Errorf("%s: not a JSON object", shown)
	}
	return bytes.TrimSpace(text), nil
}

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

// belowMount returns the one mount that all names are in, and their paths below it. It does not
// look at files in the mount: a look-up is a lease, and would keep a block from being evicted.
func belowMount(table []*mountinfo.Info, names []string) (mount string, paths []string, err error) {
	dirs := map[string]string{} // by directory, as given
	for _, name := range names {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", nil, err
		}
		dir, base := filepath.Split(abs)
		resolved, known := dirs[dir]
		if !known {
			resolved = resolveOutside(table, dir)
			dirs[dir] = resolved
		}
		m, path, err := mountOf(table, resolveOutside(table, filepath.Join(resolved, base)))
		switch {
		case err != nil:
			return "", nil, fmt.Errorf("%s %w", name, err)
		case mount == "":
			mount = m
		case mount != m:
			return "", nil, fmt.Errorf("%s is in the mount %s, others are in %s", name, m, mount)
		}
		paths = append(paths, path)
	}
	return mount, paths, nil
}

// resolveOutside follows the symbolic links in an absolute path, up to the beginning of a kvfs
// mount. It keeps what it cannot resolve.
func resolveOutside(table []*mountinfo.Info, path string) string {
	done := "/"
	for rest := range strings.SplitSeq(strings.Trim(filepath.Clean(path), "/"), "/") {
		next := filepath.Join(done, rest)
		if _, _, err := mountOf(table, next); err != nil {
			if resolved, err := filepath.EvalSymlinks(next); err == nil {
				next = resolved
			}
		}
		done = next
	}
	return done
}

// mountOf returns the kvfs mount that the absolute path is in, and the path below it, "." for the mount itself.
func mountOf(table []*mountinfo.Info, path string) (mount, below string, err error) {
	in := &mountinfo.Info{}
	for _, m := range table {
		inside := m.Mountpoint == path || m.Mountpoint == "/" || strings.HasPrefix(path, m.Mountpoint+"/")
		if inside && len(m.Mountpoint) >= len(in.Mountpoint) { // later ones lie on top
			in = m
		}
	}
	if in.FSType != mounts.Type {
		return "", "", errors.New("is not in a kvfs mount")
	}
	below, err = filepath.Rel(in.Mountpoint, path)
	return in.Mountpoint, below, err
}

// WalkBlocks calls each with the path of every file below a directory. It takes the types from the directories, and does not
// look at the files. It leaves out mounts inside. It reports a directory that cannot be read to failed, and goes on.
func (c *Controls) WalkBlocks(dir string, each func(path string) error, failed func(dir string, err error)) error {
	subs, err := c.readBlocks(dir, each, failed)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if slices.ContainsFunc(c.Mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == sub }) {
			continue
		}
		if err := c.WalkBlocks(sub, each, failed); err != nil {
			return err
		}
	}
	return nil
}

// readBlocks calls each with the blocks in a directory, and returns the directories below. Its error is that of each.
func (c *Controls) readBlocks(dir string, each func(path string) error, failed func(dir string, err error)) (subs []string, err error) {
	f, err := os.Open(dir)
	if err != nil {
		failed(dir, show.Reason(err))
		return nil, nil
	}
	defer f.Close()
	for {
		entries, readErr := f.ReadDir(4096)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case e.IsDir():
				subs = append(subs, path)
			case e.Type().IsRegular():
				if err := each(path); err != nil {
					return nil, err
				}
			}
		}
		if errors.Is(readErr, io.EOF) {
			return subs, nil
		}
		if readErr != nil {
			failed(dir, show.Reason(readErr))
			return subs, nil
		}
	}
}
