package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/disk"
)

// The exit codes of kvfs fsck are those of fsck(8), except for usage.
const (
	fsckRepaired  = 1
	fsckFindings  = 4
	fsckUnchecked = 8
)

func newFsckCommand() *cobra.Command {
	var repair, noData, raw bool
	cmd := &cobra.Command{
		Use:   "fsck [--repair] [--no-data] [--json] DIR",
		Short: "Check a directory of the SSD tier that is not in use",
		Long: "Check a directory of the SSD tier (disk.dirs) and report what is wrong with it. No daemon may\n" +
			"be using it. Without --repair nothing is written.\n\n" +
			"A repair drops a bad block, and does not restore it. The block is then a miss.\n\n" +
			"Exit codes:\n" +
			"  0  clean\n" +
			"  1  something was wrong, and all of it is repaired\n" +
			"  2  wrong usage\n" +
			"  4  something is wrong, and not repaired\n" +
			"  8  not checked, or not to the end: missing, not of kvfs, of a later version, in use, Ctrl-C",
		DisableFlagsInUseLine: true,

		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			bar := show.NewBar(cmd.ErrOrStderr(), show.IsTerminal(cmd.ErrOrStderr()))
			o := disk.CheckOptions{Repair: repair, Data: !noData, Progress: func(done, total int64) {
				if done == total {
					bar.Clear()
					return
				}
				bar.Share("checking "+args[0], done, total)
			}}
			return fsck(ctx, cmd.OutOrStdout(), args[0], o, raw)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what is wrong, by dropping blocks that are bad")
	cmd.Flags().BoolVar(&noData, "no-data", false, "check headers and index only; by default all blocks are read and their checksums verified")
	cmd.Flags().BoolVar(&raw, "json", false, "print the report as JSON")
	return cmd
}

// fsck checks dir and prints the report. After an error it prints what it has found so far.
func fsck(ctx context.Context, w io.Writer, dir string, o disk.CheckOptions, raw bool) error {
	report, err := disk.Check(ctx, dir, o)
	if report != nil && (err == nil || len(report.Findings) > 0) {
		err = errors.Join(err, printReport(w, report, raw))
	}
	switch {
	case errors.Is(err, context.Canceled):
		return exit.With(fsckUnchecked, fmt.Errorf("fsck: %s: stopped before the end", dir))
	case err != nil:
		return exit.With(fsckUnchecked, fmt.Errorf("fsck: %w", err))
	}
	return fsckError(dir, report.ExitCode(), o.Repair)
}

// printReport writes the report for people, or as JSON.
func printReport(w io.Writer, report *disk.Report, raw bool) error {
	if !raw {
		_, err := io.WriteString(w, report.String())
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// fsckError returns the error for a code of the report, or nil for a clean directory.
func fsckError(dir string, code int, repair bool) error {
	switch {
	case code == exit.OK:
		return nil
	case code == fsckRepaired:
		return exit.With(code, fmt.Errorf("fsck: %s was damaged and is repaired", dir))
	case repair:
		return exit.With(code, fmt.Errorf("fsck: %s is damaged, and not all of it could be repaired", dir))
	}
	return exit.With(code, fmt.Errorf("fsck: %s is damaged; to drop the bad blocks, run: kvfs fsck --repair", dir))
}
