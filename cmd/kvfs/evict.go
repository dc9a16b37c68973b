package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// evictFlags are the flags of kvfs evict.
type evictFlags struct {
	blocks.Eviction
	all, nul bool
}

func newEvictCommand(connect client.Connector) *cobra.Command {
	var flags evictFlags
	cmd := &cobra.Command{
		Use:   "evict --tier TIER [--force] [--json] (--all [DIR] | PATH...)",
		Short: "Drop blocks from one tier",
		Long: "Drop blocks from one tier of a mount: memory, or disk. Other tiers keep theirs, and a read brings a block back\n" +
			"from there.\n\n" +
			"PATH is a block, or a directory for all blocks below it. - reads names from standard input, one a line, or\n" +
			"ended by NUL bytes with -0. All PATHs belong to one mount. --all means every block of the tier at the mount\n" +
			"DIR.\n\n" +
			onlyMount + "\n\n" +
			"A block that only this tier holds stays; with --force it is evicted, and lost. Blocks that are open, pinned or\n" +
			"being written always stay.\n\n" +
			"Exit codes: 0, also if blocks stayed; 1 if a PATH does not exist or the daemon refused; 5 if it is not a kvfs\n" +
			"mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runEvict(cmd, connect, flags, args) },
	}
	cmd.Flags().StringVar(&flags.Tier, "tier", "", "the tier: memory or disk (required)")
	complete.FlagOf(cmd, connect, "tier", complete.Tiers)
	cmd.Flags().BoolVar(&flags.all, "all", false, "every block of the tier")
	cmd.Flags().BoolVar(&flags.Force, "force", false, "also blocks that no other tier holds: they are lost")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON")
	nulFlag(cmd, &flags.nul)
	return cmd
}

// names returns the names of what to evict: of the mount, or of blocks and directories.
func (f *evictFlags) names(cmd *cobra.Command, c *client.Controls, args []string) ([]string, error) {
	if f.all {
		return orOnly(c, args)
	}
	names, err := client.ReadNames(args, cmd.InOrStdin(), f.nul)
	if err == nil {
		err = client.CheckText(names, "evict the directory instead")
	}
	return names, err
}

// runEvict finds the mount, asks its daemon and prints the answer.
func runEvict(cmd *cobra.Command, connect client.Connector, flags evictFlags, args []string) error {
	switch {
	case flags.Tier == "":
		return usageError(cmd, "--tier is missing: memory or disk")
	case flags.all && len(args) > 1:
		return usageError(cmd, "--all needs one mount, got %d", len(args))
	case !flags.all && len(args) == 0:
		return usageError(cmd, "no blocks are named: give PATH, or --all")
	}
	c, err := connect()
	if err != nil {
		return err
	}
	names, err := flags.names(cmd, c, args)
	if err != nil {
		return doneNothing(cmd, err, flags.PrintNone())
	}
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	// The root of the mount means all blocks.
	root := slices.Contains(paths, ".")
	if flags.all && !root {
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: it is a directory in the mount %s", names[0], mount))
	}
	if root {
		paths = nil
	}
	return flags.Run(cmd.Context(), streams(cmd), c, mount, paths)
}
