package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// printRDMA writes the lines of RDMA: what it is done with, and from whom.
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
			reached += one(m.Path == pathRDMA)
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
		case m.Path == pathRDMA: // over some of the cards
			fmt.Fprintf(w, "  in part\tpeer %s: %s\n", show.Text(m.Name), show.Text(m.PathReason))
		default:
			fmt.Fprintf(w, "  not rdma\tpeer %s: %s\n", show.Text(m.Name), show.Text(m.PathReason))
		}
	}
}

// one is 1 for true.
func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// pathRDMA is Member.Path of a peer whose memory is read by RDMA.
const pathRDMA = "rdma"
