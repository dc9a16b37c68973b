package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
)

// blockFlags are the flags of commands that name blocks by path or by hash.
type blockFlags struct {
	mount, group, template string
	ranks                  int
	request                string
	nul, escaped           bool
}

// add adds the flags to cmd.
func (b *blockFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.mount, "mount", "", "the arguments are hashes, of blocks of the mount at this directory")
	cmd.Flags().StringVar(&b.group, "group", "", "{group} of the template (with --mount)")
	cmd.Flags().StringVar(&b.template, "template", "", "how a hash becomes a path below the mount; {group}/{hash} unless given (with --mount)")
	cmd.Flags().IntVar(&b.ranks, "ranks", 1, "a block is a file for each {rank} of the template below this (with --mount)")
	cmd.Flags().StringVar(&b.request, "request", "", "name the work that follows, in logs and .kvfs/jobs")
	b.addForm(cmd)
}

// addForm adds the flags that say how names are given.
func (b *blockFlags) addForm(cmd *cobra.Command) {
	nulFlag(cmd, &b.nul)
	cmd.Flags().BoolVarP(&b.escaped, "escaped", "e", false, "names are escaped as kvfs prints them (\\n, \\xff, \\\\); so are those in --json")
}

// check finds wrong usage.
func (b *blockFlags) check(cmd *cobra.Command) error {
	for _, flag := range []string{"group", "template", "ranks"} {
		if cmd.Flags().Changed(flag) && b.mount == "" {
			return usageError(cmd, "--%s is about hashes, which need --mount", flag)
		}
	}
	if b.ranks < 1 {
		return usageError(cmd, "--ranks: %d is less than 1", b.ranks)
	}
	return checkUTF8(cmd, "group", "template", "request")
}

// checkUTF8 finds flags of text that cannot stand in a request.
func checkUTF8(cmd *cobra.Command, flags ...string) error {
	for _, flag := range flags {
		if value := cmd.Flag(flag).Value.String(); !utf8.ValidString(value) {
			return usageError(cmd, "--%s: %q is not UTF-8", flag, value)
		}
	}
	return nil
}

// namedBlocks are the blocks of one command line.
type namedBlocks struct {
	mount  string
	names  []string // as they were given
	paths  []string // below the mount; nil if names are hashes
	shared blockRequest
}

// blockRequest is the part of requests that names blocks.
type blockRequest struct {
	Keys     []string `json:"keys,omitempty"`
	Hashes   []string `json:"hashes,omitempty"`
	Group    string   `json:"group,omitempty"`
	Template string   `json:"template,omitempty"`
	Ranks    int      `json:"ranks,omitempty"`
	Escaped  bool     `json:"escaped,omitempty"`
	Request  string   `json:"request,omitempty"`
}

// open connects, reads which blocks are meant, and begins a dialogue with a control file of their
// mount, which the caller closes.
func (b *blockFlags) open(connect connector, stdin io.Reader, args []string, file string) (*controls, *namedBlocks, *dialogue, error) {
	c, err := connect()
	if err != nil {
		return nil, nil, nil, err
	}
	blocks, err := b.read(c, stdin, args)
	if err != nil {
		return nil, nil, nil, err
	}
	d, err := c.dial(blocks.mount, file)
	return c, blocks, d, err
}

// read reads the names, and finds the mount that they are in.
func (b *blockFlags) read(c *controls, stdin io.Reader, args []string) (*namedBlocks, error) {
	names, err := readNames(args, stdin, b.nul)
	if errors.Is(err, errNoNames) && b.mount != "" {
		if _, wrong := c.root(b.mount); wrong != nil {
			return nil, wrong
		}
	}
	if err != nil {
		return nil, err
	}
	for i := 0; b.escaped && i < len(names); i++ {
		name, err := query.Unescape(names[i])
		if err != nil {
			return nil, fmt.Errorf("%q: a backslash begins none of the escapes of Go", names[i])
		}
		names[i] = name
	}
	n := &namedBlocks{names: names, shared: blockRequest{Escaped: b.escaped, Request: b.request}}
	if b.mount == "" {
		if n.mount, n.paths, err = c.locate(names); err == nil {
			err = n.openMount()
		}
		return n, err
	}
	n.shared.Group, n.shared.Template = b.group, b.template
	if b.ranks > 1 {
		n.shared.Ranks = b.ranks
	}
	n.mount, err = c.root(b.mount)
	return n, err
}

// openMount puts what is in the mount in the place of the mount itself, of which the daemon cannot be asked.
func (n *namedBlocks) openMount() error {
	at := slices.Index(n.paths, ".")
	if at < 0 {
		return nil
	}
	entries, err := os.ReadDir(n.mount)
	if err != nil {
		return err
	}
	root := n.names[at]
	n.names, n.paths = slices.Delete(n.names, at, at+1), slices.Delete(n.paths, at, at+1)
	for _, e := range entries {
		n.names, n.paths = append(n.names, filepath.Join(root, e.Name())), append(n.paths, e.Name())
	}
	return n.openMount()
}

