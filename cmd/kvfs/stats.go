package main

import (
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
)

// minInterval is the shortest interval of kvfs stats and top: a sample costs the daemon some CPU.
const minInterval = 10 * time.Millisecond

func newStatsCommand(connect client.Connector) *cobra.Command {
	var lines watch.Lines
	cmd := &cobra.Command{
		Use:   "stats [--interval 1s] [--count N] [--json] [DIR]",
		Short: "Show what a mount does, one line a second",
		Long: "Show what the mount at DIR does, one line for each interval, with rates per second:\n\n" +
			"  reads, bytes/s    blocks that a tier gave, and their bytes\n" +
			"  writes, bytes/s   blocks that were committed, and their bytes\n" +
			"  hit               share of the blocks asked for that a tier gave\n" +
			"  misses            blocks that were looked up to be read, and that no tier has\n" +
			"  promote, cascade  blocks brought up from lower tiers, and copied down to them\n" +
			"  evict             blocks evicted from memory\n" +
			"  memory, ssd used  bytes in use, of the capacity\n" +
			"  queue             blocks that wait to be copied down\n\n" +
			onlyMount + "\n\n" +
			"With --json each line is an object; docs/control.md has its names. Ends with Ctrl-C, or after N lines.\n\n" +
			"Exit codes: 0 if it was ended so; 1 if the daemon does not answer; 5 if DIR is not a kvfs mount, or its\n" +
			"daemon has gone.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE:              func(cmd *cobra.Command, args []string) error { return runStats(cmd, connect, &lines, args) },
	}
	addLines(cmd, &lines)
	return cmd
}

// addLines adds the flags of lines to cmd.
func addLines(cmd *cobra.Command, lines *watch.Lines) {
	cmd.Flags().DurationVarP(&lines.Interval, "interval", "i", time.Second, "time between two lines")
	cmd.Flags().Uint64VarP(&lines.Count, "count", "n", 0, "end after this many lines; 0: never")
	cmd.Flags().BoolVar(&lines.JSON, "json", false, "print each line as a JSON object")
}

// runStats prints lines about a mount.
func runStats(cmd *cobra.Command, connect client.Connector, lines *watch.Lines, args []string) error {
	if lines.Interval < minInterval {
		return usageError(cmd, "--interval: %v is less than %v", lines.Interval, minInterval)
	}
	dir, err := mountArg(connect, args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	return lines.Run(ctx, cmd.OutOrStdout(), watch.Of(dir))
}
