package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of what commands read and ask.
const (
	requestBytes = 8 << 20    // of the names in one request, as JSON: half of what the daemon takes
	requestNames = 100_000    // in one request
	maxNames     = 20_000_000 // in one command line with its standard input
	maxAnswer    = 256 << 20  // bytes of one line of an answer
	maxDocument  = 16 << 20   // bytes of a file that becomes part of a request
)

// controls is where commands find the mounts and reach their daemons.
type controls struct {
	mounts   []*mountinfo.Info
	open     func(path string) (io.ReadWriteCloser, error) // a control file, for reading and writing
	setxattr func(path, attr, value string) error
	answers  func(mount string) error // nil: not asked
}

// connector makes the controls for one run of a command.
type connector func() (*controls, error)

// systemControls are those of the mounts of this system.
func systemControls() (*controls, error) {
	table, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return &controls{mounts: table, open: openControl, setxattr: setxattr, answers: mounts.Answers}, nil
}

// openControl opens a control file. Unlike those of os.Open, its descriptor can be
// closed while a read waits for the daemon, without waiting, too: the kernel closes
// it when the read ends, or with the process.
func openControl(path string) (io.ReadWriteCloser, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		default:
			return os.NewFile(uintptr(fd), path), nil
		}
	}
}

// setxattr sets an extended attribute of a file, not of what a link leads to.
func setxattr(path, attr, value string) error {
	for {
		if err := unix.Lsetxattr(path, attr, []byte(value), 0); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// locate returns the one mount that all names are in, and their paths below it. It fails if nobody
// answers that mount.
func (c *controls) locate(names []string) (mount string, paths []string, err error) {
	mount, paths, err = belowMount(c.mounts, names)
	if err == nil && c.answers != nil {
		if err := c.answers(mount); err != nil {
			return "", nil, explainStatus(mount, err)
		}
	}
	return mount, paths, exit.With(exit.NotMount, err)
}

// root returns the mount at dir, as the mount table has it.
func (c *controls) root(dir string) (string, error) {
	mount, paths, err := c.locate([]string{dir})
	if err == nil && paths[0] != "." {
		err = exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: it is in the one at %s", dir, mount))
	}
	return mount, err
}

// dialogue is an open control file, to ask one thing after the other.
type dialogue struct {
	mount string
	file  io.ReadWriteCloser
}

// dial opens a control file of the daemon of a mount.
func (c *controls) dial(mount, name string) (*dialogue, error) {
	file, err := c.open(filepath.Join(mount, block.Reserved, name))
	switch {
	case err == nil:
		return &dialogue{mount, file}, nil
	case errors.Is(err, iofs.ErrPermission):
		return nil, fmt.Errorf("%w: only root and the user of the daemon may ask it, and some of it whom control.users and control.group name", err)
	case errors.Is(err, iofs.ErrNotExist):
		if _, other := os.Lstat(filepath.Join(mount, block.Reserved, "status")); other == nil {
			return nil, fmt.Errorf("the daemon of %s has no %s: it is of an older version", mount, filepath.Join(block.Reserved, name))
		}
	}
	return nil, explainStatus(mount, err)
}

// Close cancels what runs.
func (d *dialogue) Close() error { return d.file.Close() }

// send writes one request.
func (d *dialogue) send(request any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	_, err = d.file.Write(append(text, '\n'))
	return explainStatus(d.mount, err)
}

// answerLine is one line of an answer, or the error of reading it.
type answerLine struct {
	text []byte
	err  error
}

// lines reads an answer until its end, at which the channel is closed, or until ctx
// is done.
func (d *dialogue) lines(ctx context.Context) <-chan answerLine {
	out := make(chan answerLine, 64)
	give := func(line answerLine) bool {
		select {
		case out <- line:
			return true
		case <-ctx.Done():
			return false
		}
	}
	// Ends with the answer, or with ctx and the next line; if the daemon never
	// answers, with the process.
	go func() {
		defer close(out)
		in := bufio.NewScanner(d.file)
		in.Buffer(make([]byte, 0, 64<<10), maxAnswer)
		for in.Scan() {
			if !give(answerLine{text: bytes.Clone(in.Bytes())}) {
				return
			}
		}
		if err := in.Err(); err != nil {
			give(answerLine{err: explainStatus(d.mount, err)})
		}
	}()
	return out
}

// ask sends one request and calls each with every line of its answer, until the end,
// an error, or the end of ctx. After an error the dialogue is good for nothing but
// Close, unless it is a refusal.
func (d *dialogue) ask(ctx context.Context, request any, each func(line []byte) error) error {
	if err := d.send(request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := d.lines(ctx)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case line, more := <-lines:
			switch {
			case !more && n == 0:
				return errors.New("the daemon has given no answer")
			case !more:
				return nil
			case line.err != nil:
				return line.err
			}
			if err := refused(line.text); err != nil {
				return err
			}
			if err := each(line.text); err != nil {
				return fmt.Errorf("answer of the daemon: %w", err)
			}
		}
	}
}

// askInto is ask for an answer of one line, which is decoded into answer.
func (d *dialogue) askInto(ctx context.Context, request, answer any) error {
	return d.ask(ctx, request, func(line []byte) error { return json.Unmarshal(line, answer) })
}

// refusal is what the daemon answers to a request that it cannot obey.
type refusal struct {
	Text  string `json:"error"`
	Field string `json:"field"` // JSON Pointer into the request; may be empty
}

// Error returns the text, with the field that is to blame.
func (r *refusal) Error() string {
	if r.Field == "" {
		return r.Text
	}
	return fmt.Sprintf("%s (field %s)", r.Text, r.Field)
}

// refused returns the refusal that a line of an answer is, else nil.
func refused(line []byte) error {
	var r refusal
	if json.Unmarshal(line, &r) != nil || r.Text == "" {
		return nil // what is no JSON at all is seen by who wants to have it
	}
	return &r
}

// blame adds to a refusal the name that it is about, where that is one of names.
func blame(err error, names []string) error {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		return err
	}
	parts := strings.Split(r.Field, "/")
	if len(parts) < 3 || parts[1] != "keys" && parts[1] != "hashes" {
		return err
	}
	if i, bad := strconv.Atoi(parts[2]); bad == nil && i >= 0 && i < len(names) {
		return fmt.Errorf("%q: %w", names[i], err)
	}
	return err
}

