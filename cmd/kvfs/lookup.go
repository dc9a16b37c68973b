package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// blockFlags are the flags of commands that name blocks by path or by hash.
type blockFlags struct {
	mount, group, template string
	ranks                  int
	request                string
	nul                    bool
}

// add adds the flags to cmd.
func (b *blockFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.mount, "mount", "", "the arguments are hashes, of blocks of the mount at this directory")
	cmd.Flags().StringVar(&b.group, "group", "", "{group} of the template (with --mount)")
	cmd.Flags().StringVar(&b.template, "template", "", "how a hash becomes a path below the mount; {group}/{hash} unless given (with --mount)")
	cmd.Flags().IntVar(&b.ranks, "ranks", 1, "a block is a file for each {rank} of the template below this (with --mount)")
	cmd.Flags().StringVar(&b.request, "request", "", "name the work that follows, in logs and .kvfs/jobs")
	nulFlag(cmd, &b.nul)
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
	if err := checkText(names, "the daemon cannot be asked for it"); err != nil {
		return nil, err
	}
	n := &namedBlocks{names: names, shared: blockRequest{Request: b.request}}
	if b.mount == "" {
		n.mount, n.paths, err = c.locate(names)
		return n, err
	}
	n.shared.Group, n.shared.Template = b.group, b.template
	if b.ranks > 1 {
		n.shared.Ranks = b.ranks
	}
	n.mount, err = c.root(b.mount)
	return n, err
}

// asked returns the names as requests have them.
func (n *namedBlocks) asked() []string {
	if n.paths != nil {
		return n.paths
	}
	return n.names
}

// request names some of them.
func (n *namedBlocks) request(batch []string) blockRequest {
	q := n.shared
	if n.paths != nil {
		q.Keys = batch
	} else {
		q.Hashes = batch
	}
	return q
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
			"Standard error gets a summary. - reads names from standard input, one a line, or each ended by\n" +
			"a NUL byte with -0. All must be of one mount. Directories are misses.\n\n" +
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
	_, blocks, d, err := flags.open(connect, cmd.InOrStdin(), args, "query")
	if err != nil {
		return doneNothing(cmd, err, flags.printNone())
	}
	defer d.Close()
	if flags.spec != "" {
		return longestHit(cmd, d, flags, blocks)
	}
	return lookup(cmd, d, flags, blocks)
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

// lookup prints the states of blocks.
func lookup(cmd *cobra.Command, d *dialogue, flags *lookupFlags, blocks *namedBlocks) error {
	out := bufio.NewWriter(cmd.OutOrStdout())
	sum := existsAnswer{Op: "exists"}
	var states strings.Builder
	names, options := blocks.names, flags.options(cmd)
	for rest := blocks.asked(); len(rest) > 0; {
		var batch []string
		batch, rest = cutBatch(rest)
		var a existsAnswer
		err := d.askInto(cmd.Context(), existsRequest{"exists", blocks.request(batch), options}, &a)
		if err == nil && len(a.States) != len(batch) {
			err = fmt.Errorf("answer of the daemon: states of %d blocks, %d were asked for", len(a.States), len(batch))
		}
		if err != nil {
			return fmt.Errorf("look up in %s: %w", d.mount, blame(err, names))
		}
		if sum.Prefix == states.Len() { // all so far are hits
			sum.Prefix += a.Prefix
		}
		sum.Hits, sum.Pending, sum.Late, sum.Misses = sum.Hits+a.Hits, sum.Pending+a.Pending, sum.Late+a.Late, sum.Misses+a.Misses
		states.WriteString(a.States)
		if !flags.json {
			printStates(out, a.States, names)
		}
		names = names[len(batch):]
	}
	sum.States = states.String()
	if flags.json {
		if err := json.NewEncoder(out).Encode(sum); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	summary := sum.summary()
	if sum.Hits < len(blocks.names) {
		return errors.New(summary)
	}
	if !flags.json {
		fmt.Fprintln(cmd.ErrOrStderr(), summary)
	}
	return nil
}

// printStates writes a line for each state. Errors are kept by w.
func printStates(w *bufio.Writer, states string, names []string) {
	for i := range len(states) {
		words, known := stateWords[states[i]]
		if !known { // of a newer daemon
			words = [2]string{states[i : i+1], "-"}
		}
		fmt.Fprintf(w, "%-7s  %-6s  %s\n", words[0], words[1], names[i])
	}
}

// summary says how many there are of each kind.
func (a *existsAnswer) summary() string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(strings.Count(a.States, "m"), "in memory")
	add(strings.Count(a.States, "d"), "on disk")
	add(strings.Count(a.States, "p"), "at a peer")
	add(a.Pending, "pending")
	add(a.Late, "late")
	add(a.Misses, "missing")
	return countBlocks(int64(len(a.States))) + ": " + strings.Join(parts, ", ")
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
		fmt.Fprintf(t, "%s\t%d\t%d\n", orDash(g.Name), len(g.Load), len(g.Fetch))
	}
	return t.Flush()
}
