package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers/object"
)

type prefetchFlags struct {
	blockFlags
	blocks.Prefetch
}

func newPrefetchCommand(connect client.Connector) *cobra.Command {
	var flags prefetchFlags
	cmd := flags.command(connect, "prefetch", &cobra.Command{
		Use:   "prefetch [flags] PATH...\n  kvfs prefetch --mount DIR [flags] HASH...",
		Short: "Load blocks into memory",
		Long: "Load blocks into memory, in order, and wait for them. They stay readable for mount.lookup_lease.\n\n" +
			pathsHelp + " Blocks below directories come last.\n" +
			"With --mount the names are hashes; --template and --group make paths of them.\n\n" +
			"A terminal shows the progress. Ctrl-C cancels what has not begun, and reports the rest. In the \"results\" of\n" +
			"--json each name has one character: m was in memory, l loaded, . absent, w being written, ! failed, / a\n" +
			"directory, ? not reached.\n\n" +
			"Exit codes: 0 if all are in memory or being written; 1 if some are absent or failed, the command was\n" +
			"interrupted, or the daemon refused; 5 if it is not a kvfs mount.",
	}, flags.PrintNone, func(cmd *cobra.Command, c *client.Controls, named *client.Blocks, d *client.Dialogue) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return flags.Run(ctx, streams(cmd), c, d, named)
	})
	flags.add(cmd, connect)
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON")
	cmd.Flags().BoolVarP(&flags.Quiet, "quiet", "q", false, "do not show the progress")
	return cmd
}

type warmFlags struct {
	from, keys string // the bucket
	size       scalar.Size
	blocks.Prefetch
}

func newWarmCommand(connect client.Connector) *cobra.Command {
	flags := warmFlags{Prefetch: blocks.Prefetch{Some: true}}
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "warm --from s3://BUCKET/PREFIX [flags] [DIR]",
		Short: "Fill the memory of a new node from a bucket",
		Long: "Load the blocks of a bucket into memory, most recently stored first, and wait until they are there. The bucket\n" +
			"must be a tier of the mount at DIR. While the daemon still lists it, warm waits.\n\n" +
			onlyMount + "\n\n" +
			"warm reads the index of each object, as a daemon does when it starts. Blocks that were removed since they were\n" +
			"stored count as absent. Ctrl-C cancels what has not begun.\n\n" +
			"Exit codes: 0 if the blocks are in memory; 1 if some failed, there are none, or Ctrl-C; 5 if DIR is not a kvfs mount.",
		Example: "  kvfs warm --from s3://kv-cache/prod --object endpoint=https://s3.example.org:9000 --size 64GiB /mnt/kv",

		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if flags.from == "" {
				return usageError(cmd, "--from is missing: name the bucket, as in s3://BUCKET/PREFIX")
			}
			return nil
		},
	}, func(cmd *cobra.Command, c *client.Controls, dir string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		return flags.run(ctx, cmd, c, dir)
	})
	cmd.Flags().StringVar(&flags.from, "from", "", "the bucket: s3://BUCKET/PREFIX")
	cmd.Flags().StringVar(&flags.keys, "object", "", "how to reach the bucket: `endpoint=URL,...`, with the keys of --object of kvfs mount, but url")
	cmd.Flags().TextVar(&flags.size, "size", scalar.Size(0), "how many bytes to load; by default three quarters of memory.size")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON, as kvfs prefetch does")
	cmd.Flags().BoolVarP(&flags.Quiet, "quiet", "q", false, "do not show the progress")
	return cmd
}

func (f *warmFlags) run(ctx context.Context, cmd *cobra.Command, c *client.Controls, dir string) error {
	place, err := bucketAt(f.from, f.keys)
	if err != nil {
		return err
	}
	named := &client.Blocks{}
	if named.Mount, err = c.Root(dir); err != nil {
		return err
	}
	memory, err := bucketListed(ctx, named.Mount)
	if err != nil {
		return err
	}
	left := int64(f.size)
	if left == 0 {
		left = memory / 4 * 3
	}
	seen := map[string]bool{}
	err = place.Newest(ctx, func(b object.Named) bool {
		if seen[b.Path] {
			return true
		}
		if left -= b.Size; left >= 0 {
			seen[b.Path] = true
			named.Names, named.Paths = append(named.Names, filepath.Join(named.Mount, b.Path)), append(named.Paths, b.Path)
		}
		return left >= 0
	})
	if err != nil {
		return fmt.Errorf("warm: %w", err)
	}
	if len(named.Paths) == 0 {
		return fmt.Errorf("warm: %s has no blocks, or none of so few bytes", f.from)
	}
	d, err := c.Dial(named.Mount, "prefetch")
	if err != nil {
		return err
	}
	defer d.Close()
	return f.Run(ctx, streams(cmd), c, d, named)
}

