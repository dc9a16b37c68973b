package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
	"github.com/kvfs/kvfs/tiers/latency"
)

// The parts of a view have at most so many lines each.
const (
	shownRequests = 8
	shownGroups   = 20
	shownMembers  = 50
)

// barWidth is the width of the bars: wider in a wide terminal.
func barWidth(width int) int { return max(min(width/6, 40), 10) }

// body returns the lines of a frame for a terminal of a width.
func body(f *Frame, width int) []line {
	d := f.Doc
	lines := []line{
		{fmt.Sprintf("kvfs top  %s  version %s, pid %d, up %v", show.Text(show.OrDash(d.Mount.Dir)), show.Text(show.OrDash(d.Version)), d.PID,
			time.Duration(d.UptimeSeconds)*time.Second), true},
		{fmt.Sprintf("reads by %s, writes by %s", show.Text(show.OrDash(d.Mount.ReadPath)), show.Text(show.OrDash(d.Mount.WritePath))), false},
	}
	part := func(title string, write func(w io.Writer)) {
		var text strings.Builder
		t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		write(t)
		t.Flush() // to memory
		if text.Len() == 0 {
			return
		}
		lines = append(lines, line{}, line{title, true})
		for l := range strings.Lines(text.String()) {
			lines = append(lines, line{strings.TrimRight(l, " \n"), false})
		}
	}
	part("TIERS", func(w io.Writer) { writeTiers(w, d.Tiers, barWidth(width)) })
	part("RATES A SECOND", func(w io.Writer) { writeRates(w, f.Rates) })
	part("PROBLEMS", func(w io.Writer) { writeProblems(w, d) })
	part("REQUESTS OF THE KERNEL", func(w io.Writer) { writeRequests(w, f.Requests, f.Rates) })
	part("GROUPS IN MEMORY", func(w io.Writer) { writeGroups(w, d, barWidth(width)) })
	if d.Cluster != nil {
		part("MEMBERS", func(w io.Writer) { writeMembers(w, d.Cluster.Members) })
	}
	part("LAST EVENTS", func(w io.Writer) { writeEvents(w, f) })
	return lines
}

// bar shows a share by a bar. All that is more than nothing is at least one mark, and only what is full fills it.
func bar(part, whole int64, width int) string {
	full := 0
	if whole > 0 && part > 0 {
		full = max(min(int(float64(width)*float64(part)/float64(whole)), width), 1)
	}
	return "[" + strings.Repeat("|", full) + strings.Repeat(" ", width-full) + "]"
}

// writeTiers writes a line for each tier.
func writeTiers(w io.Writer, tiers []status.Tier, width int) {
	for i := range tiers {
		t := &tiers[i]
		share := (*float64)(nil)
		if t.CapacityBytes > 0 {
			s := float64(t.UsedBytes) / float64(t.CapacityBytes)
			share = &s
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s of %s\t%s\t%s\n", show.Text(show.OrDash(t.Name)), bar(t.UsedBytes, t.CapacityBytes, width), watch.Percent(share),
			show.Bytes(t.UsedBytes), show.Bytes(t.CapacityBytes), show.Blocks(t.Blocks), show.Text(show.State(t.State, t.Reason)))
	}
}

// writeRates writes what has happened since the last frame.
func writeRates(w io.Writer, r *watch.Rates) {
	if r == nil {
		fmt.Fprintln(w, "come with the next view")
		return
	}
	fmt.Fprintf(w, "reads\t%s\t%s\thits\t%s\tmisses\t%s\n", watch.Number(r.Reads), show.Bytes(int64(r.ReadBytes)), watch.Percent(r.HitRatio), watch.Number(r.Misses))
	fmt.Fprintf(w, "writes\t%s\t%s\tevictions\t%s\tqueued\t%s, %s\n", watch.Number(r.Writes), show.Bytes(int64(r.WrittenBytes)),
		watch.Number(r.Evictions), show.Blocks(r.QueuedBlocks), show.Bytes(r.QueuedBytes))
	fmt.Fprintf(w, "promotions\t%s\t\tcascades\t%s\n", watch.Number(r.Promotions), watch.Number(r.Cascades))
}

