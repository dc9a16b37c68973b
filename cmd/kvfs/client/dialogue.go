package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

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
	// Ends with the answer, or with ctx and the next line; if the daemon never answers, with
	// the process.
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

// AskInto is Ask for an answer of one line, which it decodes into answer.
func (d *Dialogue) AskInto(ctx context.Context, request, answer any) error {
	return d.Ask(ctx, request, func(line []byte) error { return json.Unmarshal(line, answer) })
}

// refusal is the daemon's answer to a request that it refuses.
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
