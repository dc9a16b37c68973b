package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
)

func newDuCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "du [--json] [DIR]",
		Short: "Show how much groups and tiers use",
		Long: "Show how much memory each group of the mount at DIR uses, largest first, and how much each tier holds. ./\n" +
			"stands for files directly below the mount. Root, the user of the daemon and the users of control.users also\n" +
			"see the bytes of each group in lower tiers. The totals are of this node; a block in memory and on SSD counts\n" +
			"in both. du reads and looks up nothing in the mount.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if done; 1 if the daemon does not answer; 5 if DIR is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := mountArg(connect, args)
			if err != nil {
				return err
			}
			now, err := watch.Of(dir)()
			if err != nil {
				return err
			}
			c, err := connect()
			if err != nil {
				return err
			}
			low, err := watch.LowerOf(cmd.Context(), c, dir)
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "kvfs: groups in memory alone: %v\n", err)
			}
			u := watch.UsageOf(now.Doc, low)
			if raw {
				return show.JSON(cmd.OutOrStdout(), u)
			}
			return u.Print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the tables as JSON")
	return cmd
}
