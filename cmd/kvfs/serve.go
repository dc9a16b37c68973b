package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// newServeCommand returns the command that owns memory and disk for other mounts.
func newServeCommand() *cobra.Command {
	readyFD := -1
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Own memory and disk for mounts of mode standalone-store, until SIGTERM or SIGINT",
		Long: "Open the tiers and serve the mounts that attach at store.socket (kvfs mount --mode standalone-store), in the\n" +
			"foreground. Mounts outlive it: their operations wait for the next owner for up to store.owner_timeout.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready := daemon.NewReadiness(readyFD)
			defer ready.Close()
			cfg, err := load(config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
			if err != nil {
				return exit.With(exit.Config, err)
			}
			if cfg.Mode != config.ModeEmbedded {
				return exit.With(exit.Config, fmt.Errorf("mode %s contributes no memory: give kvfs serve mode %s, the default", cfg.Mode, config.ModeEmbedded))
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return thisProgram().Serve(ctx, cfg, ready)
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when mounts can attach")
	config.AddFlags(cmd.Flags())
	return cmd
}
