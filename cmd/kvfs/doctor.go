package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// newDoctorCommand returns the commands that check what this machine lacks.
func newDoctorCommand(m *rails.Machine) *cobra.Command {
	doctor := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do, and what it lacks",
	}
	doctor.AddCommand(newDoctorRDMACommand(m))
	return doctor
}

func newDoctorRDMACommand(m *rails.Machine) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "rdma [--json] [flags] [DIR]",
		Short: "Tell whether blocks of peers can be read by RDMA, and why not",
		Long: "Without DIR, look for network cards and GPUs, plan with the same settings as kvfs mount, check the permissions of this process, and\n" +
			"read over each planned card from itself. With DIR, tell what the daemon of the mount there uses, and which peers its\n" +
			"trial reads have reached. docs/rdma.md explains the output.\n\n" +
			"Exit codes: 0 if RDMA can be used, with DIR: is used with all peers that are there; 1 if not; 3 if the configuration is\n" +
			"refused; 5 if DIR is not a mount.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r *rails.Report
			var err error
			if len(args) == 1 {
				r, err = reportMount(m, args[0])
			} else {
				r, err = m.Report(cmd.Context(), load, config.Sources{Environ: os.Environ(), Flags: cmd.Flags()})
			}
			if err != nil {
				return err
			}
			if raw {
				err = show.JSON(cmd.OutOrStdout(), r)
			} else {
				err = r.Print(cmd.OutOrStdout())
			}
			return errors.Join(err, r.Verdict())
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&raw, "json", false, "print the report as JSON")
	return cmd
}

// reportMount returns the report of the daemon of a mount.
func reportMount(m *rails.Machine, dir string) (*rails.Report, error) {
	text, err := client.Status(dir, mounts.Timeout)
	if err != nil {
		return nil, err
	}
	s, err := status.Parse(text)
	if err != nil {
		return nil, err
	}
	switch {
	case s.Cluster == nil:
		return nil, exit.With(exit.Runtime, fmt.Errorf("the mount at %s has no peers: it was started without --bind", dir))
	case s.Cluster.RDMA == nil:
		return nil, exit.With(exit.Runtime, fmt.Errorf("the daemon of %s, version %s, knows no RDMA: restart it with this version", dir, s.Version))
	}
	d := s.Cluster.RDMA
	r := &rails.Report{Transport: d.Transport, Provider: d.Provider, Plan: d.Plan, Error: d.Error}
	m.Look(r)
	if d.Transport == config.TransportTCP {
		r.Error = "it is turned off by peer.transport " + config.TransportTCP
	} else if d.Stats == nil && r.Error == "" {
		r.Error = "the daemon has not opened it"
	}
	for i := range s.Cluster.Members {
		p := &s.Cluster.Members[i]
		if p.Self {
			continue
		}
		r.Peers = append(r.Peers, rails.Peer{Name: p.Name, State: p.State, Path: p.Path, Reason: p.PathReason})
		if p.State == "alive" && (p.Path != status.PathRDMA || p.PathReason != "") && r.Error == "" {
			r.Error = fmt.Sprintf("peer %s: %s", p.Name, cmp.Or(p.PathReason, "not reached yet"))
		}
	}
	r.Usable = r.Error == ""
	return r, nil
}
