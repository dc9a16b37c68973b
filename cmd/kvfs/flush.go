package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

func newFlushCommand(connect client.Connector) *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "flush [--json] [PATH...]",
		Short: "Copy blocks to the SSD now, and make them durable",
		Long: "Copy the blocks of each PATH that the SSD lacks, and flush the device, like fsync. Also copies blocks that\n" +
			"kvfs would keep in memory alone, as with disk.cascade: off. To wait only for the copies that kvfs has begun by\n" +
			"itself, to the SSD, peers and buckets, use kvfs drain.\n\n" +
			"PATH is a block, or a directory (a mount is one) for all committed blocks below it. Without PATH it is the\n" +
			"only kvfs mount of this machine. If there are several, the error names them.\n\n" +
			"Exit codes: 0 if all is durable; 1 if not, or if no tier keeps blocks, as without an SSD; 5 if it is not in a\n" +
			"kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			if args, err = orOnly(c, args); err != nil {
				return err
			}
			return blocks.Flush(streams(cmd), c, args, result.WantsJSON(cmd))
		},
	})
}

func newDrainCommand(connect client.Connector) *cobra.Command {
	var timeout time.Duration
	cmd := result.WithJSON(&cobra.Command{
		Use:   "drain [--timeout 1m] [--json] [DIR]",
		Short: "Wait for the copies to lower tiers that are under way",
		Long: "Wait until the blocks on their way to the SSD, to peers and to buckets when the command begins are there and\n" +
			"durable, or refused. Starts no copies of its own: kvfs flush does. Does not wait for later blocks. .kvfs/jobs\n" +
			"shows what is left.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if done; 1 if it took too long or failed, or the daemon refused; 5 if DIR is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			dir, err := orOnly(c, args)
			if err != nil {
				return err
			}
			return blocks.Drain(cmd.Context(), streams(cmd), c, dir[0], timeout, result.WantsJSON(cmd))
		},
	})
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0: as long as it takes")
	return cmd
}
