package main

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
)

// blockFlags are the flags of commands that name blocks by path or by hash.
type blockFlags struct{ client.Naming }

// add adds the flags to cmd.
func (b *blockFlags) add(cmd *cobra.Command, connect client.Connector) {
	cmd.Flags().StringVar(&b.Mount, "mount", "", "the arguments are hashes, of blocks of the mount at this directory")
	cmd.Flags().StringVar(&b.Group, "group", "", "{group} of the template (with --mount)")
	cmd.Flags().StringVar(&b.Template, "template", "", "path of a hash below the mount; default {group}/{hash} (with --mount)")
	cmd.Flags().IntVar(&b.Ranks, "ranks", 1, "a block is one file for each {rank} of the template from 0 up to this (with --mount)")
	cmd.Flags().StringVar(&b.Request, "request", "", "name of this request in logs and .kvfs/jobs")
	b.addForm(cmd)
	complete.FlagOf(cmd, connect, "mount", complete.Mounts)
	complete.FlagOf(cmd, connect, "group", complete.Groups)
}

// addForm adds the flags for the form of names.
func (b *blockFlags) addForm(cmd *cobra.Command) {
	nulFlag(cmd, &b.NUL)
	cmd.Flags().BoolVarP(&b.Escaped, "escaped", "e", false, "names are escaped as kvfs prints them (\\n, \\xff, \\\\); so are those in --json")
}

// check finds wrong usage.
func (b *blockFlags) check(cmd *cobra.Command) error {
	for _, flag := range []string{"group", "template", "ranks"} {
		if cmd.Flags().Changed(flag) && b.Mount == "" {
			return usageError(cmd, "--%s is for hashes: give --mount, too", flag)
		}
	}
	if b.Ranks < 1 {
		return usageError(cmd, "--ranks: %d is less than 1", b.Ranks)
	}
	return checkUTF8(cmd, "group", "template", "request")
}

// onlyMount is the help of commands whose argument is a mount.
const onlyMount = "Without DIR it is the only kvfs mount of this machine. If there are several, the error names them."

// mountArg returns the mount that a command is about: its argument, or without one the only mount of this machine.
func mountArg(connect client.Connector, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	c, err := connect()
	if err != nil {
		return "", err
	}
	return c.Only()
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
		if value := cmd.Flag(flag).Value.String(); !utf8.ValidString(value) {
			return usageError(cmd, "--%s: %q is not UTF-8", flag, value)
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

// nulFlag adds -0.
func nulFlag(cmd *cobra.Command, nul *bool) {
	cmd.Flags().BoolVarP(nul, "null", "0", false, "names from standard input end with a NUL byte, not with a line")
}

// streams returns the streams of cmd.
func streams(cmd *cobra.Command) blocks.Streams {
	return blocks.Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()}
}
