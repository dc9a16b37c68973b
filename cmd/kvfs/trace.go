package main

import (
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/trace"
)

func newTraceCommand(connect client.Connector) *cobra.Command {
	cmd := &cobra.Command{Use: "trace", Short: "Record the requests to a mount, and replay them on another one"}
	cmd.AddCommand(newTraceRecordCommand(connect), newTraceReplayCommand(connect))
	return cmd
}

func newTraceRecordCommand(connect client.Connector) *cobra.Command {
	var o trace.Recording
	cmd := &cobra.Command{
		Use:   "record -o FILE [--duration 10m] [DIR]",
		Short: "Record the requests to the mount at DIR, without names",
		Long: "Write which blocks are looked up, read, written, renamed and removed in the mount at DIR, with their sizes and\n" +
			"times, until Ctrl-C or for a time. Hashes with a random key replace the names of groups and blocks. FILE is\n" +
			"JSON, one object a line, compressed if its name ends with .gz. It must not exist.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if the trace is written; 1 if not, or the daemon stopped; 3 if FILE is in a kvfs mount; 5 if DIR\n" +
			"is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.File == "" {
				return usageError(cmd, "no file is named: give -o FILE")
			}
			if err := outside(o.File); err != nil {
				return err
			}
			dir, err := mountArg(connect, args)
			if err != nil {
				return err
			}
			return trace.Record(cmd.Context(), connect, o, dir, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVarP(&o.File, "output", "o", "", "file to write")
	cmd.Flags().DurationVar(&o.Duration, "duration", 0, "end after this time; 0: with Ctrl-C")
	return cmd
}

func newTraceReplayCommand(connect client.Connector) *cobra.Command {
	replay := trace.Replay{Speed: 1}
	cmd := &cobra.Command{
		Use:   "replay [--speed N|max] [--fill] [--keep] [--json] FILE DIR",
		Short: "Replay a trace in a directory, and report hits, throughput and latencies",
		Long: "Perform the operations of FILE below DIR, a kvfs mount or any other directory, each at its time, and those of\n" +
			"one process one after the other. replay reads each opened block whole. It writes blocks with random bytes,\n" +
			"under a temporary name that it renames. It changes no other files, and removes what it wrote at the end.\n\n" +
			"Exit codes: 0 if the trace was replayed to its end; 1 if not.",
		DisableFlagsInUseLine: true,

		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return complete.MountArg(connect)(cmd, args[1:], begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay.Print(cmd.Context(), args[0], args[1], cmd.OutOrStdout())
		},
	}
	cmd.Flags().Var(&replay.Speed, "speed", "times as fast as it was recorded, or max: each process without a pause")
	complete.Flag(cmd, "speed", "1", "2", "10", "max")
	cmd.Flags().BoolVar(&replay.Fill, "fill", false, "first write the blocks that were there before the trace began, as far as it reads them")
	cmd.Flags().BoolVar(&replay.Keep, "keep", false, "leave what was written")
	cmd.Flags().BoolVar(&replay.JSON, "json", false, "print the report as JSON")
	return cmd
}
