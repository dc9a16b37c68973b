package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

// umountWait is the default of umount --timeout.
const umountWait = 10 * time.Second

func newUmountCommand() *cobra.Command {
	var lazy bool
	var timeout time.Duration
	cmd := result.WithJSON(&cobra.Command{
		Use:   "umount DIR",
		Short: "Unmount, also what a dead daemon left behind",
		Long: "Unmount DIR, a kvfs mount, and wait until it is gone and its daemon has ended. --lazy does not wait for the\n" +
			"daemon. Also cleans up a mount whose daemon is dead.",
		Args: cobra.ExactArgs(1),

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
