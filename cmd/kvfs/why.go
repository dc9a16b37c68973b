package main

import (
	"bufio"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

// whyRequest is what is asked of .kvfs/query.
type whyRequest struct {
	Op   string   `json:"op"`
	Keys []string `json:"keys"`
}

// whyAnswer is what is answered: a verdict for each key, of which more is said
// than kvfs why prints.
type whyAnswer struct {
	Verdicts []json.RawMessage `json:"verdicts"`
}

func newWhyCommand(connect connector) *cobra.Command {
	var raw, nul bool
	cmd := &cobra.Command{
		Use:   "why [--json] PATH...",
		Short: "Show why blocks are not there",
		Long: "Show what is known of each PATH: that a block is there, or why it is not, for example because it\n" +
			"was never stored, was evicted, expired, or was removed. - reads names from standard input, one a\n" +
			"line, or each ended by a NUL byte with -0. All must be of one mount.\n\n" +
			"The daemon remembers the last 65,536 verdicts since its start.\n\n" +
			"Exit codes: 0 also if blocks are not there; 1 if the daemon refused; 5 if it is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runWhy(cmd, connect, args, raw, nul) },
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the verdicts as JSON, one a line")
	nulFlag(cmd, &nul)
	return cmd
}

func runWhy(cmd *cobra.Command, connect connector, args []string, raw, nul bool) error {
	if err := needNames(cmd, args); err != nil {
		return err
	}
	c, err := connect()
	if err != nil {
		return err
	}
	flags := blockFlags{nul: nul}
	blocks, err := flags.read(c, cmd.InOrStdin(), args)
	if err != nil {
		return doneNothing(cmd, err, nil)
	}
	d, err := c.dial(blocks.mount, "query")
	if err != nil {
		return err
	}
	defer d.Close()
	out := bufio.NewWriter(cmd.OutOrStdout())
	names := blocks.names
	for rest := blocks.paths; len(rest) > 0; {
		var batch []string
		batch, rest = cutBatch(rest)
		var a whyAnswer
		err := d.askInto(cmd.Context(), whyRequest{"why", batch}, &a)
		if err == nil {
			err = printVerdicts(out, names[:len(batch)], a.Verdicts, raw)
		}
		if err != nil {
			return fmt.Errorf("why in %s: %w", d.mount, blame(err, names))
		}
		names = names[len(batch):]
	}
	return out.Flush()
}

// printVerdicts writes a line for each verdict. Errors of writing are kept by w.
func printVerdicts(w *bufio.Writer, names []string, verdicts []json.RawMessage, raw bool) error {
	if len(verdicts) != len(names) {
		return fmt.Errorf("answer of the daemon: verdicts on %d blocks, %d were asked for", len(verdicts), len(names))
	}
	for i, verdict := range verdicts {
		if raw {
			fmt.Fprintf(w, "%s\n", verdict)
			continue
		}
		var v struct {
			Verdict string `json:"verdict"`
			Text    string `json:"text"`
		}
		if err := json.Unmarshal(verdict, &v); err != nil {
			return fmt.Errorf("answer of the daemon: %w", err)
		}
		if v.Text == "" {
			v.Text = v.Verdict
		}
		fmt.Fprintf(w, "%s: %s\n", names[i], v.Text)
	}
	return nil
}
