package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

func newMembersCommand(connect client.Connector) *cobra.Command {
	var raw bool
	cmd := mountCommand(connect, &cobra.Command{
		Use:   "members [--json] [DIR]",
		Short: "List the nodes of the cluster",
		Long: "List the nodes of the cluster to which the mount at DIR belongs.\n\n" +
			onlyMount,
	}, func(cmd *cobra.Command, _ *client.Controls, dir string) error {
		text, err := client.Read(dir, "members", mounts.Timeout)
		if errors.Is(err, fs.ErrNotExist) {
			if _, other := client.Status(dir, mounts.Timeout); other == nil {
				return exit.With(exit.Runtime, fmt.Errorf("the mount at %s has no peers: it was started without --bind", dir))
			}
		}
		if err != nil {
			return client.Explain(dir, err)
		}
		if raw {
			return printRaw(cmd, text)
		}
		return printMembers(cmd.OutOrStdout(), text)
	})
	cmd.Flags().BoolVar(&raw, "json", false, "print the JSON document as the daemon wrote it")
	return cmd
}

func printMembers(w io.Writer, text []byte) error {
	var list []cluster.Member
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("members: answer of the daemon: %w", err)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NAME\tSTATE\tADDRESS\tZONE\tVERSION\tFREE\tCAPACITY\tBLOCKS\tFEED\tFETCHED\tNOTE\n")
	for i := range list {
		m := &list[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", show.Text(show.OrDash(m.Name)), show.Text(show.State(m.State, m.Reason)), show.Text(show.OrDash(m.GossipAddr)),
			show.Text(show.OrDash(m.Zone)), show.Text(show.OrDash(m.Version)), show.Bytes(m.FreeBytes), show.Bytes(m.TotalBytes), m.Blocks, show.OrDash(m.Feed),
			show.Bytes(int64(m.FetchedSize)), show.Text(show.OrDash(memberNote(m))))
	}
	return t.Flush()
}

func memberNote(m *cluster.Member) string {
	var notes []string
	if m.Self {
		notes = append(notes, "this node")
	}
	if len(m.Missing) > 0 {
		notes = append(notes, "served without "+strings.Join(m.Missing, ", "))
	}
	if m.Path == status.PathRDMA {
		notes = append(notes, "by RDMA")
	}
	if m.PathReason != "" {
		notes = append(notes, map[bool]string{true: "in part: ", false: "not by RDMA: "}[m.Path == status.PathRDMA]+m.PathReason)
	}
	if m.SettingsDiffer {
		notes = append(notes, "other settings than this node")
	}
	if time.Duration(m.ClockAhead*float64(time.Second)).Abs() > status.ClockLimit {
		notes = append(notes, fmt.Sprintf("clock %+.1fs", m.ClockAhead))
	}
	if m.Breaker != "" && m.Breaker != "closed" {
		notes = append(notes, "breaker "+m.Breaker)
	}
	if m.Failures > 0 {
		notes = append(notes, fmt.Sprintf("%d failures, the last: %s", m.Failures, m.LastError))
	}
	if m.State != "alive" && !m.Since.IsZero() {
		notes = append(notes, "since "+m.Since.Format(time.RFC3339))
	}
	return strings.Join(notes, "; ")
}
