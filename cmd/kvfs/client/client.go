// Package client is how commands ask the daemons of mounts: they find the mount of the names of
// a command line (Controls, Naming), and read its control files or hold a dialogue with one of
// them (Read, Dialogue). Errors carry an exit code if it is not exit.Runtime.
package client

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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of what commands read and ask.
const (
	requestBytes = 8 << 20    // of the names in one request, as JSON: half of what the daemon takes
	maxNames     = 20_000_000 // in one command line, with its standard input
	maxAnswer    = 256 << 20  // bytes of one line of an answer
	maxDocument  = 16 << 20   // bytes of a file that becomes part of a request
)

// RequestNames is the largest number of names in one request.
const RequestNames = 100_000

// Controls finds the mounts and reaches their daemons.
type Controls struct {
	Mounts   []*mountinfo.Info
	Open     func(path string) (io.ReadWriteCloser, error) // a control file, for reading and writing
	Setxattr func(path, attr, value string) error
	answers  func(mount string) error // nil: not asked
}

// Connector makes the controls for one run of a command.
type Connector func() (*Controls, error)

// System returns the controls of the mounts of this system.
func System() (*Controls, error) {
	table, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return &Controls{Mounts: table, Open: openControl, Setxattr: setxattr, answers: mounts.Answers}, nil
}

// openControl opens a control file. Its descriptor can be closed without waiting while a read waits for
// the daemon, unlike that of os.Open: the kernel closes it when the read ends, or with the process.
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

// setxattr sets an extended attribute of a file. It does not follow a link.
func setxattr(path, attr, value string) error {
	for {
		if err := unix.Lsetxattr(path, attr, []byte(value), 0); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Locate returns the one mount that all names are in, and their paths below it. It fails if the daemon does not answer.
func (c *Controls) Locate(names []string) (mount string, paths []string, err error) {
	mount, paths, err = belowMount(c.Mounts, names)
	if err == nil && c.answers != nil {
		if err := c.answers(mount); err != nil {
			return "", nil, Explain(mount, err)
		}
	}
	return mount, paths, exit.With(exit.NotMount, err)
}

// Root returns the mount at dir, with the path in the mount table.
func (c *Controls) Root(dir string) (string, error) {
	mount, paths, err := c.Locate([]string{dir})
	if err == nil && paths[0] != "." {
		err = exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: it is a directory in the mount %s", dir, mount))
	}
	return mount, err
}

// Control opens a control file of the daemon of the mount at dir.
func (c *Controls) Control(dir, name string) (*Dialogue, error) {
	mount, err := c.Root(dir)
	if err != nil {
		return nil, err
	}
	return c.Dial(mount, name)
}

// Dial opens a control file of the daemon of a mount.
func (c *Controls) Dial(mount, name string) (*Dialogue, error) {
	file, err := c.Open(filepath.Join(mount, block.Reserved, name))
	switch {
	case err == nil:
		return &Dialogue{mount, file}, nil
	case errors.Is(err, iofs.ErrPermission):
		return nil, fmt.Errorf("%w: only root, the user of the daemon, and for some files the users of control.users and control.group may ask it", err)
	case errors.Is(err, iofs.ErrNotExist):
		if _, other := os.Lstat(filepath.Join(mount, block.Reserved, "status")); other == nil {
			return nil, fmt.Errorf("the daemon of %s has no %s: it runs an older version", mount, filepath.Join(block.Reserved, name))
		}
	}
	return nil, Explain(mount, err)
}

// Dialogue is an open control file, for one request after the other.
type Dialogue struct {
	Mount string // whose daemon is asked
	file  io.ReadWriteCloser
}

// Close cancels the running request.
func (d *Dialogue) Close() error { return d.file.Close() }

// Send writes one request.
func (d *Dialogue) Send(request any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	_, err = d.file.Write(append(text, '\n'))
	return Explain(d.Mount, err)
}

// Line is one line of an answer, or the error of reading it.
type Line struct {
	Text []byte
	Err  error
}

// Lines reads an answer until its end, which closes the channel, or until ctx is done.
func (d *Dialogue) Lines(ctx context.Context) <-chan Line {
	out := make(chan Line, 64)
	give := func(line Line) bool {
		select {
		case out <- line:
			return true
		case <-ctx.Done():
			return false
		}
	}
	// Ends with the answer, or with ctx and the next line; if the daemon never answers, with the process.
	go func() {
		defer close(out)
		in := bufio.NewScanner(d.file)
		in.Buffer(make([]byte, 0, 64<<10), maxAnswer)
		for in.Scan() {
			if !give(Line{Text: bytes.Clone(in.Bytes())}) {
				return
			}
		}
		if err := in.Err(); err != nil {
			give(Line{Err: Explain(d.Mount, err)})
		}
	}()
	return out
}

// Ask sends one request and calls each with every line of the answer, until the end, an error,
// or the end of ctx. After an error, except a refusal, only Close may be called.
func (d *Dialogue) Ask(ctx context.Context, request any, each func(line []byte) error) error {
	if err := d.Send(request); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := d.Lines(ctx)
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
			case line.Err != nil:
				return line.Err
			}
			if err := Refused(line.Text); err != nil {
				return err
			}
			if err := each(line.Text); err != nil {
				return fmt.Errorf("answer of the daemon: %w", err)
			}
		}
	}
}

