package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

// attrFlags are the flags of the commands that set attributes.
type attrFlags struct{ json, nul bool }

// attrCommand fills in the parts that these commands share. change returns what to do, and the
// rest of the arguments: the names.
func attrCommand(cmd *cobra.Command, connect client.Connector, change func(cmd *cobra.Command, args []string) (blocks.AttrChange, []string, error)) *cobra.Command {
	var flags attrFlags
	cmd.Long += "\n\nPATH is a block, or a directory for all blocks below it at this time; - reads names from standard\n" +
		"input, one a line, or each ended by a NUL byte with -0. All must be of one mount. If one block\n" +
		"cannot be changed, the others still are.\n\n" +
		"Exit codes: 0 if all were changed; 1 if some could not be; 5 if it is not a kvfs mount."
	cmd.DisableFlagsInUseLine = true
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what, names, err := change(cmd, args)
		if err != nil {
			return err
		}
		if err := needNames(cmd, names); err != nil {
			return err
		}
		what.JSON = flags.json
		return runAttr(cmd, connect, flags.nul, what, names)
	}
	cmd.Flags().BoolVar(&flags.json, "json", false, "print how many were changed, and the first errors, as JSON")
	nulFlag(cmd, &flags.nul)
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
		Long:  "Let blocks that were pinned be evicted again. Those of a pinned group stay pinned.",
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

// runAttr sets the attribute on all blocks, and prints the failures.
func runAttr(cmd *cobra.Command, connect client.Connector, nul bool, what blocks.AttrChange, args []string) error {
	c, err := connect()
	if err != nil {
		return err
	}
	names, err := client.ReadNames(args, cmd.InOrStdin(), nul)
	if err != nil {
		return doneNothing(cmd, err, what.PrintNone())
	}
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	return what.Run(streams(cmd), c, mount, paths, names)
}
