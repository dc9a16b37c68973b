package blocks

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers/fate"
)

// PrintNone returns the function that writes the answer for no blocks, or nil if there is nothing to write.
func (e *Eviction) PrintNone() func(io.Writer) error {
	if !e.JSON {
		return nil
	}
	return func(w io.Writer) error { return e.print(w, &control.EvictAnswer{Kept: []control.EvictKept{}}) }
}

// Eviction are the options of kvfs evict.
type Eviction struct {
	Tier  string // "memory" or "disk"
	Force bool   // also blocks that no other tier holds
	JSON  bool   // the answer is printed as JSON
}

// Run evicts the blocks of paths below a mount from the tier, or without paths all of its
// blocks, and prints the result. It fails if there is nothing at a path.
func (e *Eviction) Run(ctx context.Context, s Streams, c *client.Controls, mount string, paths []string) error {
	stop := func() {}
	if !e.Force { // the daemon copies blocks down before it evicts them: that is what takes time
		stop = followCopies(ctx, s.Err, mount)
	}
	answer, err := e.ask(ctx, c, mount, paths)
	stop()
	if err != nil {
		return err
	}
	if err := e.print(s.Out, answer); err != nil {
		return err
	}
	return absent(answer)
}

// absent is the error about paths without a block.
func absent(answer *control.EvictAnswer) error {
	var names []string
	for _, kept := range answer.Kept {
		if kept.Reason == fate.ReasonNotFound.String() {
			names = append(names, kept.Path)
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s: not found", names[0])
	}
	return fmt.Errorf("%s and %d more: not found", names[0], len(names)-1)
}

// ask sends the paths to the daemon, in as many requests as it takes, and returns the sum of
// its answers. No paths means all blocks.
func (e *Eviction) ask(ctx context.Context, c *client.Controls, mount string, paths []string) (*control.EvictAnswer, error) {
	d, err := c.Dial(mount, "evict")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sum := &control.EvictAnswer{Kept: []control.EvictKept{}}
	ask := control.EvictRequest{Tier: e.Tier, Force: e.Force, All: len(paths) == 0}
	for {
		ask.Paths, paths = client.CutBatch(paths)
		var answer control.EvictAnswer
		if err := d.AskInto(ctx, ask, &answer); err != nil {
			return nil, fmt.Errorf("evict from %s: %w", mount, err)
		}
		sum.Blocks += answer.Blocks
		sum.Bytes += answer.Bytes
		sum.KeptTotal += answer.KeptTotal
		sum.Kept = append(sum.Kept, answer.Kept...)
		if len(paths) == 0 {
			return sum, nil
		}
	}
}

// print writes the answer.
func (e *Eviction) print(w io.Writer, answer *control.EvictAnswer) error {
	if e.JSON {
		return show.JSON(w, struct {
			Tier string `json:"tier"`
			*control.EvictAnswer
		}{e.Tier, answer})
	}
	fmt.Fprintf(w, "evicted %s (%s) from %s\n", show.Blocks(answer.Blocks), show.Bytes(answer.Bytes), e.Tier)
	if answer.KeptTotal == 0 {
		return nil
	}
	fmt.Fprintf(w, "kept %s:\n", show.Blocks(answer.KeptTotal))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, kept := range answer.Kept {
		fmt.Fprintf(t, "  %s\t%s\n", show.Text(kept.Reason), show.Text(kept.Path))
	}
	if more := answer.KeptTotal - int64(len(answer.Kept)); more > 0 {
		fmt.Fprintf(t, "  and %d more\n", more)
	}
	return t.Flush()
}
