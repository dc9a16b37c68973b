package kvfs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"syscall"
)

// Event is something that happened to a block, or to a directory of blocks.
type Event struct {
	Seq       uint64  `json:"seq"`       // grows by one with each event of the daemon
	Time      float64 `json:"time"`      // seconds since 1970
	Event     string  `json:"event"`     // stored, evicted, removed, renamed, or gap
	Tier      string  `json:"tier"`      // stored and evicted: which one
	Group     string  `json:"group"`     // directory of the block
	Hash      string  `json:"hash"`      // its name
	Size      int64   `json:"size"`      // bytes
	Reason    string  `json:"reason"`    // may be empty
	From      string  `json:"from"`      // renamed: the path before
	Directory bool    `json:"directory"` // renamed: the blocks below it have another path now
	Missed    uint64  `json:"missed"`    // gap: events that are lost; 0: their number is not known
}

// EventOptions choose events.
type EventOptions struct {
	Since  uint64   `json:"since,omitempty"`  // begin with the event of this number; 0: with what happens from now on
	Groups []string `json:"groups,omitempty"` // only of these; empty: all
	Events []string `json:"events,omitempty"` // only these; empty: all
}

// Events follows events as they happen, until ctx ends or the loop is left. The last pair has an error: ctx's, or
// syscall.ENOTCONN if the daemon has ended. After a gap, and after the daemon was restarted, the reader asks for
// everything again.
func (c *Client) Events(ctx context.Context, o EventOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		left := false
		err := c.dialogue(ctx, "events", o, func(line []byte) error {
			var e Event
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			if !yield(e, nil) {
				left = true
				return errLeft
			}
			return nil
		})
		switch {
		case left:
			return
		case err == nil || errors.Is(err, io.ErrUnexpectedEOF): // the daemon has ended
			err = syscall.ENOTCONN
		}
		yield(Event{}, err)
	}
}
