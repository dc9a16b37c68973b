package main

import (
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
)

func newSpecsCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "specs [--json] [DIR]\n  kvfs specs [--json] [DIR] set NAME FILE|-\n  kvfs specs [--json] [DIR] remove NAME\n" +
			"  kvfs specs check FILE|-",
		Short: "Show, set and check the specs of attention groups",
		Long: "Show the specs of the mount at DIR: the attention groups of models, which look-ups of the longest hit\n" +
			"need. set makes FILE the spec NAME until the daemon stops; remove forgets NAME.\n" +
			"check says what is wrong with FILE without a daemon. FILE has one spec, in JSON, with\n" +
			"the fields of docs/configuration.md, specs; - is standard input. A directory named check, set or\n" +
			"remove is ./check and so on.\n\n" +
			onlyMount + "\n\n" +
			"Exit codes: 0 if it is done, or FILE is good; 1 if it is refused, or there is no spec NAME; 5 if DIR\n" +
			"is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: complete.MountArg(connect),
		RunE:              func(cmd *cobra.Command, args []string) error { return runSpecs(cmd, connect, args, raw) },
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the answer as JSON")
	return cmd
}

// runSpecs chooses the form of the command.
func runSpecs(cmd *cobra.Command, connect client.Connector, args []string, raw bool) error {
	var q blocks.SpecsRequest
	var dir []string // at most one
	if len(args) > 0 && !slices.Contains([]string{"check", "set", "remove"}, args[0]) {
		dir, args = args[:1], args[1:]
	}
	done := ""
	switch {
	case len(args) == 0:
	case args[0] == "check" && len(dir) == 0:
		if len(args) != 2 {
			return usageError(cmd, "check needs one FILE, got %d", len(args)-1)
		}
		return blocks.CheckSpec(streams(cmd), args[1], raw)
	case args[0] == "set":
		if len(args) != 3 {
			return usageError(cmd, "set needs NAME and FILE, got %d", len(args)-1)
		}
		text, err := client.ReadDocument(args[2], cmd.InOrStdin())
		if err != nil {
			return err
		}
		q.Set, done = map[string]json.RawMessage{args[1]: text}, "set"
	case args[0] == "remove":
		if len(args) != 2 {
			return usageError(cmd, "remove needs one NAME, got %d", len(args)-1)
		}
		q.Remove, done = args[1:], "removed"
	default:
		return usageError(cmd, "%q: want set or remove", args[0])
	}
	if done != "" && !utf8.ValidString(args[1]) {
		return usageError(cmd, "the name %q is not UTF-8", args[1])
	}
	mount, err := mountArg(connect, dir)
	if err != nil {
		return err
	}
	return blocks.Specs(cmd.Context(), cmd.OutOrStdout(), connect, mount, q, done, raw)
}
