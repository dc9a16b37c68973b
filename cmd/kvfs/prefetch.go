package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
)

// prefetchFlags are the flags of kvfs prefetch.
type prefetchFlags struct {
	blockFlags
	json, quiet bool
}

func newPrefetchCommand(connect client.Connector) *cobra.Command {
	var flags prefetchFlags
	cmd := &cobra.Command{
		Use:   "prefetch [flags] PATH...\n  kvfs prefetch --mount DIR [flags] HASH...",
		Short: "Bring blocks into memory",
		Long: "Bring blocks into memory, in order, and wait until they are there. They then stay readable for a while.\n\n" +
			"PATH is a block, or a directory for all blocks below it, which come after the blocks that are\n" +
			"named; - reads names from standard input, one a line, or each ended by a NUL byte with -0. All must\n" +
			"be of one mount. With --mount the names are hashes, and --template and --group say which paths\n" +
			"they stand for.\n\n" +
			"Where standard error is a terminal it shows the progress. Ctrl-C cancels what has not begun, and\n" +
			"says what was done. In the \"results\" of --json each name has one character: m it was in memory,\n" +
			"l it was loaded, . there is none, w it is being written, ! it could not be loaded, / it is a directory,\n" +
			"and ? it was not come to.\n\n" +
			"Exit codes: 0 if all are in memory, or being written; 1 if some are not there or could not be loaded,\n" +
			"it was interrupted, or the daemon refused; 5 if it is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runPrefetch(cmd, connect, &flags, args) },
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&flags.json, "json", false, "print the answer as JSON")
	cmd.Flags().BoolVarP(&flags.quiet, "quiet", "q", false, "do not show the progress")
	return cmd
}

// prefetchRequest is what is asked of .kvfs/prefetch.
type prefetchRequest struct {
	client.BlockRequest
	Progress bool `json:"progress"`
}

// prefetchAnswer is what is answered: how far it is, and at the end, which Results
// tell, everything.
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

// prefetch is one run of the command.
type prefetch struct {
	c      *client.Controls
	d      *client.Dialogue
	blocks *client.Blocks
	bar    *progressBar

	sum     prefetchAnswer // of the requests that are answered
	results []byte         // for each name
	dirs    []int          // positions of names that are directories
	failed  client.Failures
}

func runPrefetch(cmd *cobra.Command, connect client.Connector, flags *prefetchFlags, args []string) error {
	if err := needNames(cmd, args); err != nil {
		return err
	}
	if err := flags.check(cmd); err != nil {
		return err
	}
	c, blocks, d, err := flags.Open(connect, cmd.InOrStdin(), args, "prefetch")
	if err != nil {
		return doneNothing(cmd, err, flags.printNone())
	}
	defer d.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	stderr := cmd.ErrOrStderr()
	p := &prefetch{c: c, d: d, blocks: blocks, bar: newProgressBar(stderr, !flags.quiet && isTerminal(stderr))}
	err = p.run(ctx)
	p.bar.clear()
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		return fmt.Errorf("prefetch in %s: %w", blocks.Mount, err)
	}
	if flags.json || !interrupted {
		if err := p.print(cmd.OutOrStdout(), flags.json); err != nil {
			return err
		}
	}
	wrong := p.failed.Err("%d of %s: not there, or could not be loaded", p.failed.Total, show.Blocks(p.sum.Total))
	if interrupted {
		// The daemon says ten times a second how far it is.
		return errors.Join(fmt.Errorf("interrupted: at least %d of %s are done, and %s loaded",
			p.sum.Done, show.Blocks(p.sum.Total), show.Bytes(p.sum.Bytes)), wrong)
	}
	return wrong
}

// run asks for all names, and then for what is below those that are directories.
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

// ask asks for blocks, in as many requests as it takes. each gets the answers, with the position
// of their first block.
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
			p.bar.show(p.sum.Done+a.Done, p.sum.Total, p.sum.Bytes+a.Bytes)
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

// named takes over the results of names that were given. Of those at which there is no
// block some may be directories.
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
	p.failed.Total += max(a.Failed-int64(len(a.Errors)), 0) // of which the daemon does not say more
	for i, name := range names {
		if a.Results[i] == '.' {
			p.failed.Add(name, "there is no such block")
		}
	}
	p.keep(a.Errors...)
}

// maxPrefetchErrors is how many errors the answer has, as that of the daemon.
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

// printNone returns what writes the answer about no blocks; nil where that is nothing.
func (f *prefetchFlags) printNone() func(io.Writer) error {
	if !f.json {
		return nil
	}
	return func(w io.Writer) error { return (&prefetch{blocks: &client.Blocks{}}).print(w, true) }
}

// print writes what was done.
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
	took := time.Since(p.bar.start)
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

// progressBar shows how far a work is in one line that is written again and again.
type progressBar struct {
	w     io.Writer // nil: nothing is shown
	start time.Time
	width int // of what stands there
}

func newProgressBar(w io.Writer, on bool) *progressBar {
	b := &progressBar{start: time.Now()}
	if on {
		b.w = w
	}
	return b
}

// show writes the line. Errors are not worth anything here.
func (b *progressBar) show(done, total, bytes int64) {
	if b.w == nil {
		return
	}
	line := prefetchLine(done, total, bytes, time.Since(b.start))
	fmt.Fprintf(b.w, "\r%-*s", b.width, line)
	b.width = len(line)
}

// clear takes the line away.
func (b *progressBar) clear() {
	if b.w != nil && b.width > 0 {
		fmt.Fprintf(b.w, "\r%s\r", strings.Repeat(" ", b.width))
		b.width = 0
	}
}

// prefetchLine says how far the work is: blocks, share, bytes, rate, and the time left if
// the rest goes as what is done.
func prefetchLine(done, total, bytes int64, took time.Duration) string {
	percent := 100.0
	if total > 0 {
		percent = 100 * float64(done) / float64(total)
	}
	line := fmt.Sprintf("%d/%d blocks  %.1f %%  %s", done, total, percent, show.Bytes(bytes))
	if took <= 0 || done <= 0 {
		return line
	}
	rate := float64(bytes) / took.Seconds()
	left := time.Duration(float64(took) / float64(done) * float64(max(total-done, 0))).Round(time.Second)
	return fmt.Sprintf("%s  %s/s  %v left", line, show.Bytes(int64(rate)), left)
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
