package trace

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/accesslog"
)

// Recording says what is recorded.
type Recording struct {
	File     string        // must not exist
	Duration time.Duration // 0: until ctx or a signal ends it
}

// Record writes a trace of the mount at dir. It says on note when it has begun, and at the end on out what it wrote.
func Record(ctx context.Context, connect client.Connector, o Recording, dir string, out, note io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	c, err := connect()
	if err != nil {
		return err
	}
	mount, err := c.Root(dir)
	if err != nil {
		return err
	}
	d, err := c.Dial(mount, "accesslog")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Send(struct{}{}); err != nil {
		return fmt.Errorf("access log of %s: %w", mount, err)
	}
	w, err := create(o.File)
	if err != nil {
		return err
	}
	r := newRecorder(w)
	err = r.follow(ctx, d, func() { fmt.Fprintf(note, "recording %s to %s\n", show.Text(mount), show.Text(o.File)) })
	r.end()
	if err != nil {
		err = fmt.Errorf("access log of %s: %w", mount, err)
	}
	if err = errors.Join(err, r.failed, w.close()); err != nil {
		if r.start.IsZero() { // there is nothing in it
			err = errors.Join(err, os.Remove(o.File))
		}
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %d operations, %d lost\n", show.Text(o.File), r.ops, r.lost)
	return err
}

// recorder makes operations of requests.
type recorder struct {
	w       *writer
	start   time.Time
	key     [32]byte
	names   map[string]string // hashes of components of paths
	workers map[uint32]int    // by process
	drafts  map[string]draft  // files that were created and have no operation yet, by path
	looked  map[uint32]Op     // the last look-up of a process, which its next request may explain; its Path is plain

	ops    int64 // written
	lost   int64 // requests that the recorder was too slow for
	failed error // of writing
}

// draft is a file that is being written.
type draft struct {
	pid uint32
	at  time.Time
}

// Limits of what a recorder remembers. Beyond each of them it forgets.
const (
	maxNames  = 1 << 20
	maxDrafts = 1 << 16
)

func newRecorder(w *writer) *recorder {
	r := &recorder{w: w, names: map[string]string{}, workers: map[uint32]int{}, drafts: map[string]draft{}, looked: map[uint32]Op{}}
	rand.Read(r.key[:])
	return r
}

// lastTime bounds the wait for the last lines.
const lastTime = 5 * time.Second

// follow reads the stream until ctx ends, and then all that was asked before that.
func (r *recorder) follow(ctx context.Context, d *client.Dialogue, started func()) error {
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lines := d.Lines(reading)
	mark := "kvfs-trace-" + rand.Text()
	done, late := ctx.Done(), make(<-chan time.Time)
	for r.failed == nil { // else the caller reports it
		select {
		case line, more := <-lines:
			if !more {
				return errors.New("the daemon has stopped")
			}
			l, err := parse(&line)
			if err != nil {
				return err
			}
			if l.Path == mark {
				return nil
			}
			if l.Reads != "" {
				r.start = l.Time
				r.keep(r.w.enc.Encode(Head{version, l.Time, l.Reads}))
				started()
			}
			r.add(&l)
		case <-done:
			done, late = nil, time.After(lastTime)
			go os.Lstat(filepath.Join(d.Mount, mark)) // the last line is about this; it ends with the answer of the daemon
		case <-late:
			return nil
		}
	}
	return nil
}

// parse reads a line of the stream.
func parse(line *client.Line) (accesslog.Line, error) {
	if line.Err != nil {
		return accesslog.Line{}, line.Err
	}
	if err := client.Refused(line.Text); err != nil {
		return accesslog.Line{}, err
	}
	return accesslog.Parse(string(line.Text))
}

func (r *recorder) keep(err error) { r.failed = errors.Join(r.failed, err) }

// add takes one line of the access log.
func (r *recorder) add(l *accesslog.Line) {
	if l.Dropped > 0 {
		r.lost += int64(l.Dropped)
		r.keep(r.w.enc.Encode(Op{At: r.since(l.Time), Do: Lost, Size: int64(l.Dropped)}))
	}
	if l.Path == "" || l.Result == "ESTALE" { // on ESTALE the kernel asks again
		return
	}
	r.settle(l)
	_, isDraft := r.drafts[l.Path]
	switch l.Op {
	case "LOOKUP":
		if !isDraft {
			r.looked[l.PID] = r.op(Lookup, l, l.PID, l.Time)
		}
	case "OPEN", "CREATE":
		r.opened(l)
	case "FLUSH":
		if l.Size > 0 { // 0: the descriptor that a shell duplicated; the bytes follow
			r.wrote(l, l.Path)
		}
	case "RENAME":
		if isDraft && l.Result == "OK" {
			r.wrote(l, l.To)
		} else {
			r.emit(r.op(Rename, l, l.PID, l.Time))
		}
	case "UNLINK":
		delete(r.drafts, l.Path)
		if !isDraft { // else a temporary file that nobody renamed
			r.emit(r.op(Remove, l, l.PID, l.Time))
		}
	}
}

// opened writes the operation of an open for reading, and remembers a file that is being written.
func (r *recorder) opened(l *accesslog.Line) {
	if l.Op == "OPEN" && !l.Writes {
		r.emit(r.op(Read, l, l.PID, l.Time))
		return
	}
	if l.Result != "OK" {
		r.emit(r.op(Write, l, l.PID, l.Time))
		return
	}
	if len(r.drafts) >= maxDrafts {
		clear(r.drafts)
	}
	r.drafts[l.Path] = draft{l.PID, l.Time}
}

// settle writes the last look-up of a process, unless the request l follows from it: an open looks the name up first.
func (r *recorder) settle(l *accesslog.Line) {
	op, ok := r.looked[l.PID]
	switch l.Op {
	case "LOOKUP", "OPEN", "CREATE", "MKDIR", "RENAME", "UNLINK":
	default:
		return
	}
	if !ok {
		return
	}
	delete(r.looked, l.PID)
	same := op.Path == l.Path || op.Path == l.To
	if l.Op != "LOOKUP" && same || strings.HasPrefix(l.Path, op.Path+"/") { // or it was a directory on the way
		return
	}
	r.emit(op)
}

// wrote writes the operation of a block that has its name now.
func (r *recorder) wrote(l *accesslog.Line, name string) {
	from, ok := r.drafts[l.Path]
	delete(r.drafts, l.Path)
	if !ok {
		from = draft{l.PID, l.Time}
	}
	op := r.op(Write, l, from.pid, from.at)
	op.Path, op.To = name, ""
	r.emit(op)
}

// end writes what was held back.
func (r *recorder) end() {
	for _, op := range r.looked {
		r.emit(op)
	}
}

func (r *recorder) since(at time.Time) int64 {
	return max(at.Sub(r.start).Microseconds(), 0)
}

// op makes an operation. Its paths are still plain.
func (r *recorder) op(do string, l *accesslog.Line, pid uint32, at time.Time) Op {
	worker, ok := r.workers[pid]
	if !ok {
		worker = len(r.workers)
		r.workers[pid] = worker
	}
	op := Op{At: r.since(at), Worker: worker, Do: do, Path: l.Path, To: l.To, Size: l.Size, Took: l.Took.Microseconds()}
	switch l.Result {
	case "OK":
	case "ENOENT":
		op.Miss = true
	default:
		op.Failed = l.Result
	}
	return op
}

// emit writes an operation, with its names hashed.
func (r *recorder) emit(op Op) {
	op.Path, op.To = r.hash(op.Path), r.hash(op.To)
	r.ops++
	r.keep(r.w.enc.Encode(op))
}

// hash returns a path with each component replaced by 64 bits of its HMAC.
func (r *recorder) hash(path string) string {
	if path == "" {
		return ""
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		name, ok := r.names[part]
		if !ok {
			mac := hmac.New(sha256.New, r.key[:])
			mac.Write([]byte(part))
			name = hex.EncodeToString(mac.Sum(nil)[:8])
			if len(r.names) >= maxNames {
				clear(r.names)
			}
			r.names[part] = name
		}
		parts[i] = name
	}
	return strings.Join(parts, "/")
}
