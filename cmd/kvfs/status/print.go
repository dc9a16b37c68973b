package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/lane"
)

// Print writes the status for people. Of a document of another Schema it writes what no Schema changes.
func Print(w io.Writer, text []byte) error {
	s, err := Parse(text)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	t := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0) // to memory: no call fails
	uptime := time.Duration(s.UptimeSeconds * float64(time.Second)).Round(time.Second)
	fmt.Fprintf(t, "version\t%s\n", show.OrDash(s.Version))
	if s.Store == nil {
		s.Mount.print(t)
	} else {
		fmt.Fprintf(t, "socket\t%s\n", show.OrDash(s.Store.Socket))
	}
	fmt.Fprintf(t, "pid\t%d\n", s.PID)
	fmt.Fprintf(t, "uptime\t%v\n", uptime)
	t.Flush()
	if s.Store != nil {
		s.Store.print(t)
		t.Flush()
	}
	fmt.Fprintf(t, "\nTIER\tTYPE\tSTATE\tUSED\tCAPACITY\tPINNED\tBLOCKS\n")
	for _, tier := range s.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", show.OrDash(tier.Name), show.OrDash(tier.Type), show.Text(show.State(tier.State, tier.Reason)),
			show.Bytes(tier.UsedBytes), tier.capacity(), show.Bytes(tier.PinnedBytes), tier.Blocks)
	}
	if s.Schema != Schema {
		fmt.Fprintf(t, "\nThe daemon has another version. --json shows all that it tells.\n")
	} else {
		s.printRest(t)
	}
	t.Flush()
	_, err = w.Write(out.Bytes())
	return err
}

// printRest writes what only this Schema has.
func (s *Document) printRest(t *tabwriter.Writer) {
	if len(s.Quotas) > 0 {
		t.Flush()
		fmt.Fprintf(t, "\nQUOTA OF\tNAME\tUSED\tQUOTA\tPINNED\tPIN QUOTA\n")
		for _, q := range s.Quotas {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", q.Kind, show.OrDash(q.Name), show.Bytes(q.UsedBytes), show.BytesOrDash(q.Bytes),
				show.Bytes(q.PinnedBytes), show.BytesOrDash(q.PinQuotaBytes))
		}
	}
	for i := range s.Secondaries {
		t.Flush()
		printSecondary(t, &s.Secondaries[i])
	}
	if s.Cluster != nil {
		t.Flush()
		s.Cluster.print(t, s.Ahead())
	}
}

// capacity returns the capacity, "-" for an object store without a limit.
func (t *Tier) capacity() string {
	if t.Type == config.TierObject {
		return show.BytesOrDash(t.CapacityBytes)
	}
	return show.Bytes(t.CapacityBytes)
}

func (m *Mount) print(w io.Writer) {
	fmt.Fprintf(w, "mount\t%s\n", show.OrDash(m.Dir))
	if m.Mode == config.ModeStandaloneStore { // else one process serves it
		fmt.Fprintf(w, "mode\t%s\n", m.Mode)
		fmt.Fprintf(w, "mount pid\t%d\n", m.PID)
		fmt.Fprintf(w, "state\t%s\n", show.OrDash(m.State))
	}
	fmt.Fprintf(w, "read path\t%s\n", show.OrDash(m.ReadPath))
	fmt.Fprintf(w, "write path\t%s\n", show.OrDash(m.WritePath))
}

func (s *Store) print(w io.Writer) {
	fmt.Fprintf(w, "\nMOUNT\tPID\tSTATE\tREAD PATH\tWRITE PATH\n")
	for _, m := range s.Mounts {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", show.OrDash(m.Dir), m.PID, show.OrDash(m.State), show.OrDash(m.ReadPath), show.OrDash(m.WritePath))
	}
}

// printSecondary writes the lines of one tier below memory: its traffic down and up, then the details of the tier "disk".
func printSecondary(w io.Writer, s *lane.Stats) {
	fmt.Fprintf(w, "\n%s\n", show.OrDash(s.Name))
	fmt.Fprintf(w, "  cascade queue\t%s, %s of %s\n", show.Blocks(s.QueuedBlocks), show.Bytes(s.QueuedBytes), show.Bytes(s.QueueLimitBytes))
	fmt.Fprintf(w, "  cascaded\t%s%s\n", show.Moved(s.Cascaded, s.CascadedBytes), show.Counts(
		show.Count("queue full", s.CascadeDropped), show.Count("no room or budget", s.CascadeSkipped),
		show.Count("failed", s.CascadeFailed), show.Count("not admitted", s.AdmissionRejected)))
	fmt.Fprintf(w, "  promoted\t%s%s\n", show.Moved(s.Promoted, s.PromotedBytes), show.Counts(
		show.Count("absent", s.PromoteAbsent), show.Count("corrupt", s.PromoteCorrupt),
		show.Count("failed", s.PromoteFailed), show.Count("timed out", s.PromoteTimeouts)))
	var d disk.Detail
	text, err := json.Marshal(s.Detail)
	if err != nil || json.Unmarshal(text, &d) != nil || len(d.Devices) == 0 {
		return // another kind of tier has other details
	}
	printDisk(w, &d)
}