// bucketListed waits until the daemon of a mount has listed its bucket, and returns the size of its memory tier in bytes.
func bucketListed(ctx context.Context, mount string) (memory int64, err error) {
	for {
		text, err := client.Status(mount, mounts.Timeout)
		if err != nil {
			return 0, err
		}
		doc, err := status.Parse(text)
		if err != nil {
			return 0, err
		}
		buckets := 0
		for _, t := range doc.Secondaries {
			detail, _ := t.Detail.(map[string]any)
			listed, ok := detail["listed"].(bool)
			if listed {
				return doc.Tiers[0].CapacityBytes, nil
			}
			if ok {
				buckets++
			}
		}
		if buckets == 0 {
			return 0, errors.New("warm: the mount has no tier on object storage; see --object of kvfs mount")
		}
		select {
		case <-ctx.Done():
			return 0, errors.New("warm: interrupted; the daemon has not yet listed the bucket")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// attrCommand fills in the parts that these commands share. change returns what to do, and the
// rest of the arguments: the names.
func attrCommand(cmd *cobra.Command, connect client.Connector, change func(cmd *cobra.Command, args []string) (blocks.AttrChange, []string, error)) *cobra.Command {
	var raw, nul bool
	cmd.Long += "\n\n" + pathsHelp + " If one block fails, the others still change.\n\n" +
		"Exit codes: 0 if all changed; 1 if some failed; 5 if it is not a kvfs mount."
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what, names, err := change(cmd, args)
		if err != nil {
			return err
		}
		if err := needNames(cmd, names); err != nil {
			return err
		}
		what.JSON = raw
		c, err := connect()
		if err != nil {
			return err
		}
		if names, err = client.ReadNames(names, cmd.InOrStdin(), nul); err != nil {
			return doneNothing(cmd, err, what.PrintNone())
		}
		mount, paths, err := c.Locate(names)
		if err != nil {
			return err
		}
		return what.Run(streams(cmd), c, mount, paths, names)
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print how many were changed, and the first errors, as JSON")
	nulFlag(cmd, &nul)
	return cmd
}

func newPinCommand(connect client.Connector) *cobra.Command {
	return attrCommand(&cobra.Command{
		Use:   "pin [--json] PATH...",
		Short: "Keep blocks from being evicted",
		Long:  "Keep blocks from being evicted, until kvfs unpin. Pinned blocks keep their room in memory.",
	}, connect, func(_ *cobra.Command, args []string) (blocks.AttrChange, []string, error) {
		return blocks.AttrChange{Attr: blocks.AttrPinned, Value: "1", Done: "pinned %s"}, args, nil
	})
}

func newUnpinCommand(connect client.Connector) *cobra.Command {
	return attrCommand(&cobra.Command{
		Use:   "unpin [--json] PATH...",
		Short: "Let pinned blocks be evicted again",
		Long:  "Let pinned blocks be evicted again. Blocks of a pinned group stay pinned.",
	}, connect, func(_ *cobra.Command, args []string) (blocks.AttrChange, []string, error) {
		return blocks.AttrChange{Attr: blocks.AttrPinned, Value: "0", Done: "unpinned %s"}, args, nil
	})
}

func newTTLCommand(connect client.Connector) *cobra.Command {
	return attrCommand(&cobra.Command{
		Use:   "ttl [--json] DURATION PATH...",
		Short: "Let blocks expire after a time",
		Long: "Let blocks expire when DURATION has passed from now: 10m, 1h30m, or whole seconds. 0 means never.\n" +
			"It replaces an earlier time to live.",
	}, connect, func(cmd *cobra.Command, args []string) (blocks.AttrChange, []string, error) {
		if len(args) == 0 {
			return blocks.AttrChange{}, nil, usageError(cmd, "DURATION is missing: give it before the blocks")
		}
		ttl, err := parseTTL(args[0])
		if err != nil {
			return blocks.AttrChange{}, nil, usageError(cmd, "%w", err)
		}
		if ttl == 0 {
			return blocks.AttrChange{Attr: blocks.AttrTTL, Value: "0", Done: "%s will not expire"}, args[1:], nil
		}
		return blocks.AttrChange{Attr: blocks.AttrTTL, Value: ttl.String(), Done: "%s will expire in " + ttl.String()}, args[1:], nil
	})
}

// parseTTL reads a duration, or whole seconds, like the attribute.
func parseTTL(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	ttl, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration: want for example 10m, 1h30m, or a number of seconds", text)
	case ttl < 0:
		return 0, fmt.Errorf("%s: a time to live cannot be negative", text)
	}
	return ttl, nil
}

type evictFlags struct {
	blocks.Eviction
	all, nul bool
}

func newEvictCommand(connect client.Connector) *cobra.Command {
	var flags evictFlags
	cmd := &cobra.Command{
		Use:   "evict --tier TIER [--force] [--json] (--all [DIR] | PATH...)",
		Short: "Drop blocks from one tier",
		Long: "Drop blocks from one tier of a mount: memory, or disk. Other tiers keep theirs, and a read brings a block back\n" +
			"from there.\n\n" +
			pathsHelp + " --all means every block of the tier at the mount DIR.\n" +
			onlyMount + "\n\n" +
			"A block that only this tier holds stays; with --force it is evicted, and lost. Blocks that are open, pinned or\n" +
			"being written always stay.\n\n" +
			"Exit codes: 0, also if blocks stayed; 1 if a PATH is absent or the daemon refused; 5 if it is not a kvfs mount.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runEvict(cmd, connect, flags, args) },
	}
	cmd.Flags().StringVar(&flags.Tier, "tier", "", "the tier: memory or disk (required)")
	complete.FlagOf(cmd, connect, "tier", complete.Tiers)
	cmd.Flags().BoolVar(&flags.all, "all", false, "every block of the tier")
	cmd.Flags().BoolVar(&flags.Force, "force", false, "also blocks that no other tier holds: they are lost")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON")
	nulFlag(cmd, &flags.nul)
	return cmd
}

// names returns the names of what to evict: of the mount, or of blocks and directories.
func (f *evictFlags) names(cmd *cobra.Command, c *client.Controls, args []string) ([]string, error) {
	if f.all {
		return orOnly(c, args)
	}
	names, err := client.ReadNames(args, cmd.InOrStdin(), f.nul)
	if err == nil {
		err = client.CheckText(names, "evict the directory instead")
	}
	return names, err
}

func runEvict(cmd *cobra.Command, connect client.Connector, flags evictFlags, args []string) error {
	switch {
	case flags.Tier == "":
		return usageError(cmd, "--tier is missing: memory or disk")
	case flags.all && len(args) > 1:
		return usageError(cmd, "--all needs one mount, got %d", len(args))
	case !flags.all && len(args) == 0:
		return usageError(cmd, "no blocks are named: give PATH, or --all")
	}
	c, err := connect()
	if err != nil {
		return err
	}
	names, err := flags.names(cmd, c, args)
	if err != nil {
		return doneNothing(cmd, err, flags.PrintNone())
	}
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	// The root of the mount means all blocks.
	root := slices.Contains(paths, ".")
	if flags.all && !root {
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: it is a directory in the mount %s", names[0], mount))
	}
	if root {
		paths = nil
	}
	return flags.Run(cmd.Context(), streams(cmd), c, mount, paths)
}

func newFlushCommand(connect client.Connector) *cobra.Command {
	return result.WithJSON(&cobra.Command{
		Use:   "flush [--json] [PATH...]",
		Short: "Copy blocks to the SSD now, and make them durable",
		Long: "Copy the blocks of each PATH that the SSD lacks, and flush the device, like fsync. Also copies blocks that\n" +
			"kvfs would keep in memory alone, as with disk.cascade: off. To wait only for the copies that kvfs has begun by\n" +
			"itself, to the SSD, peers and buckets, use kvfs drain.\n\n" +
			"PATH is a block, or a directory, such as a mount, for all committed blocks below it. It defaults to the only\n" +
			"kvfs mount of this machine.\n\n" +
			"Exit codes: 0 if all is durable; 1 if not, or if no tier keeps blocks (no SSD); 5 if PATH is not in a kvfs mount.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			if args, err = orOnly(c, args); err != nil {
				return err
			}
			return blocks.Flush(streams(cmd), c, args, result.WantsJSON(cmd))
		},
	})
}

