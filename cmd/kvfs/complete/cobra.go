package complete

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

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
