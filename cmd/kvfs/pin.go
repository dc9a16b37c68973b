package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// The attributes that may be set.
const (
	attrPinned = "user.kvfs.pinned"
	attrTTL    = "user.kvfs.ttl"
)

// attrChange is one attribute to be set on many blocks.
type attrChange struct {
	attr, value string
	done        string // what then is said of the blocks
}

// attrFlags are the flags of the commands that set attributes.
type attrFlags struct{ json, nul bool }

// attrCommand fills in what these commands have in common. change makes of the
// arguments what to do, and leaves the names.
func attrCommand(cmd *cobra.Command, connect client.Connector, change func(cmd *cobra.Command, args []string) (attrChange, []string, error)) *cobra.Command {
	var flags attrFlags
	cmd.Long += "\n\nPATH is a block, or a directory for all blocks below it at this time; - reads names from standard\n" +
		"input, one a line, or each ended by a NUL byte with -0. All must be of one mount. Where a block\n" +
		"cannot be changed, the others are all the same.\n\n" +
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
		return runAttr(cmd, connect, flags, what, names)
	}
	cmd.Flags().BoolVar(&flags.json, "json", false, "print how many were changed, and the first errors, as JSON")
	nulFlag(cmd, &flags.nul)
	return cmd
}

func newPinCommand(connect client.Connector) *cobra.Command {
	return attrCommand(&cobra.Command{
		Use:   "pin [--json] PATH...",
		Short: "Keep blocks from being evicted",
		Long:  "Keep blocks from being evicted, until kvfs unpin. The room that they take is then not free for others.",
	}, connect, func(_ *cobra.Command, args []string) (attrChange, []string, error) {
		return attrChange{attrPinned, "1", "pinned %s"}, args, nil
	})
}

func newUnpinCommand(connect client.Connector) *cobra.Command {
	return attrCommand(&cobra.Command{
		Use:   "unpin [--json] PATH...",
		Short: "Let blocks be evicted again",
		Long:  "Let blocks that were pinned be evicted again. Those of a pinned group stay pinned.",
	}, connect, func(_ *cobra.Command, args []string) (attrChange, []string, error) {
		return attrChange{attrPinned, "0", "unpinned %s"}, args, nil
	})
}

func newTTLCommand(connect client.Connector) *cobra.Command {
	return attrCommand(&cobra.Command{
		Use:   "ttl [--json] DURATION PATH...",
		Short: "Let blocks expire after a time",
		Long: "Let blocks expire when DURATION has passed from now: 10m, 1h30m, or whole seconds. 0 means never.\n" +
			"What was said before of their time to live is replaced.",
	}, connect, func(cmd *cobra.Command, args []string) (attrChange, []string, error) {
		if len(args) == 0 {
			return attrChange{}, nil, usageError(cmd, "how long? Give a DURATION and the blocks")
		}
		ttl, err := parseTTL(args[0])
		if err != nil {
			return attrChange{}, nil, usageError(cmd, "%w", err)
		}
		if ttl == 0 {
			return attrChange{attrTTL, "0", "%s will not expire"}, args[1:], nil
		}
		return attrChange{attrTTL, ttl.String(), "%s will expire in " + ttl.String()}, args[1:], nil
	})
}

// parseTTL reads a duration, or whole seconds, as the attribute has it.
func parseTTL(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	ttl, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no duration: want for example 10m, 1h30m, or a number of seconds", text)
	case ttl < 0:
		return 0, fmt.Errorf("%s: a time to live cannot be negative", text)
	}
	return ttl, nil
}

// runAttr sets the attribute on all blocks, and says what could not be done.
func runAttr(cmd *cobra.Command, connect client.Connector, flags attrFlags, what attrChange, args []string) error {
	c, err := connect()
	if err != nil {
		return err
	}
	names, err := client.ReadNames(args, cmd.InOrStdin(), flags.nul)
	if err != nil {
		return doneNothing(cmd, err, flags.printNone(what))
	}
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	var done int64
	var failed client.Failures
	for i, name := range names {
		if err := changeAll(c, filepath.Join(mount, paths[i]), name, what, &done, &failed); err != nil {
			return client.Explain(mount, err)
		}
	}
	if err := flags.print(cmd.OutOrStdout(), what, done, &failed); err != nil {
		return err
	}
	return failed.Err("%d of %s could not be changed", failed.Total, show.Blocks(failed.Total+done))
}

// print writes what was done.
func (f attrFlags) print(w io.Writer, what attrChange, done int64, failed *client.Failures) error {
	if f.json {
		return show.JSON(w, struct {
			Changed int64              `json:"changed"`
			Failed  int64              `json:"failed"`
			Errors  []client.PathError `json:"errors,omitempty"`
		}{done, failed.Total, failed.First})
	}
	_, err := fmt.Fprintf(w, what.done+"\n", show.Blocks(done))
	return err
}

// printNone returns what writes the answer about no blocks; nil where that is nothing.
func (f attrFlags) printNone(what attrChange) func(io.Writer) error {
	if !f.json {
		return nil
	}
	return func(w io.Writer) error { return f.print(w, what, 0, &client.Failures{}) }
}

// changeAll sets the attribute on a block, or on all below a directory, which name
// stands for in errors. Its error is that of a mount whose daemon is gone.
func changeAll(c *client.Controls, path, name string, what attrChange, done *int64, failed *client.Failures) error {
	set := func(path, name string) error {
		err := c.Setxattr(path, what.attr, what.value)
		switch {
		case err == nil:
			*done++
		case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EISDIR):
			return err
		default:
			failed.Add(name, err.Error())
		}
		return nil
	}
	err := set(path, name)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	// Names below are shown as if they had been given.
	shown := func(below string) string { return filepath.Join(name, below[len(path):]) }
	return c.WalkBlocks(path, func(block string) error {
		err := set(block, shown(block))
		if errors.Is(err, unix.EISDIR) { // it was replaced by a directory
			failed.Add(shown(block), err.Error())
			return nil
		}
		return err
	}, func(dir string, err error) { failed.Add(shown(dir), err.Error()) })
}