// printDisk writes the details of the tier "disk" and of its devices.
func printDisk(w io.Writer, d *disk.Detail) {
	budget := ""
	if d.BudgetBytes > 0 {
		budget = " of " + show.Bytes(d.BudgetBytes)
	}
	fmt.Fprintf(w, "  written today\t%s%s\n", show.Bytes(d.WrittenTodayBytes), budget)
	fmt.Fprintf(w, "  scrubbed\t%s%s\n", show.Moved(d.ScrubbedBlocks, d.ScrubbedBytes), show.Counts(show.Count("bad", d.ScrubbedBad)))
	fmt.Fprintf(w, "\n  DEVICE\tSTATE\tUSED\tCAPACITY\tBLOCKS\tENGINE\n")
	for i := range d.Devices {
		v := &d.Devices[i]
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%d\t%s\n", show.OrDash(v.Dir), show.State(v.State, v.Reason),
			show.Bytes(v.UsedBytes), show.Bytes(v.CapacityBytes), v.Blocks, show.OrDash(v.Engine))
	}
}

// print writes the lines of the cluster: its nodes, and the features that each one lacks.
func (c *Cluster) print(w io.Writer, ahead string) {
	states := map[string]int{}
	for i := range c.Members {
		states[c.Members[i].State]++
	}
	fmt.Fprintf(w, "\ncluster\n")
	fmt.Fprintf(w, "  members\t%d alive%s\n", states["alive"], show.Counts(
		show.Count("left", uint64(states["left"])), show.Count("failed", uint64(states["failed"])), show.Count("refused", uint64(states["refused"]))))
	index := &c.Node.Index
	fmt.Fprintf(w, "  index\t%d entries, %s; %d graves%s\n", index.Entries, show.Bytes(index.Bytes), index.Graves,
		show.Counts(show.Count("without room", index.Omitted)))
	fmt.Fprintf(w, "  features\t%s", show.Text(show.OrDash(strings.Join(c.Requested, ", "))))
	if len(c.Required) > 0 {
		fmt.Fprintf(w, " (required: %s)", show.Text(strings.Join(c.Required, ", ")))
	}
	fmt.Fprintln(w)
	for i := range c.Members {
		if m := &c.Members[i]; m.State == "alive" && len(m.Missing) > 0 {
			fmt.Fprintf(w, "  without\t%s: peer %s, version %s\n", show.Text(strings.Join(m.Missing, ", ")), show.Text(m.Name), show.Text(m.Version))
		}
	}
	printRDMA(w, c.RDMA, c.Members)
	var rejected uint64
	for _, n := range c.Rejected {
		rejected += n
	}
	fmt.Fprintf(w, "  rejected\t%d from strangers\n", rejected)
	if ahead != "" {
		fmt.Fprintf(w, "  clock\t%s: kvfs doctor tells more\n", ahead)
	}
	if c.Warning != "" {
		fmt.Fprintf(w, "  warning\t%s\n", show.Text(c.Warning))
	}
}

// printRDMA writes the lines of RDMA: the provider, and the peers that it reads from.
func printRDMA(w io.Writer, s *rails.State, members []cluster.Member) {
	if s == nil || s.Transport == config.TransportTCP {
		return
	}
	if s.Stats == nil {
		fmt.Fprintf(w, "  rdma\tnone: %s\n", show.OrDash(s.Error))
		return
	}
	reached, alive := 0, 0
	for i := range members {
		if m := &members[i]; !m.Self && m.State == "alive" {
			alive++
			if m.Path == PathRDMA {
				reached++
			}
		}
	}
	fmt.Fprintf(w, "  rdma\t%s, %d of %d peers, %s read%s\n", show.OrDash(s.Provider), reached, alive, show.Bytes(s.Stats.ReadBytes), show.Counts(
		show.Count("failed", uint64(s.Stats.Failed)), show.Count("stalls", uint64(s.Stats.Stalls))))
	if s.Plan != nil && len(s.Plan.Rails) > 0 {
		fmt.Fprintf(w, "  rails\t%s\n", strings.Join(rails.Describe(s.Plan), "; "))
	}
	for i := range members {
		switch m := &members[i]; {
		case m.State != "alive" || m.PathReason == "":
		case m.Path == PathRDMA: // over some of the cards
			fmt.Fprintf(w, "  in part\tpeer %s: %s\n", show.Text(m.Name), show.Text(m.PathReason))
		default:
			fmt.Fprintf(w, "  not rdma\tpeer %s: %s\n", show.Text(m.Name), show.Text(m.PathReason))
		}
	}
}
