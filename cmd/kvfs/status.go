package main

import (
	"bytes"
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

func newStatusCommand(connect client.Connector) *cobra.Command {
	var raw, owner bool
	cmd := &cobra.Command{
		Use:               "status [--json] [DIR] | --store [SOCKET]",
		Short:             "Show the state of a mount, or of the owner that kvfs serve runs",
		Long:              "Show the state of the mount at DIR, or of the owner that kvfs serve runs.\n\n" + onlyMount,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := statusOf(cmd.Context(), connect, args, owner)
			if err != nil {
				return err
			}
			if raw {
				_, err := cmd.OutOrStdout().Write(append(bytes.TrimRight(text, "\n"), '\n'))
				return err
			}
			return status.Print(cmd.OutOrStdout(), text)
		},
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the JSON document as the daemon wrote it")
	cmd.Flags().BoolVar(&owner, "store", false, "ask the owner at SOCKET; the default is store.socket")
	return cmd
}

// statusOf returns the status document of a mount, or of an owner.
func statusOf(ctx context.Context, connect client.Connector, args []string, owner bool) ([]byte, error) {
	if !owner {
		dir, err := mountArg(connect, args)
		if err != nil {
			return nil, err
		}
		return client.Status(dir, mounts.Timeout)
	}
	if len(args) > 0 {
		return client.OwnerStatus(ctx, args[0], mounts.Timeout)
	}
	cfg, err := load(config.Sources{Environ: os.Environ()})
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return client.OwnerStatus(ctx, cfg.Store.Socket, mounts.Timeout)
}
