package blocks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// longestRequest and longestAnswer are a request to .kvfs/query and its answer.
type longestRequest struct {
	Op   string          `json:"op"`
	Spec json.RawMessage `json:"spec"`
	client.BlockRequest
	NumTokens *int `json:"num_tokens,omitempty"`
	Cached    int  `json:"cached,omitempty"`
	Fetch     bool `json:"fetch"`
	lookOptions
}

type longestAnswer struct {
	Op        string         `json:"op"`
	HitTokens int            `json:"hit_tokens"`
	Capped    bool           `json:"capped"`
	Pending   int            `json:"pending"`
	Late      int            `json:"late"`
	Groups    []longestGroup `json:"groups"`
}

type longestGroup struct {
	Name  string `json:"name"`
	Load  string `json:"load"`
	Fetch []int  `json:"fetch"`
}

// longestHit prints the longest hit of a prompt.
func (l *Lookup) longestHit(ctx context.Context, s Streams, d *client.Dialogue, blocks *client.Blocks) error {
	if _, rest := client.CutBatch(blocks.Names); len(rest) > 0 {
		return fmt.Errorf("%d hashes are too many for one prompt", len(blocks.Names))
	}
	q := longestRequest{Op: "longest_hit", BlockRequest: blocks.Request(blocks.Names), Cached: l.Cached, Fetch: true, NumTokens: l.NumTokens, lookOptions: l.options()}
	var err error
	if file, isFile := strings.CutPrefix(l.Spec, "@"); isFile {
		q.Spec, err = client.ReadDocument(file, s.In)
	} else {
		q.Spec, err = json.Marshal(l.Spec)
	}
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := d.AskInto(ctx, q, &raw); err != nil {
		return fmt.Errorf("look up in %s: %w", d.Mount, client.Blame(err, blocks.Names))
	}
	if l.JSON {
		_, err := fmt.Fprintf(s.Out, "%s\n", raw)
		return err
	}
	return printLongest(s.Out, raw)
}

// printLongest writes the answer.
func printLongest(w io.Writer, raw json.RawMessage) error {
	var a longestAnswer
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("answer of the daemon: %w", err)
	}
	note := ""
	if a.Capped {
		note = " (all of the prompt is cached; its last token is computed in any case)"
	}
	fmt.Fprintf(w, "hit: %d tokens%s\n", a.HitTokens, note)
	if a.Pending > 0 || a.Late > 0 {
		fmt.Fprintf(w, "counted as absent: %d pending, %d late\n", a.Pending, a.Late)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "GROUP\tBLOCKS\tTO READ\n")
	for _, g := range a.Groups {
		fmt.Fprintf(t, "%s\t%d\t%d\n", show.Text(show.OrDash(g.Name)), len(g.Load), len(g.Fetch))
	}
	return t.Flush()
}
