package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
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
		return readStatus(args[0], mounts.Timeout)
	case len(args) > 0:
		return storeStatus(ctx, args[0], mounts.Timeout)
	}
	cfg, err := load(config.Sources{Environ: os.Environ()})
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return storeStatus(ctx, cfg.Store.Socket, mounts.Timeout)
}

// readStatus reads the status file of the mount at dir.
func readStatus(dir string, timeout time.Duration) ([]byte, error) {
	text, err := readControl(dir, "status", timeout)
	return text, explainStatus(dir, err)
}

// staleTries is how often a control file is opened that another daemon has taken over meanwhile.
const staleTries = 5

// readControl reads a control file of the mount at dir.
func readControl(dir, name string, timeout time.Duration) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	// Ends with the read; if the daemon never answers, with the process.
	go func() {
		var r result
		for range staleTries {
			r.text, r.err = os.ReadFile(filepath.Join(dir, block.Reserved, name))
			if !errors.Is(r.err, unix.ESTALE) {
				break
			}
		}
		done <- r
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-time.After(timeout):
		return nil, fmt.Errorf("%s: %w for %v", dir, mounts.ErrSilent, timeout)
	}
}

// explainStatus turns the error of reading the status file into one about dir.
func explainStatus(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case mounts.Dead(err):
		return exit.With(exit.NotMount, fmt.Errorf("the daemon of %s is dead; clean up with kvfs umount %s", dir, dir))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		if _, statErr := os.Stat(dir); statErr != nil {
			return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: %w", dir, errors.Unwrap(statErr)))
		}
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount", dir))
	}
	return err
}