func newDrainCommand(connect client.Connector) *cobra.Command {
	var timeout time.Duration
	cmd := result.WithJSON(mountCommand(connect, &cobra.Command{
		Use:   "drain [--timeout 1m] [--json] [DIR]",
		Short: "Wait for the copies to lower tiers that are under way",
		Long: "Wait until the blocks on their way to the SSD, to peers and to buckets when the command begins are there and\n" +
			"durable, or refused; for a tier that is away, until it is back. Starts no copies of its own: kvfs flush does.\n" +
			"Does not wait for later blocks. .kvfs/jobs shows what is left.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if done; 1 if it took too long or failed, or the daemon refused; 5 if DIR is not a kvfs mount.",
	}, func(cmd *cobra.Command, c *client.Controls, dir string) error {
		return blocks.Drain(cmd.Context(), streams(cmd), c, dir, timeout, result.WantsJSON(cmd))
	}))
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0: as long as it takes")
	return cmd
}

func newQuotaCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "quota [--json] [DIR]",
		Short: "Show and set quotas of memory for groups, users and cgroups",
		Long: "Show the quotas of the mount at DIR, and what is used of them.\n\n" +
			"A quota bounds the bytes in memory of a group, of the files that a user owns, or of what the processes of a\n" +
			"cgroup (version 2), or of one below it, have written since. Over quota, kvfs evicts evictable blocks of the\n" +
			"same group, user or cgroup, least recently used first; if none is left, writes fail with ENOSPC. Pinned\n" +
			"blocks count.\n\n" +
			"A pin quota (--pinned) bounds how many of their bytes may be pinned, in memory or on SSD. A pin above it fails.\n" +
			"Existing pins stay.\n\n" +
			onlyMount + "\n\n" +
			"A quota holds until you clear it or the daemon stops, and survives a takeover. Quotas of the configuration\n" +
			"(groups.NAME.quota) always hold.\n\n" +
			"Exit codes: 0 if done; 1 if refused; 5 if DIR is not a kvfs mount.",
	}, func(cmd *cobra.Command, c *client.Controls, dir string) error {
		return blocks.Quota(cmd.Context(), cmd.OutOrStdout(), c, dir, control.QuotaRequest{}, raw)
	})
	cmd.Flags().BoolVar(&raw, "json", false, "print the quotas as JSON")
	cmd.AddCommand(
		quotaCommand(connect, &cobra.Command{
			Use:   "set [--json] (--group GROUP | --user USER | --cgroup PATH) [--pinned] SIZE [DIR]",
			Short: "Set a quota, from now on",
			Long: "Set the quota of a group, a user or a cgroup of the mount at DIR to SIZE, such as 8GiB, and evict down to it.\n" +
				"With --pinned, set the pin quota. Each of the two stays as it is when the other is set.\n\n" +
				"Only root and the user of the daemon may do it.",
			Args: cobra.RangeArgs(1, 2),
		}),
		quotaCommand(connect, &cobra.Command{
			Use:   "clear [--json] (--group GROUP | --user USER | --cgroup PATH) [--pinned] [DIR]",
			Short: "Remove a quota",
			Long: "Remove the quota of a group, a user or a cgroup of the mount at DIR. A group then has the quota of the\n" +
				"configuration again, if any. With --pinned, remove the pin quota. Only root and the user of the daemon may do it.",
			Args: cobra.MaximumNArgs(1),
		}))
	return cmd
}

