package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/bench"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
)

func newBenchCommand(connect client.Connector) *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench [--duration 20s] [--disk DIR] [--json] [DIR]",
		Short: "Measure a mount next to tmpfs and a disk",
		Long: "Write and read blocks of 64 KiB, 1 MiB and 4 MiB with 1 and 2 threads in the mount at DIR, in /dev/shm and in a\n" +
			"directory on a disk, whose page cache is warm, and ask whether blocks are there. A write is a new file that is\n" +
			"renamed, a read opens a block and reads it whole. Figures are medians of three rounds, in turns.\n\n" +
			"At most 64 MiB are in each place at one time, and in the mount at most an eighth of its memory: so much of other\n" +
			"blocks may leave memory. An SSD tier gets copies of blocks as always. All is removed at the end and with Ctrl-C.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if it is done; 1 if there is too little room, or it was interrupted; 5 if DIR is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Duration < time.Second || o.Duration > time.Hour {
				return usageError(cmd, "--duration: %v is not from 1s to 1h", o.Duration)
			}
			dir, err := mountArg(connect, args)
			if err != nil {
				return err
			}
			now, err := watch.Of(dir)()
			if err != nil {
				return err
			}
			return bench.Run(cmd.Context(), o, dir, now.Doc, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&o.Duration, "duration", 20*time.Second, "about how long all of it takes")
	cmd.Flags().StringVar(&o.Disk, "disk", "", "directory on a disk; the default is TMPDIR, or /var/tmp if TMPDIR is in memory")
	cmd.Flags().StringVar(&o.Tmpfs, "tmpfs", "/dev/shm", "directory on tmpfs")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the figures as JSON")
	return cmd
}
