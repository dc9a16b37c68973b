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
		Short: "Show which groups and tiers use how much",
		Long: "Show how much memory each group of the mount at DIR uses, largest first, and how much is in each tier. ./ are the\n" +
			"files directly below the mount. Of tiers below memory it shows the bytes of the blocks; root, the user of the daemon\n" +
			"and the users of control.users may see them. The total of the tiers is of this node; a block in memory and on SSD\n" +
			"counts in both. Nothing in the mount is read or looked up.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if it is done; 1 if the daemon does not answer; 5 if DIR is not a kvfs mount.",
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
