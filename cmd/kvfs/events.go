package main

import (
	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
)

func newEventsCommand(connect client.Connector) *cobra.Command {
	var flags blocks.Events
	cmd := &cobra.Command{
		Use:   "events [--since N] [--group G]... [--event E]... [-n COUNT] [--json] [DIR]",
		Short: "Show what happens to blocks, as it happens",
		Long: "Show what happens to the blocks of the mount at DIR from now on, one event a line: time (UTC), event (stored,\n" +
			"evicted, removed, renamed), tier, size, path and reason. A line \"gap\" means lost events: the reader was too\n" +
			"slow, or --since is too old or of an earlier daemon.\n\n" +
			onlyMount + "\n\n" +
			"Ends with Ctrl-C, after COUNT lines, or when nobody reads its output any more.\n\n" +
			"Exit codes: 0 if it ended so; 1 if the daemon refused or stopped; 5 if DIR is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE:              func(cmd *cobra.Command, args []string) error { return runEvents(cmd, connect, &flags, args) },
	}
	cmd.Flags().Uint64Var(&flags.Since, "since", 0, "begin with the event of this number, or a gap if it is not known any more; 1: all that are known")
	cmd.Flags().StringArrayVar(&flags.Groups, "group", nil, "only this group; may be repeated")
	cmd.Flags().StringArrayVar(&flags.Names, "event", nil, "only events of this name; may be repeated")
	complete.FlagOf(cmd, connect, "group", complete.Groups)
	complete.Flag(cmd, "event", "stored", "evicted", "removed", "renamed")
	cmd.Flags().Uint64VarP(&flags.Count, "count", "n", 0, "end after this many lines; 0: never")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the lines as the daemon wrote them")
	return cmd
}

func runEvents(cmd *cobra.Command, connect client.Connector, flags *blocks.Events, args []string) error {
	for flag, values := range map[string][]string{"group": flags.Groups, "event": flags.Names} {
		if err := client.CheckText(values, "the daemon cannot be asked for it"); err != nil {
			return usageError(cmd, "--%s: %w", flag, err)
		}
	}
	dir, err := mountArg(connect, args)
	if err != nil {
		return err
	}
	return flags.Run(cmd.Context(), cmd.OutOrStdout(), connect, dir)
}
