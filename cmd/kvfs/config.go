package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, print and explain the configuration",
	}
	cmd.AddCommand(
		result.WithJSON(newConfigLoadCommand("check", "Check the configuration from all sources and report every error",
			func(cmd *cobra.Command, c *config.Config) error {
				return result.Print(cmd, map[string][]string{"warnings": append([]string{}, c.Warnings...)}, "configuration ok\n")
			})),
		newConfigLoadCommand("print", "Print the configuration in effect, with the origin of each value",
			func(cmd *cobra.Command, c *config.Config) error {
				return config.Print(cmd.OutOrStdout(), c)
			}),
		newConfigTextCommand("example", "Print an example file with every setting and its default", config.Example),
		newConfigTextCommand("reference", "Print the reference page, in Markdown", config.Reference),
	)
	return cmd
}

// newConfigLoadCommand returns a command that loads the configuration as mount would, and calls
// do with it. FILE is short for --config FILE.
func newConfigLoadCommand(name, short string, do func(*cobra.Command, *config.Config) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + " [FILE]",
		Short: short,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			src := config.Sources{Environ: os.Environ(), Flags: cmd.Flags()}
			if len(args) == 1 {
				if cmd.Flags().Changed("config") {
					return usageError(cmd, "FILE and --config exclude each other")
				}
				src.File = args[0]
			}
			c, err := load(src)
			if err != nil {
				return err
			}
			for _, line := range c.Warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "kvfs: warning: "+line)
			}
			return do(cmd, c)
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

// newConfigTextCommand returns a command that prints a text.
func newConfigTextCommand(name, short string, text func() []byte) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(text())
			return err
		},
	}
}
