package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/doctor"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, print and explain the configuration",
	}
	cmd.AddCommand(
		newConfigCheckCommand(),
		newConfigLoadCommand("print", "Print the configuration in effect, with the origin of each value",
			func(cmd *cobra.Command, c *config.Config) error {
				return config.Print(cmd.OutOrStdout(), c)
			}),
		newConfigTextCommand("example", "Print an example file with every setting and its default", config.Example),
		newConfigTextCommand("reference", "Print the reference page, in Markdown", config.Reference),
	)
	return cmd
}

// newConfigCheckCommand returns the command that checks settings, and whether they fit this machine.
func newConfigCheckCommand() *cobra.Command {
	var elsewhere bool
	cmd := newConfigLoadCommand("check", "Check the configuration from all sources and this machine for it, and report every error",
		func(cmd *cobra.Command, c *config.Config) error {
			var warnings []string
			if !elsewhere {
				e, err := doctor.ThisMachine()
				if err != nil {
					return err
				}
				e.Config = c
				warnings, err = doctor.Examine(cmd.Context(), e, doctor.Fitting(), doctor.Deadline).Fit()
				printWarnings(cmd, warnings)
				if err != nil {
					return exit.With(exit.Config, err)
				}
			}
			return result.Print(cmd, map[string][]string{"warnings": slices.Concat([]string{}, c.Warnings, warnings)}, "configuration ok\n")
		})
	cmd.Long = cmd.Short + ".\n\n" +
		"The memory, the directories of the SSD tier, and the files that settings name are looked at as by kvfs doctor, which also checks\n" +
		"the rest of the machine. With --elsewhere they are not: the settings are for another machine.\n\n" +
		"Exit codes: 0 if the configuration is accepted; 3 if it is refused, or does not fit this machine."
	cmd.Flags().BoolVar(&elsewhere, "elsewhere", false, "check only the settings: they are for another machine")
	return result.WithJSON(cmd)
}

// printWarnings writes warnings to standard error.
func printWarnings(cmd *cobra.Command, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(cmd.ErrOrStderr(), "kvfs: warning: "+line)
	}
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
			printWarnings(cmd, c.Warnings)
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
