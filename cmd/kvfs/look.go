package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
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
				return printRaw(cmd, text)
			}
			return status.Print(cmd.OutOrStdout(), text)
		},
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the JSON document as the daemon wrote it")
	cmd.Flags().BoolVar(&owner, "store", false, "ask the owner at SOCKET; the default is store.socket")
	return cmd
}

// printRaw prints a document as a daemon wrote it.
func printRaw(cmd *cobra.Command, text []byte) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", bytes.TrimRight(text, "\n"))
	return err
}

func statusOf(ctx context.Context, connect client.Connector, args []string, owner bool) ([]byte, error) {
	if !owner {
		_, dir, err := mountOf(connect, args)
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

// minInterval is the shortest interval of kvfs stats: a sample costs the daemon some CPU.
const minInterval = 10 * time.Millisecond

func newStatsCommand(connect client.Connector) *cobra.Command {
	var lines watch.Lines
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "stats [--interval 1s] [--count N] [--json] [DIR]",
		Short: "Show what a mount does, one line a second",
		Long: "Show what the mount at DIR does, one line for each interval, with rates per second:\n\n" +
			"  reads, bytes/s    blocks that a tier gave, and their bytes\n" +
			"  writes, bytes/s   blocks that were committed, and their bytes\n" +
			"  hit               share of the blocks asked for that a tier gave\n" +
			"  misses            blocks that were looked up to be read, and that no tier has\n" +
			"  promote, cascade  blocks brought up from lower tiers, and copied down to them\n" +
			"  evict             blocks evicted from memory\n" +
			"  memory, ssd used  bytes in use, of the capacity\n" +
			"  queue             blocks that wait to be copied down\n\n" +
			onlyMount + "\n\n" +
			"With --json each line is an object; docs/control.md has its names. Ends with Ctrl-C, or after N lines.\n\n" +
			"Exit codes: 0 if it ended so; 1 if the daemon does not answer; 5 if DIR is not a kvfs mount, or lost its daemon.",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if lines.Interval < minInterval {
				return usageError(cmd, "--interval: %v is less than %v", lines.Interval, minInterval)
			}
			return nil
		},
	}, func(cmd *cobra.Command, _ *client.Controls, dir string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return lines.Run(ctx, cmd.OutOrStdout(), watch.Of(dir))
	})
	cmd.Flags().DurationVarP(&lines.Interval, "interval", "i", time.Second, "time between two lines")
	cmd.Flags().Uint64VarP(&lines.Count, "count", "n", 0, "end after this many lines; 0: never")
	cmd.Flags().BoolVar(&lines.JSON, "json", false, "print each line as a JSON object")
	return cmd
}

func newLsCommand(connect client.Connector) *cobra.Command {
	var list blocks.List
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "ls [-l] [-R] [--json] [PATH]",
		Short: "List blocks with their tiers",
		Long: "List the entries of the directory PATH, or a block, by name. -l shows mode, size, age, tiers, pin and name.\n" +
			"\"peer\" means that other nodes have the block, as far as this node knows. -R lists all blocks below PATH.\n" +
			"PATH defaults to the only kvfs mount of this machine.\n\n" +
			"Exit codes: 0 if done; 1 if PATH does not exist or cannot be listed; 5 if PATH is not in a kvfs mount.",
	}, func(cmd *cobra.Command, c *client.Controls, path string) error {
		return list.Run(cmd.Context(), streams(cmd), c, path)
	})
	cmd.ValidArgsFunction = nil // any path
	cmd.Flags().BoolVarP(&list.Long, "long", "l", false, "one line an entry, with all that is known")
	cmd.Flags().BoolVarP(&list.Recursive, "recursive", "R", false, "all blocks below PATH")
	cmd.Flags().BoolVar(&list.JSON, "json", false, "print each entry as a JSON object, as with -l")
	return cmd
}

func newDuCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "du [--json] [DIR]",
		Short: "Show how much groups and tiers use",
		Long: "Show how much memory each group of the mount at DIR uses, largest first, and how much each tier holds. ./\n" +
			"stands for files directly below the mount. Root, the user of the daemon and the users of control.users also\n" +
			"see the bytes of each group in lower tiers. The totals are of this node; a block in memory and on SSD counts\n" +
			"in both. du reads and looks up nothing in the mount.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if done; 1 if the daemon does not answer; 5 if DIR is not a kvfs mount.",
	}, func(cmd *cobra.Command, c *client.Controls, dir string) error {
		now, err := watch.Of(dir)()
		if err != nil {
			return err
		}
		low, err := watch.LowerOf(cmd.Context(), c, dir)
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "kvfs: groups in memory alone: %v\n", err)
		}
		u := watch.UsageOf(now.Doc, low)
		if raw {
			return show.JSON(cmd.OutOrStdout(), u)
		}
		return u.Print(cmd.OutOrStdout())
	})
	cmd.Flags().BoolVar(&raw, "json", false, "print the tables as JSON")
	return cmd
}

type lookupFlags struct {
	blockFlags
	blocks.Lookup
	numTokens int
	deadline  time.Duration
}

func newLookupCommand(connect client.Connector) *cobra.Command {
	var flags lookupFlags
	cmd := flags.command(connect, "query", &cobra.Command{
		Use: "lookup [flags] PATH...\n  kvfs lookup --mount DIR [flags] HASH...\n" +
			"  kvfs lookup --mount DIR --spec NAME|@FILE [flags] HASH...",
		Short: "Show which blocks exist, or how much of a prompt is cached",
		Long: "Show which blocks exist, one a line: hit, pending (being written, or on its way into memory), late (a lower\n" +
			"tier has it, but cannot load it within the deadline) or miss, the tier, and the name. Standard error gets a\n" +
			"summary.\n\n" +
			pathsHelp + " Blocks below directories come last. In the\n" +
			"\"states\" of --json a directory is /, and the numbers count the blocks below.\n\n" +
			"With --mount the names are hashes; --template and --group make paths of them. With --spec they are the hashes\n" +
			"of a prompt, in order, and the answer is how much of it is cached, and how many blocks of each group to read.\n" +
			"--spec names a spec of the daemon (see kvfs specs), or a file after @.\n\n" +
			"Exit codes: 0 if all are hits, or with --spec; 1 if not, or the daemon refused; 5 if it is not a kvfs mount.", PreRunE: func(cmd *cobra.Command, _ []string) error { return flags.check(cmd) },
	}, flags.PrintNone, func(cmd *cobra.Command, c *client.Controls, named *client.Blocks, d *client.Dialogue) error {
		if cmd.Flags().Changed("num-tokens") {
			flags.NumTokens = &flags.numTokens
		}
		if cmd.Flags().Changed("deadline") {
			flags.Deadline = &flags.deadline
		}
		return flags.Run(cmd.Context(), streams(cmd), c, d, named)
	})
	flags.add(cmd, connect)
	cmd.Flags().StringVar(&flags.Spec, "spec", "", "find the longest hit for the groups of this spec (with --mount)")
	cmd.Flags().IntVar(&flags.numTokens, "num-tokens", 0, "length of the prompt; that of all hashes unless given (with --spec)")
	cmd.Flags().IntVar(&flags.Cached, "cached", 0, "tokens that the engine has already and does not read (with --spec)")
	cmd.Flags().BoolVar(&flags.Promote, "promote", false, "begin to load the blocks that are not in memory")
	cmd.Flags().BoolVar(&flags.NoLease, "no-lease", false, "grant no lease: kvfs may evict the blocks at once")
	cmd.Flags().DurationVar(&flags.deadline, "deadline", 0, "blocks that take longer to load count as late; 0: no deadline; default: the group's")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON")
	return cmd
}

