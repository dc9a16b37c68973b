package blocks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/fate"
)

// whyRequest is a request to .kvfs/query.
type whyRequest struct {
	Op string `json:"op"`
	client.BlockRequest
}

// whyAnswer is its answer: a verdict for each key, with more members than kvfs why prints.
type whyAnswer struct {
	Verdicts []json.RawMessage `json:"verdicts"`
}

// Why prints what is known of blocks, and of those below directories: in words, or, if raw, as
// JSON, one a line. It fails if a directory cannot be listed.
func Why(ctx context.Context, w io.Writer, c *client.Controls, d *client.Dialogue, blocks *client.Blocks, raw bool) error {
	out := bufio.NewWriter(w)
	dirs, err := why(ctx, d, out, blocks, raw)
	if err != nil {
		return err
	}
	var failed client.Failures
	below, err := blocks.Below(ctx, c, dirs, func(name string, err error) { failed.Add(name, err.Error()) })
	if err != nil {
		return err
	}
	if _, err := why(ctx, d, out, below, raw); err != nil {
		return err
	}
	return errors.Join(out.Flush(), failed.Err("%d directories could not be listed", failed.Total))
}

// why prints the verdicts on blocks, and returns the positions of directories.
func why(ctx context.Context, d *client.Dialogue, out *bufio.Writer, blocks *client.Blocks, raw bool) (dirs []int, err error) {
	first := 0
	for rest := blocks.Paths; len(rest) > 0; {
		var batch []string
		batch, rest = client.CutBatch(rest)
		var a whyAnswer
		err := d.AskInto(ctx, whyRequest{"why", blocks.Request(batch)}, &a)
		if err == nil && len(a.Verdicts) != len(batch) {
			err = fmt.Errorf("answer of the daemon: verdicts on %d blocks, %d were asked for", len(a.Verdicts), len(batch))
		}
		var found []int
		if err == nil {
			found, err = printVerdicts(out, blocks, first, a.Verdicts, raw)
		}
		if err != nil {
			return nil, fmt.Errorf("why in %s: %w", d.Mount, client.Blame(err, blocks.Names[first:first+len(batch)]))
		}
		dirs = append(dirs, found...)
		first += len(batch)
	}
	return dirs, nil
}

// printVerdicts writes a line for each verdict on a block, from position first on, and returns
// the positions of directories. w keeps errors of writing.
func printVerdicts(w *bufio.Writer, blocks *client.Blocks, first int, verdicts []json.RawMessage, raw bool) (dirs []int, err error) {
	for i, verdict := range verdicts {
		var v struct {
			Verdict fate.Kind `json:"verdict"`
			Tier    string    `json:"tier"`
			Text    string    `json:"text"`
		}
		if err := json.Unmarshal(verdict, &v); err != nil {
			return nil, fmt.Errorf("answer of the daemon: %w", err)
		}
		if v.Verdict == fate.Present && v.Tier == "" && blocks.IsDir(first+i) {
			dirs = append(dirs, first+i)
			continue
		}
		if raw {
			fmt.Fprintf(w, "%s\n", verdict)
			continue
		}
		if v.Text == "" {
			v.Text = string(v.Verdict)
		}
		fmt.Fprintf(w, "%s: %s\n", show.Text(blocks.Names[first+i]), show.Text(v.Text))
	}
	return dirs, nil
}
