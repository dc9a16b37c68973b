// Package blocks is what commands do with the blocks of a command line: look them up, find the longest hit
// of a prompt, prefetch, evict, pin, explain why they are absent, follow their events. Each is a type or a
// function. It asks the daemon, in as many requests as the names take, prints the answers for people or as
// JSON, and fails if the command must fail. Package client finds the blocks before.
package blocks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Streams are the streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// lookOptions are the members that both kinds of look-ups have.
type lookOptions struct {
	Lease      *bool  `json:"lease,omitempty"`
	Promote    bool   `json:"promote,omitempty"`
	DeadlineMS *int64 `json:"deadline_ms,omitempty"`
}

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

// PrintNone returns the function that writes the answer for no blocks, or nil if there is nothing to write.
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

// longestRequest and longestAnswer are a request to .kvfs/query and its answer.
type longestRequest struct {
	Op   string          `json:"op"`
	Spec json.RawMessage `json:"spec"`
	client.BlockRequest
	NumTokens *int `json:"num_tokens,omitempty"`
	Cached    int  `json:"cached,omitempty"`
	Fetch     bool `json:"fetch"`
	lookOptions
}

type longestAnswer struct {
	Op        string         `json:"op"`
	HitTokens int            `json:"hit_tokens"`
	Capped    bool           `json:"capped"`
	Pending   int            `json:"pending"`
	Late      int            `json:"late"`
	Groups    []longestGroup `json:"groups"`
}

type longestGroup struct {
	Name  string `json:"name"`
	Load  string `json:"load"`
	Fetch []int  `json:"fetch"`
}

func (l *Lookup) longestHit(ctx context.Context, s Streams, d *client.Dialogue, blocks *client.Blocks) error {
	if _, rest := client.CutBatch(blocks.Names); len(rest) > 0 {
		return fmt.Errorf("%d hashes are too many for one prompt", len(blocks.Names))
	}
	q := longestRequest{Op: "longest_hit", BlockRequest: blocks.Request(blocks.Names), Cached: l.Cached, Fetch: true, NumTokens: l.NumTokens, lookOptions: l.options()}
	var err error
	if file, isFile := strings.CutPrefix(l.Spec, "@"); isFile {
		q.Spec, err = client.ReadDocument(file, s.In)
	} else {
		q.Spec, err = json.Marshal(l.Spec)
	}
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := d.AskInto(ctx, q, &raw); err != nil {
		return fmt.Errorf("look up in %s: %w", d.Mount, client.Blame(err, blocks.Names))
	}
	if l.JSON {
		_, err := fmt.Fprintf(s.Out, "%s\n", raw)
		return err
	}
	return printLongest(s.Out, raw)
}

func printLongest(w io.Writer, raw json.RawMessage) error {
	var a longestAnswer
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("answer of the daemon: %w", err)
	}
	note := ""
	if a.Capped {
		note = " (all of the prompt is cached; its last token is computed in any case)"
	}
	fmt.Fprintf(w, "hit: %d tokens%s\n", a.HitTokens, note)
	if a.Pending > 0 || a.Late > 0 {
		fmt.Fprintf(w, "counted as absent: %d pending, %d late\n", a.Pending, a.Late)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "GROUP\tBLOCKS\tTO READ\n")
	for _, g := range a.Groups {
		fmt.Fprintf(t, "%s\t%d\t%d\n", show.Text(show.OrDash(g.Name)), len(g.Load), len(g.Fetch))
	}
	return t.Flush()
}

type whyRequest struct {
	Op string `json:"op"`
	client.BlockRequest
}

// whyAnswer is its answer: a verdict for each key, with more members than kvfs why prints.
type whyAnswer struct {
	Verdicts []json.RawMessage `json:"verdicts"`
}

// Why prints what is known of blocks, and of those below directories: in words, or, if raw, as
// JSON, one a line. It fails if a directory cannot be listed.
func Why(ctx context.Context, w io.Writer, c *client.Controls, d *client.Dialogue, blocks *client.Blocks, raw bool) error {
	out := bufio.NewWriter(w)
	dirs, err := why(ctx, d, out, blocks, raw)
	if err != nil {
		return err
	}
	var failed client.Failures
	below, err := blocks.Below(ctx, c, dirs, func(name string, err error) { failed.Add(name, err.Error()) })
	if err != nil {
		return err
	}
	if _, err := why(ctx, d, out, below, raw); err != nil {
		return err
	}
	return errors.Join(out.Flush(), failed.Err("%d directories could not be listed", failed.Total))
}

