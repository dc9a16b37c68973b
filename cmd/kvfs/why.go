package main

import (
	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

func newWhyCommand(connect client.Connector) *cobra.Command {
	var raw bool
	var flags blockFlags
	cmd := &cobra.Command{
		Use:   "why [--json] PATH...",
		Short: "Show why blocks are missing",
		Long: "Show what the daemon knows of each PATH: that the block exists, or why it does not: it was never stored, was\n" +
			"evicted, expired, or was removed, for example.\n\n" +
			"PATH is a block, or a directory for all blocks below it. - reads names from standard input, one a line, or\n" +
			"ended by NUL bytes with -0. All PATHs belong to one mount. Blocks below directories come last.\n\n" +
			"The daemon remembers the last 65,536 verdicts since its start.\n\n" +
			"Exit codes: 0, also for missing blocks; 1 if the daemon refused; 5 if it is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runWhy(cmd, connect, &flags, args, raw) },
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the verdicts as JSON, one a line")
	flags.addForm(cmd)
	return cmd
}

func runWhy(cmd *cobra.Command, connect client.Connector, flags *blockFlags, args []string, raw bool) error {
	if err := needNames(cmd, args); err != nil {
		return err
	}
	c, named, d, err := flags.Open(connect, cmd.InOrStdin(), args, "query")
	if err != nil {
		return doneNothing(cmd, err, nil)
	}
	defer d.Close()
	return blocks.Why(cmd.Context(), cmd.OutOrStdout(), c, d, named, raw)
}
