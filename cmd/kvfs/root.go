package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/secrets"
)

// newRootCommand returns the whole command tree. Each call makes a new one.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "kvfs",
		Short:         "Tiered cache for LLM KV blocks, mounted as a directory",
		Long:          "kvfs mounts a directory in which every KV-cache block of an inference engine is a file.",
		Version:       versionLine(),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(
		// Mounts and daemons: packages daemon, launch, mounts, status, watch.
		newMountCommand(),
		newRunCommand(),
		newServeCommand(),
		newCSICommand(),
		newUmountCommand(),
		newStatusCommand(client.System),
		newMembersCommand(client.System),
		newStatsCommand(client.System),
		newDuCommand(client.System),
		newTopCommand(client.System),
		newBenchCommand(client.System),

		// Blocks: packages client and blocks.
		newLookupCommand(client.System),
		newLsCommand(client.System),
		newPrefetchCommand(client.System),
		newWarmCommand(client.System),
		newPinCommand(client.System),
		newUnpinCommand(client.System),
		newTTLCommand(client.System),
		newQuotaCommand(client.System),
		newEvictCommand(client.System),
		newFlushCommand(client.System),
		newDrainCommand(client.System),
		newWhyCommand(client.System),
		newEventsCommand(client.System),
		newTraceCommand(client.System),
		newSpecsCommand(client.System),

		// Machines, clusters and settings: packages plan, rails, config and others.
		newPlanCommand(),
		newFsckCommand(),
		newDoctorCommand(rails.ThisMachine()),
		newDebugCommand(rails.ThisMachine()),
		secrets.CertsCommand(),
		secrets.KeysCommand(),
		newConfigCommand(),
		newVersionCommand(),
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(cmd, "%w%s", err, flagHint(cmd, err))
	})
	root.SetUsageFunc(usageOf(root.UsageFunc()))
	checkUsage(root)
	complete.Settings(root)
	return root
}

// usageOf returns the function that prints the usage of a command. A command with settings has
// them arranged by package config.
func usageOf(others func(*cobra.Command) error) func(*cobra.Command) error {
	return func(cmd *cobra.Command) error {
		flags, ok := config.FlagUsages(cmd.LocalFlags(), cmd.CommandPath())
		if !ok {
			return others(cmd)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "Usage:\n  %s\n%s", cmd.UseLine(), flags)
		return err
	}
}

// checkUsage makes wrong usage of cmd and its subcommands end with exit.Usage and one line.
func checkUsage(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs // RunE reports the fault better
		cmd.RunE = needCommand
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError(cmd, "%w", err)
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		checkUsage(child)
	}
}

// intro is what kvfs says without a command.
const intro = `kvfs is a cache for the KV blocks of LLM engines, mounted as a directory: in memory, on SSD, and on peers.

  kvfs mount -d ~/kv                    mount it at the empty directory ~/kv
  kvfs status                           show how full it is, and what it does
  kvfs run --mount ~/kv -- vllm serve   mount it for an engine, until the engine ends

kvfs --help lists all commands.
`

// needCommand is the action of a command that has only subcommands.
func needCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && !cmd.HasParent() {
		_, err := fmt.Fprint(cmd.OutOrStdout(), intro)
		return err
	}
	if len(args) == 0 {
		return usageError(cmd, "a command is missing: one of %s", strings.Join(commandNames(cmd), ", "))
	}
	if near := config.Nearest(args[0], commandNames(cmd)); near != "" {
		return usageError(cmd, "unknown command %q; did you mean %q?", args[0], near)
	}
	return usageError(cmd, "unknown command %q", args[0])
}

// commandNames lists the subcommands of cmd.
func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	return names
}

// usageError is an error in the command line: one line that ends with the name of the help.
func usageError(cmd *cobra.Command, format string, args ...any) error {
	return exit.InUsage(cmd.CommandPath(), format, args...)
}

// flagHint suggests a flag if err is about an unknown one.
func flagHint(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	name := unknown.GetSpecifiedName()
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	near := config.Suggest(name, names)
	if near == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean --%s?", near)
}
