package blocks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
)

// prefetchRequest is a request to .kvfs/prefetch.
type prefetchRequest struct {
	client.BlockRequest
	Progress bool `json:"progress"`
}

// prefetchAnswer is one line of the answer: the progress, or at the end, with Results, everything.
type prefetchAnswer struct {
	Results  string             `json:"results"`
	Done     int64              `json:"done"`
	Total    int64              `json:"total"`
	Bytes    int64              `json:"bytes"`
	InMemory int64              `json:"in_memory"`
	Loaded   int64              `json:"loaded"`
	Absent   int64              `json:"absent"`
	Pending  int64              `json:"pending"`
	Failed   int64              `json:"failed"`
	Errors   []client.PathError `json:"errors"`
}

// Prefetch are the options of kvfs prefetch.
type Prefetch struct {
	JSON  bool // the answer is printed as JSON
	Quiet bool // no progress is shown
	Some  bool // it is no failure that blocks are absent, unless all are
}

// Run loads blocks into memory, waits for that, and prints the result. It fails if some are
// absent or could not be loaded, or when ctx ends: it then prints what was done.
func (o *Prefetch) Run(ctx context.Context, s Streams, c *client.Controls, d *client.Dialogue, blocks *client.Blocks) error {
	p := &prefetch{c: c, d: d, blocks: blocks, some: o.Some, bar: show.NewBar(s.Err, !o.Quiet && show.IsTerminal(s.Err))}
	err := p.run(ctx)
	p.bar.Clear()
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		return fmt.Errorf("prefetch in %s: %w", blocks.Mount, err)
	}
	if o.JSON || !interrupted {
		if err := p.print(s.Out, o.JSON); err != nil {
			return err
		}
	}
	wrong := p.failed.Err("%d of %s: not there, or could not be loaded", p.failed.Total, show.Blocks(p.sum.Total))
	if o.Some && p.sum.Total > 0 && p.sum.Absent == p.sum.Total {
		wrong = fmt.Errorf("%s has none of these blocks in any tier", blocks.Mount)
	}
	if interrupted {
		// The daemon says ten times a second how far it is.
		return errors.Join(fmt.Errorf("interrupted: at least %d of %s are done, and %s loaded",
			p.sum.Done, show.Blocks(p.sum.Total), show.Bytes(p.sum.Bytes)), wrong)
	}
	return wrong
}

// prefetch is one run.
type prefetch struct {
	c      *client.Controls
	d      *client.Dialogue
	blocks *client.Blocks
	some   bool // as in Prefetch
	bar    *show.Bar

	sum     prefetchAnswer // of the requests that are answered
	results []byte         // for each name
	dirs    []int          // positions of names that are directories
	failed  client.Failures
}

// run asks for all names, then for the blocks below names of directories.
func (p *prefetch) run(ctx context.Context) error {
	names := p.blocks.Asked()
	p.results = []byte(strings.Repeat("?", len(names)))
	p.sum.Total = int64(len(names))
	if err := p.ask(ctx, p.blocks, p.named); err != nil {
		return err
	}
	below, err := p.blocks.Below(ctx, p.c, p.dirs, p.unlisted)
	if err != nil {
		return err
	}
	p.sum.Total += int64(len(below.Names))
	return p.ask(ctx, below, p.counted)
}