// writeProblems writes what an operator should know of: counters of failures that are not 0.
func writeProblems(w io.Writer, d *status.Document) {
	say := func(where, what string, n uint64) {
		if n > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\n", where, n, what)
		}
	}
	c := &d.Counters
	say("memory", "blocks evicted that no other tier had", c.Lost)
	say("memory", "writes refused for lack of room", c.NoSpace)
	say("memory", "waits because it was full of open or leased blocks", c.FullOfOpen+c.FullOfLeased)
	say("memory", "promotions given up for lack of room", c.PromoteNoRoom)
	say("memory", "files not committed because a write failed", c.Poisoned)
	say("reads", "blocks that no tier could give although one has them", d.Reads.FailedKeys)
	say("reads", "opens that missed a deadline", c.DeadlinePredicted+c.DeadlineExceeded)
	for i := range d.Secondaries {
		s := &d.Secondaries[i]
		name := show.Text(show.OrDash(s.Name))
		say(name, "reads and writes that failed", s.IOErrors)
		say(name, "copies that failed their checksum", s.Corrupt)
		say(name, "blocks not stored because the queue was full", s.CascadeDropped)
		say(name, "blocks not stored for lack of room or budget", s.CascadeSkipped)
		say(name, "blocks not stored because of a failure", s.CascadeFailed)
		say(name, "promotions that failed", s.PromoteFailed)
		say(name, "misses because a promotion took too long", s.PromoteTimeouts)
	}
	if d.Cluster != nil && d.Cluster.Warning != "" {
		fmt.Fprintf(w, "cluster\t\t%s\n", show.Text(d.Cluster.Warning))
	}
}

// writeRequests writes the latencies of the most frequent operations.
func writeRequests(w io.Writer, requests map[string]latency.Counts, rates *watch.Rates) {
	type request struct {
		op string
		n  uint64
	}
	var all []request
	for op, c := range requests {
		if n := c.Total(); n > 0 {
			all = append(all, request{op, n})
		}
	}
	if rates == nil || len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b request) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.op, b.op)) })
	fmt.Fprintf(w, "OPERATION\tA SECOND\tMEAN\tHALF WITHIN\t99%% WITHIN\n")
	for _, r := range all[:min(len(all), shownRequests)] {
		c := requests[r.op]
		rate := 0.0
		if rates.Interval > 0 {
			rate = float64(r.n) / rates.Interval
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%v\t%v\n", show.Text(r.op), watch.Number(rate), round(c.Sum/time.Duration(r.n)), round(c.Quantile(0.5)), round(c.Quantile(0.99)))
	}
}

// round drops the digits of a latency that say nothing.
func round(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// writeGroups writes the largest groups.
func writeGroups(w io.Writer, d *status.Document, width int) {
	var capacity int64
	if len(d.Tiers) > 0 {
		capacity = d.Tiers[0].CapacityBytes
	}
	groups := watch.UsageOf(d, nil).Groups
	for i := range groups[:min(len(groups), shownGroups)] {
		g := &groups[i]
		note := ""
		if g.QuotaBytes > 0 {
			note = "quota " + show.Bytes(g.QuotaBytes)
		}
		if g.Pinned {
			note += " pinned"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", g.Title(), bar(g.MemoryBytes, cmp.Or(g.QuotaBytes, capacity), width), show.Bytes(g.MemoryBytes), strings.TrimSpace(note))
	}
	if more := len(groups) - shownGroups; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}

// writeMembers writes the nodes of the cluster, those with trouble first.
func writeMembers(w io.Writer, members []cluster.Member) {
	trouble := func(m *cluster.Member) bool { return m.State != "alive" || m.Breaker != "" && m.Breaker != "closed" }
	order := func(m *cluster.Member) int {
		if trouble(m) {
			return 0
		}
		return 1
	}
	members = slices.Clone(members)
	slices.SortStableFunc(members, func(a, b cluster.Member) int { return cmp.Compare(order(&a), order(&b)) })
	for i := range members[:min(len(members), shownMembers)] {
		m := &members[i]
		var notes []string
		if m.Self {
			notes = append(notes, "this node")
		}
		if m.Breaker != "" && m.Breaker != "closed" {
			notes = append(notes, "breaker "+m.Breaker)
		}
		if m.Failures > 0 {
			notes = append(notes, fmt.Sprintf("%d failures, the last: %s", m.Failures, m.LastError))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s free of %s\tfetched %s\t%s\n", show.Text(show.OrDash(m.Name)), show.Text(show.State(m.State, m.Reason)),
			show.Blocks(int64(m.Blocks)), show.Bytes(m.FreeBytes), show.Bytes(m.TotalBytes), show.Bytes(int64(m.FetchedSize)), show.Text(strings.Join(notes, "; ")))
	}
	if more := len(members) - shownMembers; more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}

// writeEvents writes the last events, the newest first.
func writeEvents(w io.Writer, f *Frame) {
	if f.EventErr != nil {
		fmt.Fprintln(w, show.Text(f.EventErr.Error()))
	}
	for _, e := range slices.Backward(f.Events) {
		fmt.Fprintln(w, e)
	}
}
