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
		Short: "Make blocks durable on SSD",
		Long: "Copy the blocks of each PATH that the SSD lacks, and flush the device. PATH is a block, or a\n" +
			"directory (a mount is one) for all committed blocks below it. Blocks that kvfs would not copy\n" +
			"by itself are copied, too.\n" +
			"Without PATH it is the only kvfs mount of this machine. If there are several, their names are in the error.\n\n" +
			"Exit codes: 0 if all is durable; 1 if it is not, or no tier keeps blocks, as without an SSD; 5 if it is not in a kvfs mount.",
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
		Short: "Wait until the copies to lower tiers that are under way are done",
		Long: "Wait for the blocks that are on their way to the SSD and to peers when the command begins: until they\n" +
			"are there and durable, or refused. Later blocks are not waited for. .kvfs/jobs shows what is left.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if it is done; 1 if it is not in time, failed, or the daemon refused; 5 if DIR is not a\n" +
			"kvfs mount.",
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