// why prints the verdicts on blocks, and returns the positions of directories.
func why(ctx context.Context, d *client.Dialogue, out *bufio.Writer, blocks *client.Blocks, raw bool) (dirs []int, err error) {
	first := 0
	for rest := blocks.Paths; len(rest) > 0; {
		var batch []string
		batch, rest = client.CutBatch(rest)
		var a whyAnswer
		err := d.AskInto(ctx, whyRequest{"why", blocks.Request(batch)}, &a)
		if err == nil && len(a.Verdicts) != len(batch) {
			err = fmt.Errorf("answer of the daemon: verdicts on %d blocks, %d were asked for", len(a.Verdicts), len(batch))
		}
		var found []int
		if err == nil {
			found, err = printVerdicts(out, blocks, first, a.Verdicts, raw)
		}
		if err != nil {
			return nil, fmt.Errorf("why in %s: %w", d.Mount, client.Blame(err, blocks.Names[first:first+len(batch)]))
		}
		dirs = append(dirs, found...)
		first += len(batch)
	}
	return dirs, nil
}

// printVerdicts writes a line for each verdict on a block, from position first on, and returns
// the positions of directories. w keeps errors of writing.
func printVerdicts(w *bufio.Writer, blocks *client.Blocks, first int, verdicts []json.RawMessage, raw bool) (dirs []int, err error) {
	for i, verdict := range verdicts {
		var v struct {
			Verdict outcome.Kind `json:"verdict"`
			Tier    string       `json:"tier"`
			Text    string       `json:"text"`
		}
		if err := json.Unmarshal(verdict, &v); err != nil {
			return nil, fmt.Errorf("answer of the daemon: %w", err)
		}
		if v.Verdict == outcome.Present && v.Tier == "" && blocks.IsDir(first+i) {
			dirs = append(dirs, first+i)
			continue
		}
		if raw {
			fmt.Fprintf(w, "%s\n", verdict)
			continue
		}
		if v.Text == "" {
			v.Text = string(v.Verdict)
		}
		fmt.Fprintf(w, "%s: %s\n", show.Text(blocks.Names[first+i]), show.Text(v.Text))
	}
	return dirs, nil
}

// List are the options of kvfs ls.
type List struct {
	Long      bool // one line an entry, with all that is known
	Recursive bool // all blocks below a directory, not its entries
	JSON      bool // one object an entry; it is long
}

type entry struct {
	Path   string    `json:"path"` // escaped
	Mode   string    `json:"mode"` // as ls has it
	Size   int64     `json:"size"` // bytes; 0 for a directory
	Mtime  time.Time `json:"mtime"`
	Tiers  []string  `json:"tiers"` // fastest first
	State  string    `json:"state"` // hit, pending, late, miss; empty: unknown, or a directory
	Pinned bool      `json:"pinned"`
}

// listBatch is how many entries are looked up, and printed, at once.
const listBatch = 1000

// Run lists a block, or the entries of a directory, by name.
func (l *List) Run(ctx context.Context, s Streams, c *client.Controls, path string) error {
	mount, below, err := c.Locate([]string{path})
	if err != nil {
		return err
	}
	top := filepath.Join(mount, below[0])
	var failed client.Failures
	files, err := l.files(c, top, func(dir string, err error) { failed.Add(dir, err.Error()) })
	if err != nil {
		return err
	}
	d, err := c.Dial(mount, "query")
	if err != nil && !errors.Is(err, iofs.ErrPermission) { // without it, tiers are those of this node
		return err
	}
	if d != nil {
		defer d.Close()
	}
	out := bufio.NewWriter(s.Out)
	for batch := range slices.Chunk(files, listBatch) {
		if err := l.print(ctx, out, d, mount, top, batch); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if failed.Total > 0 {
		return failed.Err("%d directories could not be listed", failed.Total)
	}
	return nil
}

// files returns the paths to list: of a block, the block.
func (l *List) files(c *client.Controls, top string, failed func(dir string, err error)) (files []string, err error) {
	info, err := os.Lstat(top)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{top}, nil
	}
	if l.Recursive {
		err = c.WalkBlocks(top, func(path string) error { files = append(files, path); return nil }, failed)
		slices.Sort(files)
		return files, err
	}
	names, err := os.ReadDir(top)
	for _, e := range names {
		files = append(files, filepath.Join(top, e.Name()))
	}
	return files, err
}

