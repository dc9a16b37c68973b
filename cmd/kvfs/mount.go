package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

func newMountCommand() *cobra.Command {
	readyFD := -1
	takeover, background := false, false
	endsWith := 0
	cmd := &cobra.Command{
		Use:   "mount [flags] DIR",
		Short: "Mount at DIR and serve it until SIGTERM, SIGINT or umount",
		Long: "Mount at DIR and serve it until SIGTERM, SIGINT or umount: in the foreground unless --background is given.\n" +
			"With --takeover the daemon that serves DIR hands over the mount and its memory, and ends. Clients wait meanwhile.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return serveUntilStopped(cmd, readyFD, func(ctx context.Context, cfg *config.Config, ready *daemon.Readiness) error {
				switch {
				case background:
					return daemon.Background(ctx, os.Args[1:], args[0])
				case takeover:
					return thisProgram().TakeOver(ctx, cfg, args[0], ready)
				}
				return thisProgram().Mount(ctx, cfg, args[0], endsWith, ready)
			})
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when the mount answers")
	cmd.Flags().BoolVar(&takeover, "takeover", false, "replace the daemon that serves DIR; the mount and the blocks in memory stay")
	cmd.Flags().BoolVarP(&background, "background", "d", false, "return when the mount answers or has failed; the daemon goes on, and logs to standard error if that is a file, else to a file that the command names")
	cmd.MarkFlagsMutuallyExclusive("background", "ready-fd")
	cmd.Flags().IntVar(&endsWith, endsWithFlag, 0, "process of the kvfs run that this mount ends with")
	_ = cmd.Flags().MarkHidden(endsWithFlag) // the flag exists
	config.AddFlags(cmd.Flags())
	return cmd
}

// serveUntilStopped loads the settings and calls serve, whose context ends with SIGTERM or SIGINT.
func serveUntilStopped(cmd *cobra.Command, readyFD int, serve func(context.Context, *config.Config, *daemon.Readiness) error) error {
	ready := daemon.NewReadiness(readyFD)
	defer ready.Close()
	cfg, err := load(config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
	if err != nil {
		return exit.With(exit.Config, err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return serve(ctx, cfg, ready)
}

// endsWithFlag is the flag of kvfs mount with which kvfs run names its process.
const endsWithFlag = "ends-with"

// umountWait is the default of umount --timeout.
const umountWait = 10 * time.Second

func newUmountCommand() *cobra.Command {
	var lazy bool
	var timeout time.Duration
	cmd := result.WithJSON(&cobra.Command{
		Use:   "umount DIR",
		Short: "Unmount, also what a dead daemon left behind",
		Long:  "Unmount DIR, a kvfs mount, and wait for the end of its daemon; --lazy does not. Also remove the mount of a dead daemon.",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: complete.MountArg(client.System),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			ending, err := mounts.Unmount(ctx, args[0], lazy)
			if ending != 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "kvfs: %s is unmounted; its daemon (process %d) is still ending\n", args[0], ending)
			}
			if err != nil {
				return err
			}
			return result.Print(cmd, struct {
				Mount  string `json:"mount"`
				Ending int    `json:"ending_pid"` // of the daemon; 0: it has ended
			}{args[0], ending}, "")
		},
	})
	cmd.Flags().BoolVar(&lazy, "lazy", false, "detach at once, even if files are open; they stay usable until closed")
	cmd.Flags().DurationVar(&timeout, "timeout", umountWait, "how long to wait until the mount is gone and its daemon has ended")
	return cmd
}

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
			return serveUntilStopped(cmd, readyFD, func(ctx context.Context, cfg *config.Config, ready *daemon.Readiness) error {
				if cfg.Mode != config.ModeEmbedded {
					return exit.With(exit.Config, fmt.Errorf("mode %s contributes no memory: give kvfs serve mode %s, the default", cfg.Mode, config.ModeEmbedded))
				}
				return thisProgram().Serve(ctx, cfg, ready)
			})
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when mounts can attach")
	config.AddFlags(cmd.Flags())
	return cmd
}
