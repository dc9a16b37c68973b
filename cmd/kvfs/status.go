package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newStatusCommand() *cobra.Command {
	var raw, owner bool
	cmd := &cobra.Command{
		Use:   "status [--json] DIR | --store [SOCKET]",
		Short: "Show the state of the mount at DIR, or of the owner that kvfs serve runs",
		Args: func(cmd *cobra.Command, args []string) error {
			if owner {
				return cobra.MaximumNArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := statusOf(cmd.Context(), args, owner)
			if err != nil {
				return err
			}
			if raw {
				_, err := cmd.OutOrStdout().Write(append(bytes.TrimRight(text, "\n"), '\n'))
				return err
			}
			return printStatus(cmd.OutOrStdout(), text)
		},
	}
	cmd.Flags().BoolVar(&raw, "json", false, "print the JSON document as the daemon wrote it")
	cmd.Flags().BoolVar(&owner, "store", false, "ask the owner at SOCKET; the default is store.socket")
	return cmd
}

// statusOf returns the status document of a mount, or of an owner.
func statusOf(ctx context.Context, args []string, owner bool) ([]byte, error) {
	switch {
	case !owner:
		return readStatus(args[0], mounts.Timeout)
	case len(args) > 0:
		return storeStatus(ctx, args[0], mounts.Timeout)
	}
	cfg, err := load(config.Sources{Environ: os.Environ()})
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return storeStatus(ctx, cfg.Store.Socket, mounts.Timeout)
}

// readStatus reads the status file of the mount at dir.
func readStatus(dir string, timeout time.Duration) ([]byte, error) {
	text, err := readControl(dir, "status", timeout)
	return text, explainStatus(dir, err)
}

// staleTries is how often a control file is opened that another daemon has taken over meanwhile.
const staleTries = 5

// readControl reads a control file of the mount at dir.
func readControl(dir, name string, timeout time.Duration) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	// Ends with the read; if the daemon never answers, with the process.
	go func() {
		var r result
		for range staleTries {
			r.text, r.err = os.ReadFile(filepath.Join(dir, block.Reserved, name))
			if !errors.Is(r.err, unix.ESTALE) {
				break
			}
		}
		done <- r
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-time.After(timeout):
		return nil, fmt.Errorf("%s: %w for %v", dir, mounts.ErrSilent, timeout)
	}
}

// explainStatus turns the error of reading the status file into one about dir.
func explainStatus(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case mounts.Dead(err):
		return exit.With(exit.NotMount, fmt.Errorf("the daemon of %s is dead; clean up with kvfs umount %s", dir, dir))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		if _, statErr := os.Stat(dir); statErr != nil {
			return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: %w", dir, errors.Unwrap(statErr)))
		}
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount", dir))
	}
	return err
}

// parseStatus reads what a daemon says. Newer daemons may say more; what an older one leaves
// out is zero, as all is with an error.
func parseStatus(text []byte) (*statusDocument, error) {
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber() // in details of tiers
	doc := &statusDocument{}
	if err := in.Decode(doc); err != nil {
		return doc, fmt.Errorf("status of the daemon: %w", err)
	}
	return doc, nil
}

// printStatus writes the status for people.
func printStatus(w io.Writer, text []byte) error {
	s, err := parseStatus(text)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	uptime := time.Duration(s.UptimeSeconds * float64(time.Second)).Round(time.Second)
	fmt.Fprintf(t, "version\t%s\n", show.OrDash(s.Version))
	if s.Store == nil {
		s.Mount.print(t)
	} else {
		fmt.Fprintf(t, "socket\t%s\n", show.OrDash(s.Store.Socket))
	}
	fmt.Fprintf(t, "pid\t%d\n", s.PID)
	fmt.Fprintf(t, "uptime\t%v\n", uptime)
	if err := t.Flush(); err != nil {
		return err
	}
	if s.Store != nil {
		s.Store.print(t)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintf(t, "\nTIER\tTYPE\tSTATE\tUSED\tCAPACITY\tPINNED\tBLOCKS\n")
	for _, tier := range s.Tiers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", show.OrDash(tier.Name), show.OrDash(tier.Type), show.State(tier.State, tier.Reason),
			show.Bytes(tier.UsedBytes), show.Bytes(tier.CapacityBytes), show.Bytes(tier.PinnedBytes), tier.Blocks)
	}
	for i := range s.Secondaries {
		if err := t.Flush(); err != nil {
			return err
		}
		printSecondary(t, &s.Secondaries[i])
	}
	if s.Cluster != nil {
		if err := t.Flush(); err != nil {
			return err
		}
		s.Cluster.print(t)
	}
	return t.Flush()
}

// print writes the lines of the mount that was asked.
func (m *statusMount) print(w io.Writer) {
	fmt.Fprintf(w, "mount\t%s\n", show.OrDash(m.Dir))
	if m.Mode == config.ModeStandaloneStore { // else there is one process
		fmt.Fprintf(w, "mode\t%s\n", m.Mode)
		fmt.Fprintf(w, "mount pid\t%d\n", m.PID)
		fmt.Fprintf(w, "state\t%s\n", show.OrDash(m.State))
	}
	fmt.Fprintf(w, "read path\t%s\n", show.OrDash(m.ReadPath))
	fmt.Fprintf(w, "write path\t%s\n", show.OrDash(m.WritePath))
}

// print writes one line for each mount of an owner.
func (s *statusStore) print(w io.Writer) {
	fmt.Fprintf(w, "\nMOUNT\tPID\tSTATE\tREAD PATH\tWRITE PATH\n")
	for _, m := range s.Mounts {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", show.OrDash(m.Dir), m.PID, show.OrDash(m.State), show.OrDash(m.ReadPath), show.OrDash(m.WritePath))
	}
}

// printSecondary writes the lines of one tier below memory: its way down and up, then what the
// tier "disk" says of itself.
func printSecondary(w io.Writer, s *tiers.SecondaryStats) {
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
		return // another kind of tier
	}
	printDisk(w, &d)
}

// printDisk writes what the tier "disk" says of itself and of its devices.
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