// print writes the lines of some files. A file that is gone by now has none.
func (l *List) print(ctx context.Context, out *bufio.Writer, d *client.Dialogue, mount, top string, files []string) error {
	if !l.Long && !l.JSON {
		for _, f := range files {
			fmt.Fprintln(out, show.Text(shortName(top, f)))
		}
		return nil
	}
	states, err := statesOf(ctx, d, mount, files)
	if err != nil {
		return err
	}
	for i, f := range files {
		e, err := entryOf(f, states[i])
		if errors.Is(err, iofs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		e.Path = show.Text(shortName(top, f))
		if l.JSON {
			err = json.NewEncoder(out).Encode(e)
		} else {
			_, err = fmt.Fprintln(out, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shortName returns the path of a file below the directory that is listed.
func shortName(top, file string) string {
	if file == top {
		return filepath.Base(file)
	}
	return file[len(top)+1:]
}

// statesOf returns the states of files, as the query exists has them. Without a dialogue they are spaces.
func statesOf(ctx context.Context, d *client.Dialogue, mount string, files []string) (string, error) {
	if d == nil {
		return strings.Repeat(" ", len(files)), nil
	}
	names := &client.Blocks{Mount: mount, Names: files}
	for _, f := range files {
		rel, err := filepath.Rel(mount, f)
		if err != nil {
			return "", err
		}
		names.Paths = append(names.Paths, rel)
	}
	look := &lookup{Lookup: &Lookup{NoLease: true, JSON: true}, d: d} // JSON: nothing is printed here
	return look.ask(ctx, names)
}

// entryOf finds out what is known of a file, which is in a state.
func entryOf(file string, state byte) (*entry, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	e := &entry{Mode: info.Mode().String(), Mtime: info.ModTime(), Tiers: []string{}}
	if info.IsDir() {
		return e, nil
	}
	e.Size = info.Size()
	words := stateWords[state]
	e.State = words[0]
	tiers, err := xattr(file, "user.kvfs.tier")
	if errors.Is(err, iofs.ErrPermission) { // one may not read the block: the query may know its fastest tier
		if e.State == "hit" {
			e.Tiers = append(e.Tiers, words[1])
		}
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	if tiers != "" {
		e.Tiers = strings.Split(tiers, ",")
	}
	if words[1] == "peer" && !slices.Contains(e.Tiers, "peer") {
		e.Tiers = append(e.Tiers, "peer")
	}
	pinned, err := xattr(file, "user.kvfs.pinned")
	e.Pinned = pinned == "1"
	return e, err
}

// xattr returns an attribute of a block.
func xattr(file, name string) (string, error) {
	var buf [256]byte
	for {
		n, err := unix.Lgetxattr(file, name, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &os.PathError{Op: "getxattr " + name, Path: file, Err: err}
		default:
			return string(buf[:n]), nil
		}
	}
}

// String returns the entry as a line for people.
func (e *entry) String() string {
	size, tiers, pinned, name := show.Bytes(e.Size), strings.Join(e.Tiers, ","), "-", e.Path
	switch {
	case e.Mode[0] == 'd':
		size, name = "-", name+"/"
	case tiers == "":
		tiers = e.State // pending
	}
	if e.Pinned {
		pinned = "pinned"
	}
	age := max(time.Since(e.Mtime), 0)
	if age > time.Minute {
		age = age.Round(time.Second)
	}
	return fmt.Sprintf("%s  %10s  %10v  %-11s  %-6s  %s", e.Mode, size, age.Round(time.Millisecond), show.OrDash(tiers), pinned, name)
}

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
func (e *Events) Run(ctx context.Context, w io.Writer, c *client.Controls, dir string) error {
	d, err := c.Control(dir, "events")
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
		return fmt.Errorf("events of %s: %w", d.Mount, err)
	}
	err = e.follow(ctx, d.Lines(ctx), w)
	switch {
	case ctx.Err() != nil, errors.Is(err, unix.EPIPE):
		return nil
	case err != nil:
		return fmt.Errorf("events of %s: %w", d.Mount, err)
	}
	return nil
}

type eventsRequest struct {
	Since  uint64   `json:"since,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Events []string `json:"events,omitempty"`
}

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
