package kvfs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Error is the daemon's refusal of a request.
type Error struct {
	Text  string `json:"error"`
	Field string `json:"field"` // JSON Pointer (RFC 6901) to the wrong part of the request; may be empty
}

// Error returns the text and the field.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Text
	}
	return fmt.Sprintf("%s (field %s)", e.Text, e.Field)
}

// errLeft says that the caller wants no more events.
var errLeft = errors.New("the reader has left")

// Pauses between looks at an answer that is not there yet. No read of a FUSE file can be interrupted without a signal,
// and poll(2) calls each of them readable.
const (
	minPause = 20 * time.Microsecond
	maxPause = 20 * time.Millisecond
)

const readBytes = 128 << 10 // the largest read of a FUSE file by default

// ask is dialogue for an answer of one line. If the daemon ended before it answered, ask tries the next one once.
func (c *Client) ask(ctx context.Context, file string, request, answer any) error {
	one := func() error {
		return c.dialogue(ctx, file, request, func(line []byte) error { return json.Unmarshal(line, answer) })
	}
	err := one()
	if errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED) {
		err = one()
	}
	return err
}

// dialogue sends one request to a control file, and calls each with every line of the answer. It returns the first
// error of each. The end of ctx cancels the request.
func (c *Client) dialogue(ctx context.Context, file string, request any, each func(line []byte) error) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	path := c.control(file)
	fd, err := again(func() (int, error) {
		return syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer syscall.Close(fd) // cancels what still runs
	for len(text) > 0 {
		n, err := again(func() (int, error) { return syscall.Write(fd, text) })
		if err != nil {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
		text = text[n:]
	}
	in := bufio.NewReaderSize(&answer{ctx: ctx, fd: fd, path: path}, readBytes)
	for lines := 0; ; lines++ {
		line, err := in.ReadBytes('\n')
		switch {
		case err == io.EOF && lines > 0 && len(line) == 0:
			return nil
		case err == io.EOF:
			return fmt.Errorf("%s: %w", path, io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
		if err := refused(line); err != nil {
			return err
		}
		if err := each(line); err != nil {
			return err
		}
	}
}

// answer reads the answer of a request until ctx ends.
type answer struct {
	ctx  context.Context
	fd   int
	path string
}

// Read implements io.Reader. It waits for bytes.
func (a *answer) Read(p []byte) (int, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		n, err := again(func() (int, error) { return syscall.Read(a.fd, p) })
		switch {
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err != syscall.EAGAIN:
			return 0, &os.PathError{Op: "read", Path: a.path, Err: err}
		}
		select {
		case <-a.ctx.Done():
			return 0, a.ctx.Err()
		case <-time.After(pause):
		}
	}
}

// again repeats a call that a signal has interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != syscall.EINTR {
			return n, err
		}
	}
}

// refused returns the refusal in a line of an answer, or nil.
func refused(line []byte) error {
	var r Error
	if !bytes.HasPrefix(line, []byte(`{"error"`)) || json.Unmarshal(line, &r) != nil {
		return nil
	}
	return &r
}
