package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// newMountCommand returns the command that mounts.
func newMountCommand() *cobra.Command {
	readyFD := -1
	takeover, background := false, false
	endsWith := 0
	cmd := &cobra.Command{
		Use:   "mount [flags] DIR",
		Short: "Mount at DIR and serve it until SIGTERM, SIGINT or umount",
		Long: "Mount at DIR and serve it until SIGTERM, SIGINT or umount: in the foreground unless --background is given.\n" +
			"With --takeover a daemon already serves DIR: it hands over the mount and what is in memory, and ends. Clients\n" +
			"wait meanwhile.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ready := daemon.NewReadiness(readyFD)
			defer ready.Close()
			cfg, err := load(config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
			if err != nil {
				return exit.With(exit.Config, err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if background {
				return daemon.Background(ctx, os.Args[1:], args[0])
			}
			if takeover {
				return thisProgram().TakeOver(ctx, cfg, args[0], ready)
			}
			return thisProgram().Mount(ctx, cfg, args[0], endsWith, ready)
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when the mount answers")
	cmd.Flags().BoolVar(&takeover, "takeover", false, "replace the daemon that serves DIR; the mount and the blocks in memory stay")
	cmd.Flags().BoolVarP(&background, "background", "d", false, "return when the mount answers, or has failed; the daemon continues, and logs to the same standard error if that is a file, else to a file that the command names")
	cmd.MarkFlagsMutuallyExclusive("background", "ready-fd")
	cmd.Flags().IntVar(&endsWith, endsWithFlag, 0, "process of the kvfs run that this mount ends with")
	_ = cmd.Flags().MarkHidden(endsWithFlag) // the flag exists
	config.AddFlags(cmd.Flags())
	return cmd
}

// endsWithFlag is the flag of kvfs mount with which kvfs run names its process.
const endsWithFlag = "ends-with"