// quotaCommand fills in what kvfs quota set and clear share.
func quotaCommand(connect client.Connector, cmd *cobra.Command) *cobra.Command {
	var raw, pinned bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q := control.QuotaRequest{Do: cmd.Name(), Pinned: pinned}
		if err := quotaHolder(cmd, &q); err != nil {
			return err
		}
		if q.Do == "set" {
			size, err := scalar.ParseSize(args[0])
			if err != nil {
				return usageError(cmd, "SIZE: %w", err)
			}
			switch {
			case size <= 0 && q.Pinned:
				return usageError(cmd, "SIZE: %s is not a quota; to forbid pins, give 1B; to remove the quota, run kvfs quota clear --pinned", args[0])
			case size <= 0:
				return usageError(cmd, "SIZE: %s is not a quota; to remove a quota, run kvfs quota clear", args[0])
			}
			q.Bytes, args = int64(size), args[1:]
		}
		c, dir, err := mountOf(connect, args)
		if err != nil {
			return err
		}
		return blocks.Quota(cmd.Context(), cmd.OutOrStdout(), c, dir, q, raw)
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print all quotas as JSON")
	cmd.Flags().BoolVar(&pinned, "pinned", false, "the quota of what is pinned, instead of that of memory")
	cmd.Flags().String("group", "", "the blocks of this group")
	cmd.Flags().String("user", "", "the files that this user owns: a name, or a number")
	cmd.Flags().String("cgroup", "", "what processes of this cgroup write: a path, as in /proc/PID/cgroup after 0::")
	complete.FlagOf(cmd, connect, "group", complete.Groups)
	complete.FlagOf(cmd, connect, "user", complete.Quotas("user"))
	complete.FlagOf(cmd, connect, "cgroup", complete.Quotas("cgroup"))
	return cmd
}

