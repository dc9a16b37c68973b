package blocks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Events are the options of kvfs events.
type Events struct {
	Since  uint64   // number of the first event; 0: from now on
	Groups []string // only of these; empty: of all
	Names  []string // only events of these names; empty: all
	Count  uint64   // lines after which it ends; 0: never
	JSON   bool     // lines are printed as the daemon wrote them
}

// Run prints the events of the mount at dir until ctx or a signal ends it, Count lines are
// printed, or the reader of w is gone. None of these is an error; the end of the daemon is one.
func (e *Events) Run(ctx context.Context, w io.Writer, connect client.Connector, dir string) error {
	c, err := connect()
	if err != nil {
		return err
	}
	mount, err := c.Root(dir)
	if err != nil {
		return err
	}
	d, err := c.Dial(mount, "events")
	if err != nil {
		return err
	}
	defer d.Close()
	// SIGPIPE would end this process with an exit code of its own.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if out, ok := w.(*os.File); ok {
		unwatch, err := watchReader(out, cancel)
		if err != nil {
			return err
		}
		defer unwatch()
	}
	if err := d.Send(eventsRequest{e.Since, e.Groups, e.Names}); err != nil {
		return fmt.Errorf("events of %s: %w", mount, err)
	}
	err = e.follow(ctx, d.Lines(ctx), w)
	switch {
	case ctx.Err() != nil, errors.Is(err, unix.EPIPE):
		return nil
	case err != nil:
		return fmt.Errorf("events of %s: %w", mount, err)
	}
	return nil
}

// eventsRequest is a request to .kvfs/events.
type eventsRequest struct {
	Since  uint64   `json:"since,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Events []string `json:"events,omitempty"`
}

// eventLine is one line of the answer.
type eventLine struct {
	Seq    uint64  `json:"seq"`
	Time   float64 `json:"time"` // seconds since 1970
	Event  string  `json:"event"`
	Tier   string  `json:"tier"`
	Group  string  `json:"group"`
	Hash   string  `json:"hash"`
	Size   int64   `json:"size"`
	Reason string  `json:"reason"`
	From   string  `json:"from"`   // of renamed
	Missed uint64  `json:"missed"` // of gap

	Directory bool `json:"directory"` // the path is a directory, and all below it is meant
}

// watchReader calls gone when the reader of out, a pipe or a terminal, is gone. Without it only
// the next event would show that. stop ends it.
func watchReader(out *os.File, gone func()) (stop func(), err error) {
	wake, end, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	fds := []unix.PollFd{{Fd: int32(out.Fd())}, {Fd: int32(wake.Fd())}} // errors and hang-ups alone
	done := make(chan struct{})
	// Ends when the reader is gone, or with stop, which closes the other end of wake.
	go func() {
		defer close(done)
		for {
			_, err := unix.Poll(fds, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err == nil && fds[0].Revents != 0 {
				gone()
			}
			return
		}
	}()
	return func() {
		end.Close()
		<-done
		wake.Close()
	}, nil
}

// follow prints the lines until ctx is done, count of them are printed, or there are no more.
// It writes all received lines before it waits for more.
func (e *Events) follow(ctx context.Context, lines <-chan client.Line, w io.Writer) error {
	out := bufio.NewWriterSize(w, 64<<10)
	for n := uint64(0); e.Count == 0 || n < e.Count; n++ {
		if len(lines) == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		var line client.Line
		var more bool
		select {
		case <-ctx.Done():
			return out.Flush()
		case line, more = <-lines:
		}
		err := line.Err
		switch {
		case err != nil:
		case !more:
			err = errors.New("the daemon has stopped")
		default:
			err = printEvent(out, line.Text, e.JSON)
		}
		if err != nil {
			return errors.Join(err, out.Flush())
		}
	}
	return out.Flush()
}

// printEvent writes one event. w keeps errors of writing.
func printEvent(w *bufio.Writer, text []byte, raw bool) error {
	var e eventLine
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("event of the daemon: %w", err)
	}
	if e.Event == "" {
		if err := client.Refused(text); err != nil {
			return err
		}
	}
	if raw {
		fmt.Fprintf(w, "%s\n", text)
		return nil
	}
	fmt.Fprintln(w, e.String())
	return nil
}

// String returns the event as a line for people.
func (e *eventLine) String() string {
	whole, part := math.Modf(e.Time)
	when := time.Unix(int64(whole), int64(math.Round(part*1e6))*1000).UTC().Format("2006-01-02T15:04:05.000000Z")
	switch { // gaps have no time
	case e.Event == "gap" && e.Missed == 0:
		return fmt.Sprintf("%-27s  gap: earlier events are unknown; the next is %d", "-", e.Seq)
	case e.Event == "gap":
		return fmt.Sprintf("%-27s  gap: %d events are lost; the next is %d", "-", e.Missed, e.Seq)
	}
	name := path.Join(e.Group, e.Hash)
	switch {
	case e.Directory:
		name = e.From + "/ -> " + name + "/"
	case e.From != "":
		name = e.From + " -> " + name
	}
	line := fmt.Sprintf("%s  %-7s  %-6s  %10s  %s  %s", when, e.Event, show.OrDash(e.Tier), show.Bytes(e.Size), show.OrDash(name), e.Reason)
	return show.Text(strings.TrimRight(line, " "))
}

// Recent returns at most n of the last events of a mount, as lines for people, with the oldest first. next is the number
// of the next event, as the status has it.
func Recent(ctx context.Context, c *client.Controls, mount string, next, n uint64) ([]string, error) {
	if next <= 1 {
		return nil, nil
	}
	d, err := c.Dial(mount, "events")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last []string
	done := errors.New("that was the last")
	err = d.Ask(ctx, eventsRequest{Since: max(next, n+1) - n}, func(line []byte) error {
		var e eventLine
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		last = append(last, e.String())
		if e.Seq+1 >= next || uint64(len(last)) == n {
			return done
		}
		return nil
	})
	if errors.Is(err, done) {
		err = nil
	}
	return last, err
}