// AskInto sends a request, and decodes the one line of JSON that answers it. It fails as Ask does.
func (d *Dialogue) AskInto(ctx context.Context, request, answer any) error {
	return d.Ask(ctx, request, func(line []byte) error { return json.Unmarshal(line, answer) })
}

type refusal struct {
	Text  string `json:"error"`
	Field string `json:"field"` // JSON Pointer into the request; may be empty
}

// Error returns the text, with the faulty field.
func (r *refusal) Error() string {
	if r.Field == "" {
		return r.Text
	}
	return fmt.Sprintf("%s (field %s)", r.Text, r.Field)
}

// Refused returns the refusal in a line of an answer, or nil.
func Refused(line []byte) error {
	var r refusal
	if json.Unmarshal(line, &r) != nil || r.Text == "" {
		return nil // the caller that decodes it reports a line that is not JSON
	}
	return &r
}

// Blame adds the name that a refusal is about, if it is about one of names.
func Blame(err error, names []string) error {
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

// Status reads the status document of the mount at dir, for at most timeout. It explains its errors.
func Status(dir string, timeout time.Duration) ([]byte, error) {
	text, err := Read(dir, "status", timeout)
	return text, Explain(dir, err)
}

// staleTries bounds the opens of a control file while another daemon takes the mount over.
const staleTries = 5

// Read reads a control file of the mount at dir. It fails with mounts.ErrSilent if the daemon does not answer within timeout.
func Read(dir, name string, timeout time.Duration) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	// Ends with the read; if the daemon never answers, with the process.
	go func() {
		var r result
		for range staleTries {
			r.text, r.err = os.ReadFile(filepath.Join(dir, block.Reserved, name))
			if !errors.Is(r.err, unix.ESTALE) {
				break
			}
		}
		done <- r
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-time.After(timeout):
		return nil, fmt.Errorf("%s: %w for %v", dir, mounts.ErrSilent, timeout)
	}
}

// Explain turns an error of reading the status file into one about dir.
func Explain(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case mounts.Dead(err):
		return exit.With(exit.NotMount, errors.New(mounts.DeadText(dir)))
	case errors.Is(err, iofs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		if _, statErr := os.Stat(dir); statErr != nil {
			return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: %w", dir, errors.Unwrap(statErr)))
		}
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount", dir))
	}
	return err
}

// OwnerStatus asks the owner at a socket for its status document.
func OwnerStatus(ctx context.Context, socket string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := handoff.Dial(ctx, socket)
	if err != nil {
		if errors.Is(err, handoff.ErrNoOwner) {
			err = exit.With(exit.NotMount, err)
		}
		return nil, err
	}
	return c.Status(ctx)
}

// Points returns the mount points of the kvfs mounts, sorted. A mount that is at several points counts once, and one
// that lies below another mount does not count.
func (c *Controls) Points() []string {
	var points []string
	seen := map[[2]int]bool{}
	for _, m := range c.Mounts {
		device := [2]int{m.Major, m.Minor}
		_, below, err := mountOf(c.Mounts, m.Mountpoint)
		if m.FSType != mounts.Type || err != nil || below != "." || seen[device] || slices.Contains(points, m.Mountpoint) {
			continue
		}
		seen[device] = true
		points = append(points, m.Mountpoint)
	}
	slices.Sort(points)
	return points
}

// Only returns the only kvfs mount, with the path in the mount table. If there are several, it names them.
func (c *Controls) Only() (string, error) {
	points := c.Points()
	switch len(points) {
	case 0:
		return "", exit.With(exit.NotMount, errors.New("there is no kvfs mount here; to make one, run: kvfs mount DIR"))
	case 1:
		return points[0], nil
	}
	for i, p := range points {
		points[i] = show.Text(p)
	}
	return "", exit.With(exit.Usage, fmt.Errorf("there are %d kvfs mounts; name one of them: %s", len(points), strings.Join(points, ", ")))
}

// shownFailures is how many failures a command names.
const shownFailures = 5

// Failures are the first failures of a command, and their number.
type Failures struct {
	First []PathError
	Total int64
}

// PathError is a path, and its fault.
type PathError struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// Add counts a failure, and keeps it if it is among the first.
func (f *Failures) Add(path, why string) {
	f.Total++
	if len(f.First) < shownFailures {
		f.First = append(f.First, PathError{path, why})
	}
}

// Err names the first failures, one a line, and their number. It is nil if there are none.
func (f *Failures) Err(format string, args ...any) error {
	if f.Total == 0 {
		return nil
	}
	var all []error
	for _, e := range f.First {
		all = append(all, fmt.Errorf("%s: %s", show.Text(e.Path), show.Text(e.Error)))
	}
	if f.Total == 1 && len(all) == 1 {
		return all[0]
	}
	return errors.Join(append(all, fmt.Errorf(format, args...))...)
}