// ask prefetches blocks, in as many requests as it takes. each gets the answers, with the
// position of their first block.
func (p *prefetch) ask(ctx context.Context, blocks *client.Blocks, each func(names []string, first int, a *prefetchAnswer)) error {
	first := 0
	for rest := blocks.Asked(); len(rest) > 0; {
		var batch []string
		batch, rest = client.CutBatch(rest)
		now := blocks.Names[first : first+len(batch)]
		var a prefetchAnswer
		q := blocks.Request(batch)
		err := p.d.Ask(ctx, prefetchRequest{q, true}, func(line []byte) error {
			a = prefetchAnswer{}
			if err := json.Unmarshal(line, &a); err != nil {
				return err
			}
			p.bar.Show(p.sum.Done+a.Done, p.sum.Total, p.sum.Bytes+a.Bytes)
			return nil
		})
		p.sum.Bytes += a.Bytes
		if err != nil {
			p.sum.Done += a.Done // as far as it is known
			return client.Blame(err, now)
		}
		if len(a.Results) != len(batch) {
			return fmt.Errorf("answer of the daemon: results of %d blocks, %d were asked for", len(a.Results), len(batch))
		}
		for i := range a.Errors {
			if name, err := query.Unescape(a.Errors[i].Path); q.Escaped && err == nil {
				a.Errors[i].Path = name
			}
		}
		p.sum.Done += int64(len(batch))
		each(now, first, &a)
		first += len(batch)
	}
	return nil
}

// named adds the results of the given names. A name without a block may be a directory.
func (p *prefetch) named(names []string, first int, a *prefetchAnswer) {
	copy(p.results[first:], a.Results)
	for i := range names {
		if a.Results[i] == '.' && p.blocks.IsDir(first+i) {
			p.results[first+i] = '/'
			p.dirs = append(p.dirs, first+i)
			p.sum.Total--
			p.sum.Done--
			a.Absent--
		}
	}
	a.Results = string(p.results[first : first+len(names)])
	p.counted(names, first, a)
}

// counted adds up the results of blocks, and keeps the first failures.
func (p *prefetch) counted(names []string, _ int, a *prefetchAnswer) {
	p.sum.InMemory += a.InMemory
	p.sum.Loaded += a.Loaded
	p.sum.Absent += a.Absent
	p.sum.Pending += a.Pending
	p.sum.Failed += a.Failed
	for _, e := range a.Errors {
		p.failed.Add(e.Path, e.Error)
	}
	p.failed.Total += max(a.Failed-int64(len(a.Errors)), 0) // failures without a reason from the daemon
	for i, name := range names {
		if a.Results[i] == '.' && !p.some {
			p.failed.Add(name, "there is no such block")
		}
	}
	p.keep(a.Errors...)
}

// maxPrefetchErrors bounds the errors in the answer, like that of the daemon.
const maxPrefetchErrors = 100

// keep adds to the errors of the answer, while there is room.
func (p *prefetch) keep(errs ...client.PathError) {
	room := maxPrefetchErrors - len(p.sum.Errors)
	p.sum.Errors = append(p.sum.Errors, errs[:min(room, len(errs))]...)
}

// unlisted notes a directory that could not be listed.
func (p *prefetch) unlisted(name string, err error) {
	p.sum.Total++
	p.sum.Done++
	p.sum.Failed++
	p.keep(client.PathError{Path: name, Error: err.Error()})
	p.failed.Add(name, err.Error())
}

// PrintNone returns the function that writes the answer for no blocks, or nil if there is
// nothing to write.
func (o *Prefetch) PrintNone() func(io.Writer) error {
	if !o.JSON {
		return nil
	}
	return func(w io.Writer) error { return (&prefetch{blocks: &client.Blocks{}}).print(w, true) }
}

// print writes the result.
func (p *prefetch) print(w io.Writer, asJSON bool) error {
	s := &p.sum
	if asJSON {
		s.Results = string(p.results)
		if s.Errors == nil {
			s.Errors = []client.PathError{}
		}
		for i := 0; p.blocks.Shared.Escaped && i < len(s.Errors); i++ {
			s.Errors[i].Path = query.Escape(s.Errors[i].Path)
		}
		return show.JSON(w, s)
	}
	took := p.bar.Took()
	_, err := fmt.Fprintf(w, "loaded %s (%s) in %v%s\n", show.Blocks(s.Loaded), show.Bytes(s.Bytes), roughly(took), show.Counts(
		show.Count("in memory before", uint64(s.InMemory)), show.Count("being written", uint64(s.Pending)),
		show.Count("not there", uint64(s.Absent)), show.Count("failed", uint64(s.Failed))))
	return err
}

// roughly rounds a duration for people.
func roughly(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
