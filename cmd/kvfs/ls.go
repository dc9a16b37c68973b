package main

import (
	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

func newLsCommand(connect client.Connector) *cobra.Command {
	var list blocks.List
	cmd := &cobra.Command{
		Use:   "ls [-l] [-R] [--json] [PATH]",
		Short: "List blocks with their tiers",
		Long: "List the entries of the directory PATH, or a block, by name. -l shows mode, size, age, tiers, pin and name.\n" +
			"\"peer\" means that other nodes have the block, as far as this node knows. -R lists all blocks below PATH.\n" +
			"Without PATH it is the only kvfs mount of this machine.\n\n" +
			"Exit codes: 0 if done; 1 if PATH does not exist or a directory cannot be listed; 5 if PATH is not in a kvfs\n" +
			"mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := mountArg(connect, args)
			if err != nil {
				return err
			}
			return list.Run(cmd.Context(), streams(cmd), connect, path)
		},
	}
	cmd.Flags().BoolVarP(&list.Long, "long", "l", false, "one line an entry, with all that is known")
	cmd.Flags().BoolVarP(&list.Recursive, "recursive", "R", false, "all blocks below PATH")
	cmd.Flags().BoolVar(&list.JSON, "json", false, "print each entry as a JSON object, as with -l")
	return cmd
}
