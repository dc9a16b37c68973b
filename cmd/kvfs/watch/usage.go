package watch

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// Usage is who uses how much of which tier. A daemon counts the bytes of each group in memory; of lower tiers it knows
// the sum alone.
type Usage struct {
	Groups []GroupUsage `json:"groups"` // largest first
	Tiers  []TierUsage  `json:"tiers"`  // memory first
	Total  Total        `json:"total"`  // of this node's tiers; a block that is in two of them counts twice
}

// GroupUsage is the memory of a group.
type GroupUsage struct {
	Name        string `json:"name"` // escaped; empty for files directly below the mount
	MemoryBytes int64  `json:"memory_bytes"`
	QuotaBytes  int64  `json:"quota_bytes"` // 0: none
	BlockBytes  int64  `json:"block_bytes"` // size of its blocks; 0: not known
	Pinned      bool   `json:"pinned"`
}

// TierUsage is what is in a tier.
type TierUsage struct {
	Name          string `json:"name"`
	UsedBytes     int64  `json:"used_bytes"`
	CapacityBytes int64  `json:"capacity_bytes"`
	PinnedBytes   int64  `json:"pinned_bytes"`
	Blocks        int64  `json:"blocks"`
}

// Total is the sum of some tiers.
type Total struct {
	UsedBytes int64 `json:"used_bytes"`
	Blocks    int64 `json:"blocks"`
}

// UsageOf returns the usage in a status.
func UsageOf(d *status.Document) *Usage {
	u := &Usage{Groups: make([]GroupUsage, 0, len(d.Groups)), Tiers: make([]TierUsage, 0, len(d.Tiers))}
	for _, g := range d.Groups {
		u.Groups = append(u.Groups, GroupUsage{g.Name, g.UsedBytes, g.QuotaBytes, g.BlockBytes, g.Pinned})
	}
	slices.SortFunc(u.Groups, func(a, b GroupUsage) int {
		return cmp.Or(cmp.Compare(b.MemoryBytes, a.MemoryBytes), cmp.Compare(a.Name, b.Name))
	})
	for _, t := range d.Tiers {
		u.Tiers = append(u.Tiers, TierUsage{t.Name, t.UsedBytes, t.CapacityBytes, t.PinnedBytes, t.Blocks})
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
	fmt.Fprintf(t, "GROUP\tMEMORY\tQUOTA\tBLOCK SIZE\tNOTE\n")
	var sum int64
	for i := range u.Groups {
		g := &u.Groups[i]
		sum += g.MemoryBytes
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", g.Title(), show.Bytes(g.MemoryBytes), orNone(g.QuotaBytes), orNone(g.BlockBytes), g.note())
	}
	fmt.Fprintf(t, "total\t%s\t-\t-\t-\n", show.Bytes(sum))
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

// Title is the name of the group as tables have it. The name is escaped already; show.Lines keeps a terminal safe from a
// daemon that does not escape.
func (g *GroupUsage) Title() string {
	if g.Name == "" {
		return "./"
	}
	return strings.ReplaceAll(show.Lines(g.Name), "\n", `\n`)
}

// note returns the remarks on the group.
func (g *GroupUsage) note() string {
	if g.Pinned {
		return "pinned"
	}
	return "-"
}

// orNone returns a size, "-" for 0.
func orNone(n int64) string {
	if n == 0 {
		return "-"
	}
	return show.Bytes(n)
}
