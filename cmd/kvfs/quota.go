package main

import (
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/fs/control"
)

func newQuotaCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
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
			"A quota that was set holds until it is cleared, or the daemon stops. It survives a takeover. Those of the\n" +
			"configuration (groups.NAME.quota) hold for ever.\n\n" +
			"Exit codes: 0 if it is done; 1 if it is refused; 5 if DIR is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runQuota(cmd, connect, args, control.QuotaRequest{}, raw)
		},
	}
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
	cmd.DisableFlagsInUseLine = true
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
		return runQuota(cmd, connect, args, q, raw)
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

// quotaHolder reads the flag that says whose quota it is.
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

func runQuota(cmd *cobra.Command, connect client.Connector, args []string, q control.QuotaRequest, raw bool) error {
	c, err := connect()
	if err != nil {
		return err
	}
	dir, err := orOnly(c, args)
	if err != nil {
		return err
	}
	return blocks.Quota(cmd.Context(), cmd.OutOrStdout(), c, dir[0], q, raw)
}
