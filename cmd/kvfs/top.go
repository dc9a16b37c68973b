package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/top"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
)

func newTopCommand(connect client.Connector) *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top [--interval 1s] [DIR]",
		Short: "Show what a mount does, on the whole screen",
		Long: "Show the mount at DIR on the whole screen: how full its tiers are, rates of reads and writes, hits, failures\n" +
			"since the start, latencies of kernel requests, the largest groups, the members of the cluster, and the last\n" +
			"events, which only some users may read. A latency is the upper bound of a bucket; each bound is four times the\n" +
			"one before.\n\n" +
			"q, Escape and Ctrl-C quit. Arrows, page keys, Home and End scroll. If standard output is not a terminal, the\n" +
			"output is that of kvfs stats.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if a key or signal ended it; 1 if the daemon does not answer; 5 if DIR is not a kvfs mount, or\n" +
			"its daemon ended.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			lines := watch.Lines{Interval: interval}
			if !show.IsTerminal(cmd.OutOrStdout()) || interval < minInterval {
				return runStats(cmd, connect, &lines, args)
			}
			dir, err := mountArg(connect, args)
			if err != nil {
				return err
			}
			return top.Run(cmd.Context(), &top.Reader{Dir: dir, Connect: connect}, interval)
		},
	}
	cmd.Flags().DurationVarP(&interval, "interval", "i", time.Second, "time between two views")
	return cmd
}
