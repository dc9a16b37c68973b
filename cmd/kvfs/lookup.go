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

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// lookupFlags are the flags of kvfs lookup.
type lookupFlags struct {
	blockFlags
	spec              string
	numTokens, cached int
	promote, noLease  bool
	deadline          time.Duration
	json              bool
}

func newLookupCommand(connect client.Connector) *cobra.Command {
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
	case changed("spec") && f.Mount == "":
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

func runLookup(cmd *cobra.Command, connect client.Connector, flags *lookupFlags, args []string) error {
	if err := flags.check(cmd, args); err != nil {
		return err
	}
	c, blocks, d, err := flags.Open(connect, cmd.InOrStdin(), args, "query")
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
	d     *client.Dialogue
	flags *lookupFlags
	out   *bufio.Writer

	sum    existsAnswer    // States are those of the names
	below  string          // states of blocks below directories
	failed client.Failures // directories
}

// run prints the states of blocks.
func (l *lookup) run(c *client.Controls, blocks *client.Blocks) error {
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
	below, err := blocks.Below(l.cmd.Context(), c, dirs, func(name string, err error) { l.failed.Add(name, err.Error()) })
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
	total := len(blocks.Names) - len(dirs) + len(below.Names)
	summary := l.summary(total)
	if l.failed.Total > 0 {
		return errors.Join(l.failed.Err("%d directories could not be listed", l.failed.Total), errors.New(summary))
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
func (l *lookup) ask(blocks *client.Blocks) (string, error) {
	var states strings.Builder
	options := l.flags.options(l.cmd)
	for rest := blocks.Asked(); len(rest) > 0; {
		var batch []string
		batch, rest = client.CutBatch(rest)
		first := states.Len()
		names := blocks.Names[first : first+len(batch)]
		var a existsAnswer
		err := l.d.AskInto(l.cmd.Context(), existsRequest{"exists", blocks.Request(batch), options}, &a)
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

// longestHit prints the longest hit of a prompt.
func longestHit(cmd *cobra.Command, d *client.Dialogue, flags *lookupFlags, blocks *client.Blocks) error {
	if _, rest := client.CutBatch(blocks.Names); len(rest) > 0 {
		return fmt.Errorf("%d hashes are too many for one prompt", len(blocks.Names))
	}
	q := longestRequest{Op: "longest_hit", BlockRequest: blocks.Request(blocks.Names), Cached: flags.cached, Fetch: true, lookOptions: flags.options(cmd)}
	if cmd.Flags().Changed("num-tokens") {
		q.NumTokens = &flags.numTokens
	}
	var err error
	if file, isFile := strings.CutPrefix(flags.spec, "@"); isFile {
		q.Spec, err = client.ReadDocument(file, cmd.InOrStdin())
	} else {
		q.Spec, err = json.Marshal(flags.spec)
	}
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := d.AskInto(cmd.Context(), q, &raw); err != nil {
		return fmt.Errorf("look up in %s: %w", d.Mount, client.Blame(err, blocks.Names))
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
