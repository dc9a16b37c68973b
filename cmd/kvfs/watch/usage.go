package watch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// LowerOf asks the daemon of the mount at dir.
func LowerOf(ctx context.Context, c *client.Controls, dir string) (*status.Lower, error) {
	d, err := c.Control(dir, "usage")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	low := &status.Lower{}
	return low, d.AskInto(ctx, struct{}{}, low)
}

// Usage is who uses how much of which tier.
type Usage struct {
	Groups []GroupUsage  `json:"groups"` // largest first
	Tiers  []status.Tier `json:"tiers"`  // memory first
	Total  Total         `json:"total"`  // of this node's tiers; a block that is in two of them counts twice
}

// GroupUsage is what a group uses.
type GroupUsage struct {
	Name        string `json:"name"` // escaped; empty for files directly below the mount
	MemoryBytes int64  `json:"memory_bytes"`
	QuotaBytes  int64  `json:"quota_bytes"` // 0: none
	BlockBytes  int64  `json:"block_bytes"` // size of its blocks; 0: not known
	Pinned      bool   `json:"pinned"`

	Lower map[string]status.Share `json:"lower,omitempty"` // in tiers below memory; absent if it is not known
}

// Total is the sum of some tiers.
type Total struct {
	UsedBytes int64 `json:"used_bytes"`
	Blocks    int64 `json:"blocks"`
}

// UsageOf returns the usage in a status, and of lower tiers in low, which may be nil.
func UsageOf(d *status.Document, low *status.Lower) *Usage {
	if low == nil {
		low = &status.Lower{}
	}
	u := &Usage{Groups: make([]GroupUsage, 0, len(d.Groups)), Tiers: d.Tiers}
	for _, g := range d.Groups {
		u.Groups = append(u.Groups, GroupUsage{g.Name, g.UsedBytes, g.QuotaBytes, g.BlockBytes, g.Pinned, low.Groups[g.Name]})
	}
	slices.SortFunc(u.Groups, func(a, b GroupUsage) int {
		return cmp.Or(cmp.Compare(b.MemoryBytes, a.MemoryBytes), cmp.Compare(a.Name, b.Name))
	})
	for _, t := range d.Tiers {
		if t.Type != config.TierPeer {
			u.Total.UsedBytes += t.UsedBytes
			u.Total.Blocks += t.Blocks
		}
	}
	return u
}

// Print writes the usage as two tables.
func (u *Usage) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	lower := u.lower()
	columns := func(first, memory string, of func(tier string) int64, rest string) {
		fmt.Fprintf(t, "%s\t%s\t", first, memory)
		for _, tier := range lower {
			if of == nil {
				fmt.Fprintf(t, "%s\t", strings.ToUpper(show.Text(tier)))
			} else {
				fmt.Fprintf(t, "%s\t", show.Bytes(of(tier)))
			}
		}
		fmt.Fprintln(t, rest)
	}
	columns("GROUP", "MEMORY", nil, "QUOTA\tBLOCK SIZE\tNOTE")
	var sum int64
	sums := map[string]int64{}
	for i := range u.Groups {
		g := &u.Groups[i]
		sum += g.MemoryBytes
		for _, tier := range lower {
			sums[tier] += g.Lower[tier].Bytes
		}
		columns(g.Title(), show.Bytes(g.MemoryBytes), func(tier string) int64 { return g.Lower[tier].Bytes },
			show.BytesOrDash(g.QuotaBytes)+"\t"+show.BytesOrDash(g.BlockBytes)+"\t"+g.note())
	}
	columns("total", show.Bytes(sum), func(tier string) int64 { return sums[tier] }, "-\t-\t-")
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nTIER\tUSED\tCAPACITY\tPINNED\tBLOCKS\n")
	for _, v := range u.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", show.OrDash(v.Name), show.Bytes(v.UsedBytes), show.Bytes(v.CapacityBytes), show.Bytes(v.PinnedBytes), v.Blocks)
	}
	fmt.Fprintf(t, "total\t%s\t-\t-\t%d\n", show.Bytes(u.Total.UsedBytes), u.Total.Blocks)
	return t.Flush()
}

// lower returns the names of the tiers that have something of a group, in the order of the tiers.
func (u *Usage) lower() (names []string) {
	for _, t := range u.Tiers {
		if slices.ContainsFunc(u.Groups, func(g GroupUsage) bool { _, ok := g.Lower[t.Name]; return ok }) {
			names = append(names, t.Name)
		}
	}
	return names
}

// Title is the name of the group as tables have it. The name is escaped already; show.Lines keeps a terminal safe from a
// daemon that does not escape.
func (g *GroupUsage) Title() string {
	if g.Name == "" {
		return "./"
	}
	return strings.ReplaceAll(show.Lines(g.Name), "\n", `\n`)
}

func (g *GroupUsage) note() string {
	if g.Pinned {
		return "pinned"
	}
	return "-"
}
