package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers"
)

// evictFlags are the flags of kvfs evict.
type evictFlags struct {
	tier             string
	all, force, json bool
	nul              bool
}

func newEvictCommand(connect client.Connector) *cobra.Command {
	var flags evictFlags
	cmd := &cobra.Command{
		Use:   "evict --tier TIER [--force] [--json] (--all DIR | PATH...)",
		Short: "Drop blocks from one tier",
		Long: "Drop blocks from one tier of a mount: memory, or disk.\n\n" +
			"PATH is a block, or a directory for all blocks below it; - reads names from standard input,\n" +
			"one a line, or each ended by a NUL byte with -0. All must be of one mount. With --all, every block\n" +
			"of the tier at the mount DIR.\n\n" +
			"What only this tier holds stays, unless --force is given: such a block is lost then. Blocks that\n" +
			"are open, pinned or being written stay in any case. A block that another tier holds comes back\n" +
			"from there when it is read.\n\n" +
			"Exit codes: 0 also if blocks stayed; 1 if there is nothing at a PATH, or the daemon refused;\n" +
			"5 if it is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runEvict(cmd, connect, flags, args) },
	}
	cmd.Flags().StringVar(&flags.tier, "tier", "", "the tier: memory or disk (required)")
	cmd.Flags().BoolVar(&flags.all, "all", false, "every block of the tier")
	cmd.Flags().BoolVar(&flags.force, "force", false, "also blocks that no other tier holds: they are lost")
	cmd.Flags().BoolVar(&flags.json, "json", false, "print the answer as JSON")
	nulFlag(cmd, &flags.nul)
	return cmd
}

// runEvict finds the mount, asks its daemon and prints what it says.
func runEvict(cmd *cobra.Command, connect client.Connector, flags evictFlags, args []string) error {
	switch {
	case flags.tier == "":
		return usageError(cmd, "--tier is missing: memory or disk")
	case flags.all && len(args) != 1:
		return usageError(cmd, "--all wants one mount, %d given", len(args))
	case len(args) == 0:
		return usageError(cmd, "which blocks? Name them, or give --all DIR")
	}
	c, err := connect()
	if err != nil {
		return err
	}
	names := args
	if !flags.all {
		if names, err = client.ReadNames(args, cmd.InOrStdin(), flags.nul); err != nil {
			return doneNothing(cmd, err, flags.printNone())
		}
		if err := client.CheckText(names, "evict the directory instead"); err != nil {
			return err
		}
	}
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	// The root of the mount stands for all.
	root := slices.Contains(paths, ".")
	if flags.all && !root {
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: it is in the one at %s", args[0], mount))
	}
	if root {
		paths = nil
	}
	answer, err := askEvict(cmd.Context(), c, mount, flags, paths)
	if err != nil {
		return err
	}
	if err := printEvict(cmd.OutOrStdout(), flags, answer); err != nil {
		return err
	}
	return absent(answer)
}

// printNone returns what writes the answer about no blocks; nil where that is nothing.
func (f evictFlags) printNone() func(io.Writer) error {
	if !f.json {
		return nil
	}
	return func(w io.Writer) error { return printEvict(w, f, &fs.EvictAnswer{Kept: []fs.EvictKept{}}) }
}

// absent is the error about paths that are not there.
func absent(answer *fs.EvictAnswer) error {
	var names []string
	for _, kept := range answer.Kept {
		if kept.Reason == tiers.ReasonNotFound.String() {
			names = append(names, kept.Path)
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s: not found", names[0])
	}
	return fmt.Errorf("%s and %d more: not found", names[0], len(names)-1)
}

// askEvict sends the paths to the daemon, in as many requests as it takes, and
// returns the sum of its answers. No paths means all.
func askEvict(ctx context.Context, c *client.Controls, mount string, flags evictFlags, paths []string) (*fs.EvictAnswer, error) {
	d, err := c.Dial(mount, "evict")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sum := &fs.EvictAnswer{Kept: []fs.EvictKept{}}
	ask := fs.EvictRequest{Tier: flags.tier, Force: flags.force, All: len(paths) == 0}
	for {
		ask.Paths, paths = client.CutBatch(paths)
		var answer fs.EvictAnswer
		if err := d.AskInto(ctx, ask, &answer); err != nil {
			return nil, fmt.Errorf("evict from %s: %w", mount, err)
		}
		sum.Blocks += answer.Blocks
		sum.Bytes += answer.Bytes
		sum.KeptTotal += answer.KeptTotal
		sum.Kept = append(sum.Kept, answer.Kept...)
		if len(paths) == 0 {
			return sum, nil
		}
	}
}

// printEvict writes the answer.
func printEvict(w io.Writer, flags evictFlags, answer *fs.EvictAnswer) error {
	if flags.json {
		return show.JSON(w, struct {
			Tier string `json:"tier"`
			*fs.EvictAnswer
		}{flags.tier, answer})
	}
	fmt.Fprintf(w, "evicted %s (%s) from %s\n", show.Blocks(answer.Blocks), show.Bytes(answer.Bytes), flags.tier)
	if answer.KeptTotal == 0 {
		return nil
	}
	fmt.Fprintf(w, "kept %s:\n", show.Blocks(answer.KeptTotal))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, kept := range answer.Kept {
		fmt.Fprintf(t, "  %s\t%s\n", show.Text(kept.Reason), show.Text(kept.Path))
	}
	if more := answer.KeptTotal - int64(len(answer.Kept)); more > 0 {
		fmt.Fprintf(t, "  and %d more\n", more)
	}
	return t.Flush()
}
