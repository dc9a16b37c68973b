package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/object"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/disk"
	tier "github.com/kvfs/kvfs/tiers/object"
)

// The exit codes of kvfs fsck are those of fsck(8), except for usage.
const (
	fsckRepaired  = 1
	fsckFindings  = 4
	fsckUnchecked = 8
)

func newFsckCommand() *cobra.Command {
	var repair, noData, raw bool
	var keys string
	cmd := &cobra.Command{
		Use:   "fsck [--repair] [--no-data] [--json] DIR | s3://BUCKET/PREFIX [--object KEY=VALUE,...]",
		Short: "Check an unused directory of the SSD tier, or a bucket",
		Long: "Check a directory of the SSD tier (disk.dirs), or the objects of kvfs in a bucket, and report what is\n" +
			"wrong. No daemon may be using the directory; a bucket may be in use. Without --repair nothing is written.\n\n" +
			"A repair of a directory drops a bad block, and does not restore it. The block is then a miss.\n" +
			"A repair of a bucket deletes each damaged object. All blocks in that object are then misses.\n\n" +
			"Exit codes:\n" +
			"  0  clean\n" +
			"  1  something was wrong, and all of it is repaired\n" +
			"  2  wrong usage\n" +
			"  4  something is wrong, and not repaired\n" +
			"  8  not checked, or not to the end: missing, not of kvfs, of a later version, in use, no access, Ctrl-C",
		DisableFlagsInUseLine: true,

		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			check, err := checkDir, error(nil)
			if strings.HasPrefix(args[0], "s3://") {
				check, err = bucketCheck(args[0], keys)
			} else if keys != "" {
				err = usageError(cmd, "--object needs s3://BUCKET/PREFIX")
			}
			if err != nil {
				return err
			}
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
			return fsck(ctx, cmd.OutOrStdout(), args[0], o, raw, check)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what is wrong, by dropping blocks that are bad")
	cmd.Flags().BoolVar(&noData, "no-data", false, "check headers and index only; by default all blocks are read and their checksums verified")
	cmd.Flags().BoolVar(&raw, "json", false, "print the report as JSON")
	cmd.Flags().StringVar(&keys, "object", "", "how to reach the bucket: `endpoint=URL,...`, with the keys of --object of kvfs mount, but url")
	return cmd
}

// checkReport is what a check found.
type checkReport interface {
	ExitCode() int // fsck(8)
	String() string
}

// checker checks a directory or a bucket. After an error without findings there is no report.
type checker func(ctx context.Context, place string, o disk.CheckOptions) (checkReport, error)

// checkDir is a checker.
func checkDir(ctx context.Context, dir string, o disk.CheckOptions) (checkReport, error) {
	report, err := disk.Check(ctx, dir, o)
	if report == nil || err != nil && len(report.Findings) == 0 {
		return nil, err
	}
	return report, err
}

// bucketAt returns the bucket with this URL and other keys of an entry of tiers.
func bucketAt(url, keys string) (*object.Options, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	if err := flags.Set(config.TierObject, strings.TrimSuffix("url="+url+","+keys, ",")); err != nil {
		return nil, err
	}
	c, err := load(config.Sources{Flags: flags})
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(c.Tiers, func(t config.Tier) bool { return t.Type == config.TierObject })
	return c.Tiers[at].Options.(*object.Options), nil
}

// bucketCheck returns a checker of a bucket; see bucketAt.
func bucketCheck(url, keys string) (checker, error) {
	place, err := bucketAt(url, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ string, o disk.CheckOptions) (checkReport, error) {
		report, err := place.Check(ctx, tier.CheckOptions{Data: o.Data, Repair: o.Repair, Progress: o.Progress})
		if report == nil || err != nil && len(report.Findings) == 0 {
			return nil, err
		}
		return report, err
	}, nil
}

// fsck checks a place and prints the report. After an error it prints what it has found so far.
func fsck(ctx context.Context, w io.Writer, place string, o disk.CheckOptions, raw bool, check checker) error {
	report, err := check(ctx, place, o)
	if report != nil {
		err = errors.Join(err, printReport(w, report, raw))
	}
	switch {
	case errors.Is(err, context.Canceled):
		return exit.With(fsckUnchecked, fmt.Errorf("fsck: %s: stopped before the end", place))
	case err != nil:
		return exit.With(fsckUnchecked, fmt.Errorf("fsck: %w", err))
	}
	return fsckError(place, report.ExitCode(), o.Repair)
}

// printReport writes the report for people, or as JSON.
func printReport(w io.Writer, report checkReport, raw bool) error {
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

// fsckError returns the error for a code of the report, or nil for a clean place.
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