func quotaHolder(cmd *cobra.Command, q *control.QuotaRequest) (err error) {
	for _, kind := range []string{"group", "user", "cgroup"} {
		if cmd.Flags().Changed(kind) {
			if q.Kind != "" {
				return usageError(cmd, "--%s and --%s: want one of them", q.Kind, kind)
			}
			q.Kind, q.Name = kind, cmd.Flag(kind).Value.String()
		}
	}
	switch q.Kind {
	case "":
		return usageError(cmd, "whose quota? give --group, --user or --cgroup")
	case "user":
		q.Name, err = blocks.UserID(q.Name)
		return err
	}
	return checkUTF8(cmd, q.Kind)
}

func newSpecsCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "specs [--json] [DIR]\n  kvfs specs [--json] [DIR] set NAME FILE|-\n  kvfs specs [--json] [DIR] remove NAME\n" +
			"  kvfs specs check FILE|-",
		Short: "Show, set and check the specs of attention groups",
		Long: "Show the specs of the mount at DIR: the attention groups of models, which look-ups of the longest hit\n" +
			"need. set makes FILE the spec NAME until the daemon stops; remove forgets NAME. check finds faults in FILE\n" +
			"without a daemon. FILE is one spec in JSON, with the fields of docs/configuration.md, specs; - is standard\n" +
			"input. Write a directory named check, set or remove as ./check and so on.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if done, or FILE is good; 1 if refused, or NAME is unknown; 5 if DIR is not a kvfs mount.",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: complete.MountArg(connect),
		RunE:              func(cmd *cobra.Command, args []string) error { return runSpecs(cmd, connect, args, raw) },
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the answer as JSON")
	return cmd
}

func runSpecs(cmd *cobra.Command, connect client.Connector, args []string, raw bool) error {
	var q blocks.SpecsRequest
	var dir []string // at most one
	if len(args) > 0 && !slices.Contains([]string{"check", "set", "remove"}, args[0]) {
		dir, args = args[:1], args[1:]
	}
	done := ""
	switch {
	case len(args) == 0:
	case args[0] == "check" && len(dir) == 0:
		if len(args) != 2 {
			return usageError(cmd, "check needs one FILE, got %d", len(args)-1)
		}
		return blocks.CheckSpec(streams(cmd), args[1], raw)
	case args[0] == "set":
		if len(args) != 3 {
			return usageError(cmd, "set needs NAME and FILE, got %d", len(args)-1)
		}
		text, err := client.ReadDocument(args[2], cmd.InOrStdin())
		if err != nil {
			return err
		}
		q.Set, done = map[string]json.RawMessage{args[1]: text}, "set"
	case args[0] == "remove":
		if len(args) != 2 {
			return usageError(cmd, "remove needs one NAME, got %d", len(args)-1)
		}
		q.Remove, done = args[1:], "removed"
	default:
		return usageError(cmd, "%q: want set or remove", args[0])
	}
	if done != "" && !utf8.ValidString(args[1]) {
		return usageError(cmd, "the name %q is not UTF-8", args[1])
	}
	c, mount, err := mountOf(connect, dir)
	if err != nil {
		return err
	}
	return blocks.Specs(cmd.Context(), cmd.OutOrStdout(), c, mount, q, done, raw)
}
