package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
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
	cmd.DisableFlagsInUseLine = strings.Contains(cmd.Use, "--")
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

// blockFlags are the flags of commands that name blocks by path or by hash.
type blockFlags struct{ client.Naming }

func (b *blockFlags) add(cmd *cobra.Command, connect client.Connector) {
	cmd.Flags().StringVar(&b.Mount, "mount", "", "the arguments are hashes, of blocks of the mount at this directory")
	cmd.Flags().StringVar(&b.Group, "group", "", "{group} of the template (with --mount)")
	cmd.Flags().StringVar(&b.Template, "template", "", "path of a hash below the mount; default {group}/{hash} (with --mount)")
	cmd.Flags().IntVar(&b.Ranks, "ranks", 1, "a block is one file for each {rank} of the template from 0 up to this (with --mount)")
	cmd.Flags().StringVar(&b.Request, "request", "", "name of this request in logs and .kvfs/jobs")
	complete.FlagOf(cmd, connect, "mount", complete.Mounts)
	complete.FlagOf(cmd, connect, "group", complete.Groups)
}

func (b *blockFlags) check(cmd *cobra.Command) error {
	for _, flag := range []string{"group", "template", "ranks"} {
		if cmd.Flags().Changed(flag) && b.Mount == "" {
			return usageError(cmd, "--%s is for hashes: give --mount, too", flag)
		}
	}
	if cmd.Flags().Changed("ranks") && b.Ranks < 1 {
		return usageError(cmd, "--ranks: %d is less than 1", b.Ranks)
	}
	return checkUTF8(cmd, "group", "template", "request")
}

// onlyMount is the help of commands whose argument is a mount.
const onlyMount = "DIR defaults to the only kvfs mount of this machine. If there are several, the error lists them."

// pathsHelp is the help of commands whose arguments are blocks.
const pathsHelp = "PATH is a block, or a directory for all blocks below it. - reads names from standard input, one a line, or\n" +
	"ended by NUL bytes with -0. All PATHs belong to one mount."

// mountOf returns the mount that a command is about: its argument, or without one the only mount of this machine.
func mountOf(connect client.Connector, args []string) (c *client.Controls, dir string, err error) {
	if c, err = connect(); err == nil {
		args, err = orOnly(c, args)
	}
	if err != nil {
		return nil, "", err
	}
	return c, args[0], nil
}

// mountCommand fills in what the commands about one mount share. do gets the mount: the argument, or the only mount of
// this machine.
func mountCommand(connect client.Connector, cmd *cobra.Command, do func(cmd *cobra.Command, c *client.Controls, dir string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.MaximumNArgs(1), complete.MountArg(connect)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, dir, err := mountOf(connect, args)
		if err != nil {
			return err
		}
		return do(cmd, c, dir)
	}
	return cmd
}

// command fills in what the commands about named blocks share. do gets the blocks, and a dialogue with a control file; none
// returns what prints the answer for no blocks, or nil.
func (b *blockFlags) command(connect client.Connector, control string, cmd *cobra.Command, none func() func(io.Writer) error,
	do func(cmd *cobra.Command, c *client.Controls, named *client.Blocks, d *client.Dialogue) error) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := needNames(cmd, args); err != nil {
			return err
		}
		if err := b.check(cmd); err != nil {
			return err
		}
		c, named, d, err := b.Open(connect, cmd.InOrStdin(), args, control)
		if err != nil {
			return doneNothing(cmd, err, none())
		}
		defer d.Close()
		return do(cmd, c, named, d)
	}
	nulFlag(cmd, &b.NUL)
	cmd.Flags().BoolVarP(&b.Escaped, "escaped", "e", false, "names are escaped as kvfs prints them (\\n, \\xff, \\\\); so are those in --json")
	return cmd
}

// orOnly returns the arguments, or without any the only mount of this machine.
func orOnly(c *client.Controls, args []string) ([]string, error) {
	if len(args) > 0 {
		return args, nil
	}
	mount, err := c.Only()
	return []string{mount}, err
}

// checkUTF8 finds values of flags that a request cannot hold.
func checkUTF8(cmd *cobra.Command, flags ...string) error {
	for _, flag := range flags {
		if f := cmd.Flag(flag); f != nil && !utf8.ValidString(f.Value.String()) {
			return usageError(cmd, "--%s: %q is not UTF-8", flag, f.Value)
		}
	}
	return nil
}

// doneNothing ends a command whose names could not be read. For an empty list it says so, and
// succeeds; print, which may be nil, then writes the answer for --json.
func doneNothing(cmd *cobra.Command, err error, print func(w io.Writer) error) error {
	if !errors.Is(err, client.ErrNoNames) {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), err)
	if print == nil {
		return nil
	}
	return print(cmd.OutOrStdout())
}

// needNames checks the arguments of commands that take names of blocks.
func needNames(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError(cmd, "no blocks are named: give PATH, or - to read names from standard input")
	}
	return nil
}

func nulFlag(cmd *cobra.Command, nul *bool) {
	cmd.Flags().BoolVarP(nul, "null", "0", false, "names from standard input end with a NUL byte, not with a line")
}

func streams(cmd *cobra.Command) blocks.Streams {
	return blocks.Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()}
}