// errNoNames is that of readNames about an empty list, which is nothing to do, successfully.
var errNoNames = errors.New("standard input has no names: nothing to do")

// readNames returns the names in args, with those that stdin has, one a line or,
// with nul, each ended by a NUL byte, in the place of "-". If there are none at all it
// fails with errNoNames, which is for doneNothing.
func readNames(args []string, stdin io.Reader, nul bool) ([]string, error) {
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
		return nil, errNoNames
	}
	return names, nil
}

// doneNothing ends a command with what its names could not be read for: if there are none
// it says so, and succeeds. print, which may be nil, then writes the answer for --json.
func doneNothing(cmd *cobra.Command, err error, print func(w io.Writer) error) error {
	if !errors.Is(err, errNoNames) {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), err)
	if print == nil {
		return nil
	}
	return print(cmd.OutOrStdout())
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

// checkText fails for names that cannot stand in a request, as JSON is UTF-8.
func checkText(names []string, hint string) error {
	for _, name := range names {
		if !utf8.ValidString(name) {
			return fmt.Errorf("%q is not UTF-8: %s", name, hint)
		}
	}
	return nil
}

// cutBatch returns the names of the next request and the rest.
func cutBatch(names []string) (batch, rest []string) {
	size := 0
	for i, name := range names {
		text, _ := json.Marshal(name) // a string always has a JSON form
		if size += len(text) + 1; (size > requestBytes || i >= requestNames) && i > 0 {
			return names[:i], names[i:]
		}
	}
	return names, nil
}

// belowMount returns the one mount that all names are in, and their paths below
// it. It does not look at what is in the mount: a look-up is a promise that the
// block stays for a while, and would keep it from being evicted.
func belowMount(table []*mountinfo.Info, names []string) (mount string, paths []string, err error) {
	dirs := map[string]string{} // by directory as it was named
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

// resolveOutside follows the symbolic links in an absolute path, up to where a
// kvfs mount begins. What cannot be resolved stays as it is.
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

// mountOf returns the kvfs mount that the absolute path is in, and the path below
// it, "." for the mount itself.
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

// readDocument reads a file, or stdin for "-", that has to be one JSON object.
func readDocument(name string, stdin io.Reader) (json.RawMessage, error) {
	in, shown := stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, shown = f, name
	}
	text, err := io.ReadAll(io.LimitReader(in, maxDocument/2+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown, show.Reason(err))
	}
	if len(text) > maxDocument/2 {
		return nil, fmt.Errorf("%s: more than %d bytes", shown, maxDocument/2)
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

// needNames is the check of arguments of commands that want names of blocks.
func needNames(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError(cmd, "which blocks? Name them, or give - to read names from standard input")
	}
	return nil
}

// nulFlag adds -0.
func nulFlag(cmd *cobra.Command, nul *bool) {
	cmd.Flags().BoolVarP(nul, "null", "0", false, "names from standard input end with a NUL byte, not with a line")
}
