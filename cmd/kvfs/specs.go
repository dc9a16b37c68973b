package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

func newSpecsCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "specs [--json] DIR\n  kvfs specs [--json] DIR set NAME FILE|-\n  kvfs specs [--json] DIR remove NAME\n" +
			"  kvfs specs check FILE|-",
		Short: "Show, set and check the specs of attention groups",
		Long: "Show the specs of the mount at DIR: what the groups of layers of a model are, which look-ups of the\n" +
			"longest hit need. With set, FILE becomes the spec NAME, until the daemon stops; with remove, NAME is\n" +
			"forgotten. check says what is wrong with FILE without a daemon. FILE has one spec, in JSON, with\n" +
			"the fields of docs/control.md; - is standard input. A directory named check is ./check.\n\n" +
			"Exit codes: 0 if it is done, or FILE is good; 1 if it is refused, or there is no spec NAME; 5 if DIR\n" +
			"is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runSpecs(cmd, connect, args, raw) },
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the answer as JSON")
	return cmd
}

// specsRequest is what is asked of .kvfs/specs. All fields empty: all specs.
type specsRequest struct {
	Set    map[string]json.RawMessage `json:"set,omitempty"`
	Remove []string                   `json:"remove,omitempty"`
}

// runSpecs tells the forms of the command apart.
func runSpecs(cmd *cobra.Command, connect client.Connector, args []string, raw bool) error {
	var q specsRequest
	done := ""
	switch {
	case len(args) == 0:
		return usageError(cmd, "which mount? Or check FILE")
	case args[0] == "check":
		if len(args) != 2 {
			return usageError(cmd, "check wants one FILE, %d given", len(args)-1)
		}
		return checkSpecFile(cmd, args[1], raw)
	case len(args) == 1:
	case args[1] == "set":
		if len(args) != 4 {
			return usageError(cmd, "set wants NAME and FILE, %d given", len(args)-2)
		}
		text, err := client.ReadDocument(args[3], cmd.InOrStdin())
		if err != nil {
			return err
		}
		q.Set, done = map[string]json.RawMessage{args[2]: text}, "set"
	case args[1] == "remove":
		if len(args) != 3 {
			return usageError(cmd, "remove wants one NAME, %d given", len(args)-2)
		}
		q.Remove, done = args[2:], "removed"
	default:
		return usageError(cmd, "%q: want set or remove", args[1])
	}
	if done != "" && !utf8.ValidString(args[2]) {
		return usageError(cmd, "the name %q is not UTF-8", args[2])
	}
	return askSpecs(cmd, connect, args[0], q, done, raw)
}

// askSpecs asks the daemon, and prints the specs that it answers.
func askSpecs(cmd *cobra.Command, connect client.Connector, dir string, q specsRequest, done string, raw bool) error {
	c, err := connect()
	if err != nil {
		return err
	}
	mount, err := c.Root(dir)
	if err != nil {
		return err
	}
	d, err := c.Dial(mount, "specs")
	if err != nil {
		return err
	}
	defer d.Close()
	var answer json.RawMessage
	if err := d.AskInto(cmd.Context(), q, &answer); err != nil {
		return fmt.Errorf("specs of %s: %w", mount, err)
	}
	if raw {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", answer)
		return err
	}
	var all struct {
		Specs map[string]hybrid.Spec `json:"specs"`
	}
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("specs of %s: answer of the daemon: %w", mount, err)
	}
	return printSpecs(cmd.OutOrStdout(), all.Specs, done)
}

// checkSpecFile says what is wrong with the spec in a file, else prints it with its
// defaults.
func checkSpecFile(cmd *cobra.Command, name string, raw bool) error {
	text, err := client.ReadDocument(name, cmd.InOrStdin())
	if err != nil {
		return err
	}
	c, err := query.ParseSpec(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if raw {
		return show.JSON(cmd.OutOrStdout(), c.Spec())
	}
	return printSpecs(cmd.OutOrStdout(), map[string]hybrid.Spec{name: *c.Spec()}, "good")
}

// printSpecs writes specs for people. done says what became of them, if anything did.
func printSpecs(w io.Writer, specs map[string]hybrid.Spec, done string) error {
	if len(specs) == 0 {
		_, err := fmt.Fprintln(w, "no specs")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, name := range slices.Sorted(maps.Keys(specs)) {
		if i > 0 {
			fmt.Fprintln(t)
		}
		s := specs[name]
		if done != "" {
			fmt.Fprintf(t, "%s: %s\n", name, done)
		} else {
			fmt.Fprintln(t, name)
		}
		if s.HashBlockSize == 0 {
			continue // of one that was removed not more may be known
		}
		fmt.Fprintf(t, "  hash blocks of %d tokens, scheduler blocks of %d, cache blocks of %d%s\n",
			s.HashBlockSize, s.SchedulerBlockSize, s.CacheBlockSize, specNote(&s))
		fmt.Fprintf(t, "  GROUP\tKIND\tBLOCK\tNOTE\n")
		for j := range s.Groups {
			g := &s.Groups[j]
			fmt.Fprintf(t, "  %s\t%s\t%d\t%s\n", show.OrDash(g.Name), g.Kind, g.BlockSize, show.OrDash(groupNote(g)))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return t.Flush()
}

// specNote says what is special about a spec.
func specNote(s *hybrid.Spec) string {
	note := ""
	if s.Eagle {
		note += ", with draft layers"
	}
	if s.Retention != nil {
		note += fmt.Sprintf(", stored every %d tokens", *s.Retention)
	}
	if s.PrefillContext > 1 || s.DecodeContext > 1 {
		note += fmt.Sprintf(", context parallel %d and %d", s.PrefillContext, s.DecodeContext)
	}
	return note
}

// groupNote says what is special about a group.
func groupNote(g *hybrid.Group) string {
	var notes []string
	add := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(g.Window > 0, "window %d", g.Window)
	add(g.Chunk > 0, "chunk %d", g.Chunk)
	add(g.Mode != "", "%s", g.Mode)
	add(g.Eagle, "draft layers")
	add(g.Ranks > 0, "%d ranks", g.Ranks)
	add(g.Variant != 0, "variant %d", g.Variant)
	add(g.Uniform, "uniform")
	return strings.Join(notes, ", ")
}
