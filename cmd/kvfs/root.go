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
	addGroup(root, "mount", "Mount and run:", newMountCommand(), newRunCommand(), newUmountCommand(), newServeCommand())
	addGroup(root, "look", "Look:",
		newStatusCommand(client.System),
		newStatsCommand(client.System),
		newTopCommand(client.System),
		newLsCommand(client.System),
		newDuCommand(client.System),
		newLookupCommand(client.System),
		newWhyCommand(client.System),
		newEventsCommand(client.System),
	)
	addGroup(root, "blocks", "Manage blocks:",
		newPrefetchCommand(client.System),
		newWarmCommand(client.System),
		newPinCommand(client.System),
		newUnpinCommand(client.System),
		newTTLCommand(client.System),
		newEvictCommand(client.System),
		newFlushCommand(client.System),
		newDrainCommand(client.System),
		newQuotaCommand(client.System),
		newSpecsCommand(client.System),
	)
	addGroup(root, "cluster", "Cluster:", newMembersCommand(client.System), secrets.CertsCommand(), secrets.KeysCommand())
	addGroup(root, "operate", "Operate:",
		newConfigCommand(),
		newPlanCommand(),
		newDoctorCommand(rails.ThisMachine()),
		newDebugCommand(rails.ThisMachine()),
		newFsckCommand(),
		newBenchCommand(client.System),
		newTraceCommand(client.System),
		newCSICommand(),
		newVersionCommand(),
	)
	root.SetHelpCommandGroupID("operate")
	root.SetCompletionCommandGroupID("operate")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(cmd, "%w%s", err, flagHint(cmd, err))
	})
	root.SetUsageFunc(usageOf(root.UsageFunc()))
	checkUsage(root)
	complete.Settings(root)
	return root
}

// addGroup adds commands to root, which --help lists below a title.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, cmd := range commands {
		cmd.GroupID = id
		root.AddCommand(cmd)
	}
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
