package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestSetxattr shows that a failed system call gives its error number.
func TestSetxattr(t *testing.T) {
	if err := setxattr(filepath.Join(t.TempDir(), "absent"), "user.kvfs.pinned", "1"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v", err)
	}
}

// scripted is a control file with one answer to all requests. With hold it has none, and a reader waits.
type scripted struct {
	answer string
	rest   io.Reader
	hold   bool
	closed chan struct{}
}

// Write implements io.Writer: one request a call.
func (s *scripted) Write(request []byte) (int, error) {
	s.rest = strings.NewReader(s.answer)
	return len(request), nil
}

// Read implements io.Reader.
func (s *scripted) Read(p []byte) (int, error) {
	if s.hold {
		<-s.closed
		return 0, os.ErrClosed
	}
	return s.rest.Read(p)
}

// Close implements io.Closer.
func (s *scripted) Close() error {
	close(s.closed)
	return nil
}

// TestDialogue shows the answers that are none: refusals with and without a field,
// nothing, no JSON, and one too many.
func TestDialogue(t *testing.T) {
	file := &scripted{closed: make(chan struct{})}
	c := &Controls{Open: func(string) (io.ReadWriteCloser, error) { return file, nil }}
	d, err := c.Dial("/m", "query")
	must(t, err)
	defer d.Close()
	type existsAnswer struct {
		Hits int `json:"hits"`
	}
	for _, tc := range []struct{ answer, err string }{
		{`{"error":"got number","field":"/hashes/1"}`, `"b": got number (field /hashes/1)`},
		{`{"error":"no","field":"/hashes/7"}`, "no (field /hashes/7)"},
		{`{"error":"no","field":"/spec"}`, "no (field /spec)"},
		{`{"error":"no"}`, "no"},
		{"", "the daemon has given no answer"},
		{"?", "answer of the daemon: invalid character '?' looking for beginning of value"},
		{`{"hits": "x"}`, "answer of the daemon: json: cannot unmarshal string into Go struct field existsAnswer.hits of type int"},
		{`{"hits": 3}`, "<nil>"},
	} {
		file.answer = tc.answer
		var a existsAnswer
		err := Blame(d.AskInto(t.Context(), struct{}{}, &a), []string{"a", "b"})
		if fmt.Sprint(err) != tc.err {
			t.Errorf("%s: got %v, want %s", tc.answer, err, tc.err)
		}
	}
	// A reader that is cancelled while the daemon is silent.
	file.hold = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Ask(ctx, struct{}{}, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestDial shows the errors of a control file that cannot be opened.
func TestDial(t *testing.T) {
	old := t.TempDir()
	must(t, os.Mkdir(filepath.Join(old, ".kvfs"), 0o755))
	must(t, os.WriteFile(filepath.Join(old, ".kvfs", "status"), nil, 0o644))
	for _, tc := range []struct {
		dir  string
		err  error
		code int
		text string
	}{
		{"/m", unix.EACCES, exit.Runtime, "only root, the user of the daemon, and for some files the users of control.users and control.group may ask it"},
		{"/m", unix.ENOTCONN, exit.NotMount, "the daemon of /m is dead. kvfs mount /m, with the settings it had, starts it again with its blocks. kvfs umount /m gives them up"},
		{"/m", unix.ENOENT, exit.NotMount, "/m is not a kvfs mount: no such file or directory"},
		{old, unix.ENOENT, exit.Runtime, "has no .kvfs/query: it runs an older version"},
	} {
		c := &Controls{Open: func(path string) (io.ReadWriteCloser, error) {
			return nil, &os.PathError{Op: "open", Path: path, Err: tc.err}
		}}
		_, err := c.Dial(tc.dir, "query")
		if exit.Code(err) != tc.code || !strings.HasSuffix(fmt.Sprint(err), tc.text) {
			t.Errorf("%v at %s: got %v with code %d, want %q with %d", tc.err, tc.dir, err, exit.Code(err), tc.text, tc.code)
		}
	}
}

// TestOpenControl shows that a descriptor can be closed while a read waits, and that
// errors have their path.
func TestOpenControl(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if _, err := openControl(path); !errors.Is(err, iofs.ErrNotExist) || !strings.Contains(fmt.Sprint(err), path) {
		t.Errorf("got %v", err)
	}
	must(t, unix.Mkfifo(path, 0o600))
	f, err := openControl(path)
	must(t, err)
	other, err := openControl(path) // to end the read at last
	must(t, err)
	defer other.Close()
	read := make(chan struct{})
	go func() { // ends with the write below
		defer close(read)
		_, _ = f.Read(make([]byte, 1))
	}()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	_, _ = other.Write([]byte("x"))
	_, _ = other.Write([]byte("y"))
	<-read
}
