package blocks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// SpecsRequest is a request to .kvfs/specs. An empty one gets all specs.
type SpecsRequest struct {
	Set    map[string]json.RawMessage `json:"set,omitempty"`
	Remove []string                   `json:"remove,omitempty"`
}

// Specs sends a request to the daemon of the mount at dir, and prints the specs of the answer,
// as JSON if raw. done says what has become of them, or is empty.
func Specs(ctx context.Context, w io.Writer, connect client.Connector, dir string, q SpecsRequest, done string, raw bool) error {
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
	if err := d.AskInto(ctx, q, &answer); err != nil {
		return fmt.Errorf("specs of %s: %w", mount, err)
	}
	if raw {
		_, err := fmt.Fprintf(w, "%s\n", answer)
		return err
	}
	var all struct {
		Specs map[string]hybrid.Spec `json:"specs"`
	}
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("specs of %s: answer of the daemon: %w", mount, err)
	}
	return printSpecs(w, all.Specs, done)
}

// CheckSpec reports the faults of the spec in a file, or prints it with its defaults, as JSON if raw.
func CheckSpec(s Streams, name string, raw bool) error {
	text, err := client.ReadDocument(name, s.In)
	if err != nil {
		return err
	}
	c, err := query.ParseSpec(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if raw {
		return show.JSON(s.Out, c.Spec())
	}
	return printSpecs(s.Out, map[string]hybrid.Spec{name: *c.Spec()}, "good")
}

// printSpecs writes specs. done says what became of them, or is empty.
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
			continue // of a removed spec only the name may be known
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

// specNote returns the remarks on a spec.
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

// groupNote returns the remarks on a group.
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
