package main

import (
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

// prefetchFlags are the flags of kvfs prefetch.
type prefetchFlags struct {
	blockFlags
	blocks.Prefetch
}

func newPrefetchCommand(connect client.Connector) *cobra.Command {
	var flags prefetchFlags
	cmd := &cobra.Command{
		Use:   "prefetch [flags] PATH...\n  kvfs prefetch --mount DIR [flags] HASH...",
		Short: "Load blocks into memory",
		Long: "Load blocks into memory, in order, and wait until they are there. They stay readable for mount.lookup_lease.\n\n" +
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
	flags.add(cmd, connect)
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON")
	cmd.Flags().BoolVarP(&flags.Quiet, "quiet", "q", false, "do not show the progress")
	return cmd
}

func runPrefetch(cmd *cobra.Command, connect client.Connector, flags *prefetchFlags, args []string) error {
	if err := needNames(cmd, args); err != nil {
		return err
	}
	if err := flags.check(cmd); err != nil {
		return err
	}
	c, named, d, err := flags.Open(connect, cmd.InOrStdin(), args, "prefetch")
	if err != nil {
		return doneNothing(cmd, err, flags.PrintNone())
	}
	defer d.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	return flags.Run(ctx, streams(cmd), c, d, named)
}
