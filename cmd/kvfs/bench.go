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
		Short: "Compare a mount with tmpfs and a disk",
		Long: "Write and read blocks of 64 KiB, 1 MiB and 4 MiB with 1 and 2 threads in the mount at DIR, in /dev/shm and in\n" +
			"a directory on a disk, whose page cache is warm, and look blocks up. A write makes a new file and renames it;\n" +
			"a read opens a block and reads it whole. Figures are medians of three rounds, in turns.\n\n" +
			"Each place holds at most 64 MiB at a time, the mount at most an eighth of its memory: so much of other blocks\n" +
			"may be evicted. An SSD tier gets copies of blocks as always. bench removes everything at the end, also after\n" +
			"Ctrl-C.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if done; 1 if room is lacking or it was interrupted; 5 if DIR is not a kvfs mount.",
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
	cmd.Flags().DurationVar(&o.Duration, "duration", 20*time.Second, "approximate duration of the whole run")
	cmd.Flags().StringVar(&o.Disk, "disk", "", "directory on a disk; the default is TMPDIR, or /var/tmp if TMPDIR is in memory")
	cmd.Flags().StringVar(&o.Tmpfs, "tmpfs", "/dev/shm", "directory on tmpfs")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the figures as JSON")
	return cmd
}
