package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/csi"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// newCSICommand returns the command that is a CSI driver.
func newCSICommand() *cobra.Command {
	readyFD := -1
	var o csi.Options
	cmd := &cobra.Command{
		Use:   "csi [flags]",
		Short: "Serve mounts to pods of Kubernetes: a CSI driver, until SIGTERM or SIGINT",
		Long: "Mount the store at store.socket, which kvfs serve owns, in pods, at the request of a kubelet. The mounts\n" +
			"outlive this process. Needs root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready := daemon.NewReadiness(readyFD)
			defer ready.Close()
			if cmd.Flags().Changed("mode") {
				return usageError(cmd, "--mode: kvfs csi has mode %s", config.ModeStandaloneStore)
			}
			if err := cmd.Flags().Set("mode", config.ModeStandaloneStore); err != nil {
				return err
			}
			cfg, err := load(config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
			if err != nil {
				return exit.With(exit.Config, err)
			}
			if o.Logger, err = daemon.NewLogger(cfg); err != nil {
				return err
			}
			daemon.Warn(cfg, o.Logger)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			o.Program, o.Config = thisProgram(), cfg
			return csi.Serve(ctx, o, ready)
		},
	}
	name, _ := os.Hostname() // without it --node-id is missing
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when requests are answered")
	cmd.Flags().StringVar(&o.Endpoint, "endpoint", "unix:///csi/csi.sock", "socket at which the kubelet finds this driver")
	cmd.Flags().StringVar(&o.NodeID, "node-id", name, "name of this node in Kubernetes")
	config.AddFlags(cmd.Flags())
	return cmd
}
