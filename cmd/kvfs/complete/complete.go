// Package complete has the values that a shell offers for flags and arguments of commands. MountArg, FlagOf, Flag and
// Settings complete a command. The functions for FlagOf return what a mount tells of itself, and nothing where it does
// not answer.
package complete

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/control"
)

// mountOf returns the mount that a command line is about: that of the first name which is in one, else the only mount of
// this machine; empty if there is none.
func mountOf(c *client.Controls, names ...string) string {
	for _, name := range names {
		if mount, _, err := c.Locate([]string{name}); name != "" && err == nil {
			return mount
		}
	}
	mount, err := c.Only()
	if err != nil {
		return ""
	}
	return mount
}

// Mounts returns the mounts of this machine.
func Mounts(c *client.Controls, _ string) []string { return c.Points() }

// Groups returns the groups of a mount, but for names that no shell shows as they are.
func Groups(_ *client.Controls, mount string) (names []string) {
	for _, g := range document(mount).Groups {
		if g.Name != "" && !strings.Contains(g.Name, `\`) { // it is escaped
			names = append(names, g.Name)
		}
	}
	return names
}

// Tiers returns the tiers of this node that a mount has.
func Tiers(_ *client.Controls, mount string) (names []string) {
	for _, t := range document(mount).Tiers {
		if t.Type != config.TierPeer {
			names = append(names, t.Name)
		}
	}
	return names
}

// Quotas returns a function for the names of the quotas of a kind.
func Quotas(kind string) func(*client.Controls, string) []string {
	return func(c *client.Controls, mount string) (names []string) {
		all, err := blocks.Quotas(context.Background(), c, mount, control.QuotaRequest{})
		if err != nil {
			return nil
		}
		for _, q := range all {
			if q.Kind == kind && q.Name != "" && !strings.ContainsAny(q.Name, "\t\n") {
				names = append(names, q.Name)
			}
		}
		return names
	}
}

// document returns the status of a mount. It is empty if the mount does not answer.
func document(mount string) *status.Document {
	text, err := client.Status(mount, mounts.Timeout)
	if err != nil {
		return &status.Document{}
	}
	doc, err := status.Parse(text)
	if err != nil {
		return &status.Document{}
	}
	return doc
}

// MountArg returns a completion of the first argument: the mounts of this machine, else directories.
func MountArg(connect client.Connector) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		var points []string
		for _, p := range c.Points() {
			if strings.HasPrefix(p, begun) {
				points = append(points, p)
			}
		}
		if len(points) == 0 {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return points, cobra.ShellCompDirectiveNoFileComp
	}
}

// Flag completes the values of a flag of cmd, which are known.
func Flag(cmd *cobra.Command, flag string, values ...string) {
	register(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// FlagOf completes the values of a flag of cmd with what the mount tells that the command line is about.
func FlagOf(cmd *cobra.Command, connect client.Connector, flag string, values func(c *client.Controls, mount string) []string) {
	register(cmd, flag, func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if f := cmd.Flag("mount"); f != nil {
			args = append([]string{f.Value.String()}, args...)
		}
		return values(c, mountOf(c, args...)), cobra.ShellCompDirectiveNoFileComp
	})
}

func register(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // cmd has no such flag
	}
}

// Settings completes the values of the settings among the flags of cmd and its subcommands.
func Settings(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if values := f.Annotations["values"]; values != nil { // of package config
			Flag(cmd, f.Name, values...)
		}
	})
	for _, child := range cmd.Commands() {
		Settings(child)
	}
}
