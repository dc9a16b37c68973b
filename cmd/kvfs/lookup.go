package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

// lookupFlags are the flags of kvfs lookup.
type lookupFlags struct {
	blockFlags
	blocks.Lookup
	numTokens int
	deadline  time.Duration
}

func newLookupCommand(connect client.Connector) *cobra.Command {
	var flags lookupFlags
	cmd := &cobra.Command{
		Use: "lookup [flags] PATH...\n  kvfs lookup --mount DIR [flags] HASH...\n" +
			"  kvfs lookup --mount DIR --spec NAME|@FILE [flags] HASH...",
		Short: "Show which blocks exist, or how much of a prompt is cached",
		Long: "Show which blocks exist, one a line: hit, pending (being written, or on its way into memory), late (a lower\n" +
			"tier has it, but cannot load it within the deadline) or miss, the tier, and the name. Standard error gets a\n" +
			"summary.\n\n" +
			"PATH is a block, or a directory for all blocks below it. - reads names from standard input, one a line, or\n" +
			"ended by NUL bytes with -0. All PATHs belong to one mount. Blocks below directories come last. In the \"states\"\n" +
			"of --json a directory is /, and the numbers count the blocks below.\n\n" +
			"With --mount the names are hashes, and --template and --group say which paths they stand for. With --spec they\n" +
			"are the hashes of a prompt, in order, and the answer is how many tokens need not be computed, and how many\n" +
			"blocks of each group to read. --spec names a spec of the daemon (see kvfs specs), or, after @, a file with\n" +
			"one.\n\n" +
			"Exit codes: 0 if all are hits, or with --spec; 1 if some are not, or the daemon refused; 5 if it is not a kvfs\n" +
			"mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runLookup(cmd, connect, &flags, args) },
	}
	flags.add(cmd, connect)
	cmd.Flags().StringVar(&flags.Spec, "spec", "", "find the longest hit for the groups of this spec (with --mount)")
	cmd.Flags().IntVar(&flags.numTokens, "num-tokens", 0, "length of the prompt; that of all hashes unless given (with --spec)")
	cmd.Flags().IntVar(&flags.Cached, "cached", 0, "tokens that the engine has already and does not read (with --spec)")
	cmd.Flags().BoolVar(&flags.Promote, "promote", false, "begin to load the blocks that are not in memory")
	cmd.Flags().BoolVar(&flags.NoLease, "no-lease", false, "grant no lease: kvfs may evict the blocks at once")
	cmd.Flags().DurationVar(&flags.deadline, "deadline", 0, "blocks that take longer to load count as late; 0: no deadline; default: the group's")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON")
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
		return usageError(cmd, "--spec is for hashes: give --mount, too")
	case changed("spec") && changed("group"):
		return usageError(cmd, "--group and --spec exclude each other: a spec has the names of its groups")
	case changed("spec") && (f.Spec == "" || f.Spec == "@"):
		return usageError(cmd, "--spec needs a name, or @ and a file")
	case !changed("spec") && (changed("num-tokens") || changed("cached")):
		return usageError(cmd, "--num-tokens and --cached need --spec")
	case f.numTokens < 0, f.Cached < 0:
		return usageError(cmd, "a number of tokens cannot be negative")
	case f.deadline < 0:
		return usageError(cmd, "--deadline: %v is negative", f.deadline)
	}
	if err := checkUTF8(cmd, "spec"); err != nil {
		return err
	}
	return f.blockFlags.check(cmd)
}

func runLookup(cmd *cobra.Command, connect client.Connector, flags *lookupFlags, args []string) error {
	if err := flags.check(cmd, args); err != nil {
		return err
	}
	c, named, d, err := flags.Open(connect, cmd.InOrStdin(), args, "query")
	if err != nil {
		return doneNothing(cmd, err, flags.PrintNone())
	}
	defer d.Close()
	if cmd.Flags().Changed("num-tokens") {
		flags.NumTokens = &flags.numTokens
	}
	if cmd.Flags().Changed("deadline") {
		flags.Deadline = &flags.deadline
	}
	return flags.Run(cmd.Context(), streams(cmd), c, d, named)
}
