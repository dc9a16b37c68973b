package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// newDoctorCommand returns the commands that look at the machine for what is missing.
func newDoctorCommand(m *machine) *cobra.Command {
	doctor := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do, and what it lacks",
	}
	doctor.AddCommand(newDoctorRDMACommand(m))
	return doctor
}

func newDoctorRDMACommand(m *machine) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "rdma [--json] [flags] [DIR]",
		Short: "Tell whether blocks of peers can be read by RDMA, and why not",
		Long: "Without DIR, look for network cards and GPUs, plan with the same settings as kvfs mount, see what the process may do, and\n" +
			"read over each planned card from itself. With DIR, tell what the daemon of the mount there uses, and which peers its\n" +
			"trial reads have reached. docs/rdma.md explains the output.\n\n" +
			"Exit codes: 0 if RDMA can be used, with DIR: is used with all peers that are there; 1 if not; 3 if the configuration is\n" +
			"refused; 5 if DIR is not a mount.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r *rdmaReport
			var err error
			if len(args) == 1 {
				r, err = reportMount(m, args[0])
			} else {
				r, err = reportMachine(cmd, m)
			}
			if err != nil {
				return err
			}
			if raw {
				err = show.JSON(cmd.OutOrStdout(), r)
			} else {
				err = r.print(cmd.OutOrStdout())
			}
			return errors.Join(err, r.verdict())
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&raw, "json", false, "print the report as JSON")
	return cmd
}

// doctorBind is the address of a configuration that has none: settings of RDMA need one.
const doctorBind = "KVFS_BIND=127.0.0.1:0"

// reportMachine tries out what a daemon with these settings would do.
func reportMachine(cmd *cobra.Command, m *machine) (*rdmaReport, error) {
	src := config.Sources{Environ: os.Environ(), Flags: cmd.Flags()}
	cfg, err := load(src)
	if err != nil || cfg.Bind == "" {
		src.Environ = append(src.Environ, doctorBind)
		if again, other := load(src); other == nil {
			cfg, err = again, nil
			cfg.Insecure = true // the trial reads bytes without worth
		}
	}
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return m.examine(cmd.Context(), cfg, zap.NewNop()), nil
}

// verdict is the error that the command ends with; nil if all is well.
func (r *rdmaReport) verdict() error {
	if r.Usable {
		return nil
	}
	return exit.With(exit.Runtime, fmt.Errorf("RDMA %s: %s", map[bool]string{false: "cannot be used", true: "is not used with all peers"}[len(r.Peers) > 0], r.Error))
}
