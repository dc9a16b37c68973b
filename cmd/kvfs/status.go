package main

import (
	"bytes"
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

func newStatusCommand() *cobra.Command {
	var raw, owner bool
	cmd := &cobra.Command{
		Use:   "status [--json] DIR | --store [SOCKET]",
		Short: "Show the state of the mount at DIR, or of the owner that kvfs serve runs",
		Args: func(cmd *cobra.Command, args []string) error {
			if owner {
				return cobra.MaximumNArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := statusOf(cmd.Context(), args, owner)
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
func statusOf(ctx context.Context, args []string, owner bool) ([]byte, error) {
	switch {
	case !owner:
		return client.Status(args[0], mounts.Timeout)
	case len(args) > 0:
		return client.OwnerStatus(ctx, args[0], mounts.Timeout)
	}
	cfg, err := load(config.Sources{Environ: os.Environ()})
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return client.OwnerStatus(ctx, cfg.Store.Socket, mounts.Timeout)
}