func (f *lookupFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case changed("spec") && f.Mount == "":
		return usageError(cmd, "--spec is for hashes: give --mount, too")
	case changed("spec") && changed("group"):
		return usageError(cmd, "--group and --spec exclude each other: a spec has the names of its groups")
	case changed("spec") && (f.Spec == "" || f.Spec == "@"):
		return usageError(cmd, "--spec needs a name, or @ and a file")
	case !changed("spec") && (changed("num-tokens") || changed("cached")):
		return usageError(cmd, "--num-tokens and --cached need --spec")
	case f.numTokens < 0, f.Cached < 0:
		return usageError(cmd, "a number of tokens cannot be negative")
	case f.deadline < 0:
		return usageError(cmd, "--deadline: %v is negative", f.deadline)
	}
	return checkUTF8(cmd, "spec")
}

func newWhyCommand(connect client.Connector) *cobra.Command {
	var raw bool
	var flags blockFlags
	cmd := flags.command(connect, "query", &cobra.Command{
		Use:   "why [--json] PATH...",
		Short: "Show why blocks are missing",
		Long: "Show what the daemon knows of each PATH: that the block exists, or why it does not: it was never stored, was\n" +
			"evicted, expired, or was removed, for example.\n\n" +
			pathsHelp + " Blocks below directories come last.\n\n" +
			"The daemon remembers the last 65,536 verdicts since its start.\n\n" +
			"Exit codes: 0, also for missing blocks; 1 if the daemon refused; 5 if it is not a kvfs mount.",
	}, func() func(io.Writer) error { return nil }, func(cmd *cobra.Command, c *client.Controls, named *client.Blocks, d *client.Dialogue) error {
		return blocks.Why(cmd.Context(), cmd.OutOrStdout(), c, d, named, raw)
	})
	cmd.Flags().BoolVar(&raw, "json", false, "print the verdicts as JSON, one a line")
	return cmd
}

func newEventsCommand(connect client.Connector) *cobra.Command {
	var flags blocks.Events
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "events [--since N] [--group G]... [--event E]... [-n COUNT] [--json] [DIR]",
		Short: "Show what happens to blocks, as it happens",
		Long: "Show what happens to the blocks of the mount at DIR from now on, one event a line: time (UTC), event (stored,\n" +
			"evicted, removed, renamed), tier, size, path and reason. A line \"gap\" means lost events: the reader was too\n" +
			"slow, or --since is too old or of an earlier daemon.\n\n" +
			onlyMount + "\n\n" +
			"Ends with Ctrl-C, after COUNT lines, or when nobody reads its output any more.\n\n" +
			"Exit codes: 0 if it ended so; 1 if the daemon refused or stopped; 5 if DIR is not a kvfs mount.",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			for flag, values := range map[string][]string{"group": flags.Groups, "event": flags.Names} {
				if err := client.CheckText(values, "the daemon cannot be asked for it"); err != nil {
					return usageError(cmd, "--%s: %w", flag, err)
				}
			}
			return nil
		},
	}, func(cmd *cobra.Command, c *client.Controls, dir string) error {
		return flags.Run(cmd.Context(), cmd.OutOrStdout(), c, dir)
	})
	cmd.Flags().Uint64Var(&flags.Since, "since", 0, "begin with the event of this number, or a gap if it is not known any more; 1: all that are known")
	cmd.Flags().StringArrayVar(&flags.Groups, "group", nil, "only this group; may be repeated")
	cmd.Flags().StringArrayVar(&flags.Names, "event", nil, "only events of this name; may be repeated")
	complete.FlagOf(cmd, connect, "group", complete.Groups)
	complete.Flag(cmd, "event", "stored", "evicted", "removed", "renamed")
	cmd.Flags().Uint64VarP(&flags.Count, "count", "n", 0, "end after this many lines; 0: never")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the lines as the daemon wrote them")
	return cmd
}