// asked returns the names as requests have them.
func (n *namedBlocks) asked() []string {
	if n.paths != nil {
		return n.paths
	}
	return n.names
}

// request names some of them: escaped if one of them is not UTF-8, as JSON is.
func (n *namedBlocks) request(batch []string) blockRequest {
	q := n.shared
	q.Escaped = q.Escaped || slices.ContainsFunc(batch, func(name string) bool { return !utf8.ValidString(name) })
	if q.Escaped {
		batch = slices.Clone(batch)
		for i := range batch {
			batch[i] = query.Escape(batch[i])
		}
	}
	if n.paths != nil {
		q.Keys = batch
	} else {
		q.Hashes = batch
	}
	return q
}

// isDir reports whether the name at a position is that of a directory.
func (n *namedBlocks) isDir(i int) bool {
	if n.paths == nil {
		return false // it is a hash
	}
	info, err := os.Lstat(filepath.Join(n.mount, n.paths[i]))
	return err == nil && info.IsDir()
}

// below returns the blocks below the directories at some positions, with names as if they had been
// given. What cannot be listed goes to failed, with its name.
func (n *namedBlocks) below(ctx context.Context, c *controls, dirs []int, failed func(name string, err error)) (*namedBlocks, error) {
	all := &namedBlocks{mount: n.mount, paths: []string{}, shared: n.shared}
	for _, i := range dirs {
		top := filepath.Join(n.mount, n.paths[i])
		named := func(path string) string { return filepath.Join(n.names[i], path[len(top):]) }
		err := c.walkBlocks(top, func(path string) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if len(all.names) == maxNames {
				return fmt.Errorf("more than %d blocks; name the directories below", maxNames)
			}
			rel, err := filepath.Rel(n.mount, path)
			all.names, all.paths = append(all.names, named(path)), append(all.paths, rel)
			return err
		}, func(dir string, err error) { failed(named(dir), err) })
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// lookupFlags are the flags of kvfs lookup.
type lookupFlags struct {
	blockFlags
	spec              string
	numTokens, cached int
	promote, noLease  bool
	deadline          time.Duration
	json              bool
}

func newLookupCommand(connect connector) *cobra.Command {
	var flags lookupFlags
	cmd := &cobra.Command{
		Use: "lookup [flags] PATH...\n  kvfs lookup --mount DIR [flags] HASH...\n" +
			"  kvfs lookup --mount DIR --spec NAME|@FILE [flags] HASH...",
		Short: "Show which blocks are there, or the longest hit of a prompt",
		Long: "Show which blocks are there, one a line: hit, pending (it is being written, or on its way into\n" +
			"memory), late (it is there, but not in time for the deadline) or miss, the tier, and the name.\n" +
			"Standard error gets a summary.\n\n" +
			"PATH is a block, or a directory for all blocks below it, which come after the blocks that are\n" +
			"named; - reads names from standard input, one a line, or each ended by a NUL byte with -0. All must\n" +
			"be of one mount. In the \"states\" of --json a directory is /, and the numbers count the blocks below.\n\n" +
			"With --mount the names are hashes, and --template and --group say which paths they stand for.\n" +
			"With --spec they are those of the hash blocks of a prompt, in order, and the answer is how many tokens\n" +
			"need not be computed, and how many blocks of each group are then to be read. --spec names a spec\n" +
			"of the daemon (see kvfs specs), or, after @, a file that has one.\n\n" +
			"Exit codes: 0 if all are hits, or with --spec; 1 if some are not, or the daemon refused; 5 if it is\n" +
			"not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runLookup(cmd, connect, &flags, args) },
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&flags.spec, "spec", "", "find the longest hit for the groups of this spec (with --mount)")
	cmd.Flags().IntVar(&flags.numTokens, "num-tokens", 0, "length of the prompt; that of all hashes unless given (with --spec)")
	cmd.Flags().IntVar(&flags.cached, "cached", 0, "tokens that the engine has already, of which nothing is to be read (with --spec)")
	cmd.Flags().BoolVar(&flags.promote, "promote", false, "begin to bring those that are not in memory there")
	cmd.Flags().BoolVar(&flags.noLease, "no-lease", false, "do not keep what is there readable for a while")
	cmd.Flags().DurationVar(&flags.deadline, "deadline", 0, "what would take longer to come into memory is not there; 0: no deadline; that of the group unless given")
	cmd.Flags().BoolVar(&flags.json, "json", false, "print the answer as JSON")
	return cmd
}

// check finds wrong usage.
func (f *lookupFlags) check(cmd *cobra.Command, args []string) error {
	if err := needNames(cmd, args); err != nil {
		return err
	}
	changed := cmd.Flags().Changed
	switch {
	case changed("spec") && f.mount == "":
		return usageError(cmd, "--spec is about hashes, which need --mount")
	case changed("spec") && changed("group"):
		return usageError(cmd, "--group and --spec exclude each other: a spec has the names of its groups")
	case changed("spec") && (f.spec == "" || f.spec == "@"):
		return usageError(cmd, "--spec wants a name, or @ and a file")
	case !changed("spec") && (changed("num-tokens") || changed("cached")):
		return usageError(cmd, "--num-tokens and --cached want --spec")
	case f.numTokens < 0, f.cached < 0:
		return usageError(cmd, "a number of tokens cannot be negative")
	case f.deadline < 0:
		return usageError(cmd, "--deadline: %v is negative", f.deadline)
	}
	if err := checkUTF8(cmd, "spec"); err != nil {
		return err
	}
	return f.blockFlags.check(cmd)
}

// lookOptions are the fields that both kinds of look-ups have.
type lookOptions struct {
	Lease      *bool  `json:"lease,omitempty"`
	Promote    bool   `json:"promote,omitempty"`
	DeadlineMS *int64 `json:"deadline_ms,omitempty"`
}

// options returns those of the command line.
func (f *lookupFlags) options(cmd *cobra.Command) lookOptions {
	o := lookOptions{Promote: f.promote}
	if f.noLease {
		o.Lease = new(bool)
	}
	if cmd.Flags().Changed("deadline") {
		// Rounded up: 0 would be no deadline.
		ms := int64((f.deadline + time.Millisecond - 1) / time.Millisecond)
		o.DeadlineMS = &ms
	}
	return o
}

func runLookup(cmd *cobra.Command, connect connector, flags *lookupFlags, args []string) error {
	if err := flags.check(cmd, args); err != nil {
		return err
	}
	c, blocks, d, err := flags.open(connect, cmd.InOrStdin(), args, "query")
	if err != nil {
		return doneNothing(cmd, err, flags.printNone())
	}
	defer d.Close()
	if flags.spec != "" {
		return longestHit(cmd, d, flags, blocks)
	}
	l := &lookup{cmd: cmd, d: d, flags: flags, out: bufio.NewWriter(cmd.OutOrStdout()), sum: existsAnswer{Op: "exists"}}
	return l.run(c, blocks)
}

// printNone returns what writes the answer about no blocks; nil where that is nothing.
func (f *lookupFlags) printNone() func(io.Writer) error {
	if !f.json {
		return nil
	}
	return func(w io.Writer) error {
		if f.spec != "" {
			return json.NewEncoder(w).Encode(longestAnswer{Op: "longest_hit", Groups: []longestGroup{}})
		}
		return json.NewEncoder(w).Encode(existsAnswer{Op: "exists"})
	}
}

// existsRequest and existsAnswer are what is asked of .kvfs/query, and answered.
type existsRequest struct {
	Op string `json:"op"`
	blockRequest
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

// stateWords are the states of blocks, each with its tier, as docs/control.md has them.
var stateWords = map[byte][2]string{
	'm': {"hit", "memory"},
	'd': {"hit", "disk"},
	'p': {"hit", "peer"},
	'w': {"pending", "-"},
	'l': {"late", "-"},
	'.': {"miss", "-"},
}

// lookup is one run of the command.
type lookup struct {
	cmd   *cobra.Command
	d     *dialogue
	flags *lookupFlags
	out   *bufio.Writer

	sum    existsAnswer // States are those of the names
	below  string       // states of blocks below directories
	failed failures     // directories
}

// run prints the states of blocks.
func (l *lookup) run(c *controls, blocks *namedBlocks) error {
	states, err := l.ask(blocks)
	if err != nil {
		return err
	}
	l.sum.States = states
	var dirs []int
	for i := range len(states) {
		if states[i] == '/' {
			dirs = append(dirs, i)
		}
	}
	below, err := blocks.below(l.cmd.Context(), c, dirs, func(name string, err error) { l.failed.add(name, err.Error()) })
	if err != nil {
		return err
	}
	prefix := l.sum.Prefix
	if l.below, err = l.ask(below); err != nil {
		return err
	}
	l.sum.Prefix = prefix
	if l.flags.json {
		if err := json.NewEncoder(l.out).Encode(l.sum); err != nil {
			return err
		}
	}
	if err := l.out.Flush(); err != nil {
		return err
	}
	total := len(blocks.names) - len(dirs) + len(below.names)
	summary := l.summary(total)
	if l.failed.Total > 0 {
		return errors.Join(l.failed.err("%d directories could not be listed", l.failed.Total), errors.New(summary))
	}
	if l.sum.Hits < total {
		return errors.New(summary)
	}
	if !l.flags.json {
		fmt.Fprintln(l.cmd.ErrOrStderr(), summary)
	}
	return nil
}

// ask asks for blocks, adds up and prints what is found, and returns their states.
func (l *lookup) ask(blocks *namedBlocks) (string, error) {
	var states strings.Builder
	options := l.flags.options(l.cmd)
	for rest := blocks.asked(); len(rest) > 0; {
		var batch []string
		batch, rest = cutBatch(rest)
		first := states.Len()
		names := blocks.names[first : first+len(batch)]
		var a existsAnswer
		err := l.d.askInto(l.cmd.Context(), existsRequest{"exists", blocks.request(batch), options}, &a)
		if err == nil && len(a.States) != len(batch) {
			err = fmt.Errorf("answer of the daemon: states of %d blocks, %d were asked for", len(a.States), len(batch))
		}
		if err != nil {
			return "", fmt.Errorf("look up in %s: %w", l.d.mount, blame(err, names))
		}
		if l.sum.Prefix == first { // all so far are hits
			l.sum.Prefix += a.Prefix
		}
		a.Misses -= strings.Count(a.States, "/")
		l.sum.Hits, l.sum.Pending, l.sum.Late, l.sum.Misses = l.sum.Hits+a.Hits, l.sum.Pending+a.Pending, l.sum.Late+a.Late, l.sum.Misses+a.Misses
		states.WriteString(a.States)
		if !l.flags.json {
			printStates(l.out, a.States, names)
		}
	}
	return states.String(), nil
}

// printStates writes a line for each state of a block. Errors are kept by w.
func printStates(w *bufio.Writer, states string, names []string) {
	for i := range len(states) {
		if states[i] == '/' {
			continue
		}
		words, known := stateWords[states[i]]
		if !known { // of a newer daemon
			words = [2]string{states[i : i+1], "-"}
		}
		fmt.Fprintf(w, "%-7s  %-6s  %s\n", words[0], words[1], show.Text(names[i]))
	}
}

// summary says how many there are of each kind.
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
	add(strings.Count(all, "p"), "at a peer")
	add(l.sum.Pending, "pending")
	add(l.sum.Late, "late")
	add(l.sum.Misses, "missing")
	return show.Blocks(int64(total)) + ": " + strings.Join(parts, ", ")
}

// longestRequest and longestAnswer are what is asked of .kvfs/query, and answered.
type longestRequest struct {
	Op   string          `json:"op"`
	Spec json.RawMessage `json:"spec"`
	blockRequest
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

// longestHit prints the longest hit of a prompt.
func longestHit(cmd *cobra.Command, d *dialogue, flags *lookupFlags, blocks *namedBlocks) error {
	if _, rest := cutBatch(blocks.names); len(rest) > 0 {
		return fmt.Errorf("%d hashes are too many for one prompt", len(blocks.names))
	}
	q := longestRequest{Op: "longest_hit", blockRequest: blocks.request(blocks.names), Cached: flags.cached, Fetch: true, lookOptions: flags.options(cmd)}
	if cmd.Flags().Changed("num-tokens") {
		q.NumTokens = &flags.numTokens
	}
	var err error
	if file, isFile := strings.CutPrefix(flags.spec, "@"); isFile {
		q.Spec, err = readDocument(file, cmd.InOrStdin())
	} else {
		q.Spec, err = json.Marshal(flags.spec)
	}
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := d.askInto(cmd.Context(), q, &raw); err != nil {
		return fmt.Errorf("look up in %s: %w", d.mount, blame(err, blocks.names))
	}
	if flags.json {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", raw)
		return err
	}
	return printLongest(cmd.OutOrStdout(), raw)
}

// printLongest writes the answer for people.
func printLongest(w io.Writer, raw json.RawMessage) error {
	var a longestAnswer
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("answer of the daemon: %w", err)
	}
	note := ""
	if a.Capped {
		note = " (all of the prompt is there, and its end has to be computed in any case)"
	}
	fmt.Fprintf(w, "hit: %d tokens%s\n", a.HitTokens, note)
	if a.Pending > 0 || a.Late > 0 {
		fmt.Fprintf(w, "taken for absent: %d pending, %d late\n", a.Pending, a.Late)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "GROUP\tBLOCKS\tTO READ\n")
	for _, g := range a.Groups {
		fmt.Fprintf(t, "%s\t%d\t%d\n", show.Text(show.OrDash(g.Name)), len(g.Load), len(g.Fetch))
	}
	return t.Flush()
}
