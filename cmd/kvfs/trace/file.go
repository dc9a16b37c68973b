package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// writer writes a trace to a new file.
type writer struct {
	file *os.File
	buf  *bufio.Writer
	gz   *gzip.Writer // nil: not compressed
	enc  *json.Encoder
}

// create makes the file of a trace. It does not replace a file.
func create(name string) (*writer, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	w := &writer{file: f, buf: bufio.NewWriterSize(f, 256<<10)}
	out := io.Writer(w.buf)
	if strings.HasSuffix(name, ".gz") {
		w.gz = gzip.NewWriter(w.buf)
		out = w.gz
	}
	w.enc = json.NewEncoder(out)
	return w, nil
}

func (w *writer) close() error {
	var err error
	if w.gz != nil {
		err = w.gz.Close()
	}
	return errors.Join(err, w.buf.Flush(), w.file.Close())
}

// reader reads a trace.
type reader struct {
	file *os.File
	dec  *json.Decoder
	Head Head
	line int
}

// open opens a trace and reads its head.
func open(name string) (*reader, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r := &reader{file: f}
	if err := r.begin(name); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is not a trace of kvfs: %w", name, err), f.Close())
	}
	return r, nil
}

func (r *reader) begin(name string) error {
	in := io.Reader(bufio.NewReaderSize(r.file, 256<<10))
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(in)
		if err != nil {
			return err
		}
		in = z
	}
	r.dec = json.NewDecoder(in)
	if err := r.dec.Decode(&r.Head); err != nil {
		return err
	}
	if r.Head.Version != version {
		return fmt.Errorf("its version is %d, want %d", r.Head.Version, version)
	}
	r.line = 1
	return nil
}

// next reads an operation. It fails with io.EOF at the end of the trace. A trace that was cut off, because its recorder
// was killed, has its end there.
func (r *reader) next() (op Op, err error) {
	r.line++
	err = r.dec.Decode(&op)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		err = fmt.Errorf("line %d of the trace: %w", r.line, err)
	case err == nil && op.Do != Lost && !strings.Contains(" "+Lookup+" "+Read+" "+Write+" "+Rename+" "+Remove+" ", " "+op.Do+" "):
		err = fmt.Errorf("line %d of the trace: there is no operation %q", r.line, op.Do)
	case err == nil && op.Do != Lost:
		err = r.check(&op)
	}
	return op, err
}

// maxSize bounds the size of a block, in bytes.
const maxSize = 1 << 40

// local reports whether a path stays below the directory that it is joined to, outside of the control directory.
func local(p string) bool {
	return filepath.IsLocal(p) && path.Clean(p) == p && p != "." && strings.Split(p, "/")[0] != block.Reserved
}

// check finds paths that lead out of the directory of a replay, and sizes that cannot be.
func (r *reader) check(op *Op) error {
	for _, p := range []string{op.Path, op.To} {
		if p != "" && !local(p) || op.Path == "" {
			return fmt.Errorf("line %d of the trace: %q is not a path below a mount", r.line, p)
		}
	}
	if op.Size < 0 || op.Size > maxSize || op.Worker < 0 || op.At < 0 {
		return fmt.Errorf("line %d of the trace: a number is out of range", r.line)
	}
	return nil
}
