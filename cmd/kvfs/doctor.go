package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/doctor"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// newDoctorCommand returns the commands that check what this machine lacks.
func newDoctorCommand(m *rails.Machine) *cobra.Command {
	var raw, diskTest bool
	cmd := &cobra.Command{
		Use:   "doctor [--json] [--disk-test] [flags] [MOUNT]",
		Short: "Find out what this machine lacks for kvfs, and what is wrong with a mount",
		Long: "Check the kernel, limits, memory, disks, network, certificates, and what dead daemons left. Without MOUNT,\n" +
			"check the settings that kvfs mount would use with the same flags. With MOUNT, check those of its daemon,\n" +
			"unless flags or --config are given, and the daemon and its peers too. doctor changes nothing. The disk test\n" +
			"writes and reads a file for at most two seconds, then removes it; it skips disks that a daemon uses unless\n" +
			"--disk-test is given.\n\n" +
			"Exit codes: 0 if no check fails; 1 if one does; 5 if MOUNT is not a mount.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := doctorEnv(cmd.Flags(), m, args)
			if err != nil {
				return err
			}
			e.DiskTest = diskTest
			r := doctor.Examine(cmd.Context(), e, doctor.All(), doctor.Deadline)
			if raw {
				_, err = cmd.OutOrStdout().Write(status.JSON(r))
			} else {
				err = r.Print(cmd.OutOrStdout())
			}
			return errors.Join(err, r.Err())
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&raw, doctorJSON, false, "print the report as JSON")
	cmd.Flags().BoolVar(&diskTest, doctorDisk, false, "test disks, also those that a daemon uses")
	cmd.AddCommand(newDoctorRDMACommand(m))
	return cmd
}

// The flags of kvfs doctor that are no settings.
const (
	doctorJSON = "json"
	doctorDisk = "disk-test"
)

// ownFlags are the flags of the commands with a doctor.Env that are no settings.
var ownFlags = []string{doctorJSON, doctorDisk, bundleOut}

// doctorEnv returns what the checks look at: this machine and, if args name one, a mount.
func doctorEnv(flags *pflag.FlagSet, m *rails.Machine, args []string) (*doctor.Env, error) {
	e, err := doctor.ThisMachine()
	if err != nil {
		return nil, err
	}
	src := config.Sources{Environ: os.Environ(), Flags: flags}
	e.From = "of this command"
	given := false
	flags.Visit(func(f *pflag.Flag) { given = given || !slices.Contains(ownFlags, f.Name) })
	if len(args) == 1 {
		if err := seeMount(e, args[0]); err != nil {
			return nil, err
		}
	}
	if e.PID > 0 && !given {
		if of, err := daemonSources(e.PID); err == nil {
			src, e.From = of, "of the daemon"
		} else {
			e.From = fmt.Sprintf("of this command (that of the daemon is not known: %v)", err)
		}
	}
	e.Config, e.ConfigErr = load(src)
	if src.Flags != flags && e.Config != nil {
		absolute(e.Config, fmt.Sprintf("/proc/%d/cwd", e.PID))
	}
	e.RDMA = func(ctx context.Context) (*rails.Report, error) { return m.Report(ctx, load, src) }
	return e, nil
}

// seeMount adds the mount at dir. It fails if there is none. A dead daemon is no failure.
func seeMount(e *doctor.Env, dir string) error {
	text, err := client.Status(dir, mounts.Timeout)
	if err == nil {
		e.Status, err = status.Parse(text)
	}
	e.Mount = dir
	if err == nil {
		e.PID = e.Status.PID
		return nil
	}
	found, lost := mounts.Find(dir)
	if lost != nil || !mounts.IsOurs(found) {
		return err
	}
	e.Status, e.StatusErr, e.PID = nil, err, mounts.Server(found)
	return nil
}

// absolute makes the paths of a configuration absolute that are relative to the working directory of its daemon.
func absolute(cfg *config.Config, cwd string) {
	dir, err := os.Readlink(cwd)
	if err != nil {
		return
	}
	for _, p := range cfg.Paths() {
		if !filepath.IsAbs(p.File()) {
			*p.Value = filepath.Join(dir, *p.Value)
		}
	}
}

// daemonSources returns the sources of the configuration of a daemon: its command line and its environment. The files
// that they name may have changed since.
func daemonSources(pid int) (src config.Sources, err error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return src, err
	}
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return src, err
	}
	words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	cmd, args, err := newRootCommand().Find(words[1:])
	if err != nil {
		return src, err
	}
	if cmd.Flags().Lookup("config") == nil {
		return src, fmt.Errorf("process %d is not a kvfs daemon: it runs %s", pid, cmd.CommandPath())
	}
	if err := cmd.ParseFlags(args); err != nil {
		return src, err
	}
	src = config.Sources{Environ: strings.Split(string(environ), "\x00"), Flags: cmd.Flags()}
	if file := config.FileOf(src); file != "" && !filepath.IsAbs(file) {
		if src.File, err = os.Readlink(filepath.Join(proc, "cwd")); err != nil {
			return src, err
		}
		src.File = filepath.Join(src.File, file)
	}
	return src, nil
}

func newDoctorRDMACommand(m *rails.Machine) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "rdma [--json] [flags] [DIR]",
		Short: "Tell whether blocks come from peers by RDMA, and why not",
		Long: "Without DIR, look for network cards and GPUs, plan with the settings of kvfs mount, check the permissions of\n" +
			"this process, and read over each planned card from itself. With DIR, tell what the daemon there uses, and\n" +
			"which peers its trial reads have reached. docs/rdma.md explains the output.\n\n" +
			"Exit codes: 0 if RDMA works, with DIR: with all live peers; 1 if not; 3 if the configuration is refused; 5 if\n" +
			"DIR is not a mount.",
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
