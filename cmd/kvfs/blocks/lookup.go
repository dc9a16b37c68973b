package blocks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// lookOptions are the members that both kinds of look-ups have.
type lookOptions struct {
	Lease      *bool  `json:"lease,omitempty"`
	Promote    bool   `json:"promote,omitempty"`
	DeadlineMS *int64 `json:"deadline_ms,omitempty"`
}

// options returns the options of the requests.
func (l *Lookup) options() lookOptions {
	o := lookOptions{Promote: l.Promote}
	if l.NoLease {
		o.Lease = new(bool)
	}
	if l.Deadline != nil {
		// Rounded up: 0 would be no deadline.
		ms := int64((*l.Deadline + time.Millisecond - 1) / time.Millisecond)
		o.DeadlineMS = &ms
	}
	return o
}

// PrintNone returns the function that writes the answer for no blocks, or nil if there is
// nothing to write.
func (l *Lookup) PrintNone() func(io.Writer) error {
	if !l.JSON {
		return nil
	}
	return func(w io.Writer) error {
		if l.Spec != "" {
			return json.NewEncoder(w).Encode(longestAnswer{Op: "longest_hit", Groups: []longestGroup{}})
		}
		return json.NewEncoder(w).Encode(existsAnswer{Op: "exists"})
	}
}

// existsRequest and existsAnswer are a request to .kvfs/query and its answer.
type existsRequest struct {
	Op string `json:"op"`
	client.BlockRequest
	lookOptions
}

type existsAnswer struct {
	Op      string `json:"op"`
	States  string `json:"states"`
	Hits    int    `json:"hits"`
	Pending int    `json:"pending"`
	Late    int    `json:"late"`
	Misses  int    `json:"misses"`
	Prefix  int    `json:"prefix"`
}

// stateWords are the states of blocks, each with its tier. Source: docs/control.md.
var stateWords = map[byte][2]string{
	'm': {"hit", "memory"},
	'd': {"hit", "disk"},
	'o': {"hit", "object"},
	'p': {"hit", "peer"},
	'w': {"pending", "-"},
	'l': {"late", "-"},
	'.': {"miss", "-"},
}

// Lookup are the options of kvfs lookup.
type Lookup struct {
	Spec      string         // name of a spec, or @ and a file, for the longest hit; empty: show which blocks are there
	NumTokens *int           // length of the prompt; nil: the length of all hashes
	Cached    int            // tokens that the engine has already
	Promote   bool           // bring blocks into memory
	NoLease   bool           // grant no lease
	Deadline  *time.Duration // time within which they must be in memory; nil: the group's
	JSON      bool           // the answer is printed as JSON
}

// Run asks for blocks and prints the answer. It fails if some of them are not there.
func (l *Lookup) Run(ctx context.Context, s Streams, c *client.Controls, d *client.Dialogue, blocks *client.Blocks) error {
	if l.Spec != "" {
		return l.longestHit(ctx, s, d, blocks)
	}
	r := &lookup{Lookup: l, d: d, out: bufio.NewWriter(s.Out), sum: existsAnswer{Op: "exists"}}
	summary, err := r.run(ctx, c, blocks)
	if err == nil && !l.JSON {
		fmt.Fprintln(s.Err, summary)
	}
	return err
}

// lookup is one run.
type lookup struct {
	*Lookup
	d   *client.Dialogue
	out *bufio.Writer

	sum    existsAnswer    // States are those of the names
	below  string          // states of blocks below directories
	failed client.Failures // directories
}

// run prints the states of blocks, and returns a summary.
func (l *lookup) run(ctx context.Context, c *client.Controls, blocks *client.Blocks) (string, error) {
	states, err := l.ask(ctx, blocks)
	if err != nil {
		return "", err
	}
	l.sum.States = states
	var dirs []int
	for i := range len(states) {
		if states[i] == '/' {
			dirs = append(dirs, i)
		}
	}
	below, err := blocks.Below(ctx, c, dirs, func(name string, err error) { l.failed.Add(name, err.Error()) })
	if err != nil {
		return "", err
	}
	prefix := l.sum.Prefix
	if l.below, err = l.ask(ctx, below); err != nil {
		return "", err
	}
	l.sum.Prefix = prefix
	if l.JSON {
		if err := json.NewEncoder(l.out).Encode(l.sum); err != nil {
			return "", err
		}
	}
	if err := l.out.Flush(); err != nil {
		return "", err
	}
	total := len(blocks.Names) - len(dirs) + len(below.Names)
	summary := l.summary(total)
	if l.failed.Total > 0 {
		return "", errors.Join(l.failed.Err("%d directories could not be listed", l.failed.Total), errors.New(summary))
	}
	if l.sum.Hits < total {
		return "", errors.New(summary)
	}
	return summary, nil
}

// ask looks blocks up, adds up and prints the states, and returns them.
func (l *lookup) ask(ctx context.Context, blocks *client.Blocks) (string, error) {
	var states strings.Builder
	options := l.options()
	for rest := blocks.Asked(); len(rest) > 0; {
		var batch []string
		batch, rest = client.CutBatch(rest)
		first := states.Len()
		names := blocks.Names[first : first+len(batch)]
		var a existsAnswer
		err := l.d.AskInto(ctx, existsRequest{"exists", blocks.Request(batch), options}, &a)
		if err == nil && len(a.States) != len(batch) {
			err = fmt.Errorf("answer of the daemon: states of %d blocks, %d were asked for", len(a.States), len(batch))
		}
		if err != nil {
			return "", fmt.Errorf("look up in %s: %w", l.d.Mount, client.Blame(err, names))
		}
		if l.sum.Prefix == first { // all so far are hits
			l.sum.Prefix += a.Prefix
		}
		a.Misses -= strings.Count(a.States, "/")
		l.sum.Hits, l.sum.Pending, l.sum.Late, l.sum.Misses = l.sum.Hits+a.Hits, l.sum.Pending+a.Pending, l.sum.Late+a.Late, l.sum.Misses+a.Misses
		states.WriteString(a.States)
		if !l.JSON {
			printStates(l.out, a.States, names)
		}
	}
	return states.String(), nil
}

// printStates writes a line for each state of a block. w keeps errors.
func printStates(w *bufio.Writer, states string, names []string) {
	for i := range len(states) {
		if states[i] == '/' {
			continue
		}
		words, known := stateWords[states[i]]
		if !known { // from a newer daemon
			words = [2]string{states[i : i+1], "-"}
		}
		fmt.Fprintf(w, "%-7s  %-6s  %s\n", words[0], words[1], show.Text(names[i]))
	}
}

// summary returns the number of blocks in each state, in words.
func (l *lookup) summary(total int) string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	all := l.sum.States + l.below
	add(strings.Count(all, "m"), "in memory")
	add(strings.Count(all, "d"), "on disk")
	add(strings.Count(all, "o"), "in object storage")
	add(strings.Count(all, "p"), "at a peer")
	add(l.sum.Pending, "pending")
	add(l.sum.Late, "late")
	add(l.sum.Misses, "missing")
	return show.Blocks(int64(total)) + ": " + strings.Join(parts, ", ")
}
