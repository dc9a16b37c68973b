package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
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

// ReadDocument reads a file, or stdin for "-". The text must be one JSON object.
func ReadDocument(name string, stdin io.Reader) (json.RawMessage, error) {
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
