package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/bundle"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/doctor"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// newDoctorCommand returns the commands that check what this machine lacks.
func newDoctorCommand(m *rails.Machine) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "doctor [--json] [flags] [MOUNT]",
		Short: "Find out what this machine lacks for kvfs, and what is wrong with a mount",
		Long: "Check memory, disks, network, certificates, and what dead daemons left. Without MOUNT, check the settings that\n" +
			"kvfs mount would use with the same flags. With MOUNT, check those of its daemon, unless flags or --config are\n" +
			"given, and the daemon and its peers too. doctor changes nothing. kvfs mount itself reports what prevents a\n" +
			"start, such as a taken port.\n\n" +
			"Exit codes: 0 if no check fails; 1 if one does; 5 if MOUNT is not a mount.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := doctorEnv(cmd.Flags(), m, args)
			if err != nil {
				return err
			}
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
	cmd.AddCommand(newDoctorRDMACommand(m))
	return cmd
}

// doctorJSON is the flag of kvfs doctor that is no setting.
const doctorJSON = "json"

// ownFlags are the flags of the commands with a doctor.Env that are no settings.
var ownFlags = []string{doctorJSON, bundleOut}

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
			"Exit codes: 0 if RDMA works, with DIR: with all live peers; 1 if not; 3 for a bad configuration; 5 if DIR is no mount.",
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

// newDebugCommand returns the commands for those who look for a fault.
func newDebugCommand(m *rails.Machine) *cobra.Command {
	var out string
	cmd := result.WithJSON(&cobra.Command{
		Use:   "bundle [-o FILE.tar.gz] [flags] [MOUNT]",
		Short: "Write an archive about the machine and a mount",
		Long: "Write one tar.gz: the version, the settings without secrets, the report of kvfs doctor, the kernel, limits and\n" +
			"mounts. With MOUNT also its status, metrics, members and jobs; as root or the user of the daemon also its\n" +
			"goroutines, heap profile and, if it logs to a file, the end of the log. errors.txt in the archive lists what\n" +
			"could not be collected. A dead daemon does not delay it.\n\n" +
			"Exit codes: 0 if the archive is written; 1 if not; 3 if FILE is in a kvfs mount; 5 if MOUNT is not a mount.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			if err := outside(cmp.Or(out, ".")); err != nil {
				return err
			}
			name := "kvfs-debug-" + now.UTC().Format("20060102T150405Z")
			e, err := doctorEnv(cmd.Flags(), m, args)
			if err != nil {
				return err
			}
			files := bundle.Collect(cmd.Context(), bundleParts(cmd.Context(), e), bundleDeadline)
			path := cmp.Or(out, name+".tar.gz")
			if err := bundle.Write(path, name, files, now); err != nil {
				return fmt.Errorf("the bundle cannot be written: %w", err)
			}
			return result.Print(cmd, map[string]string{"file": path}, "%s\n", path)
		},
	})
	config.AddFlags(cmd.Flags())
	cmd.Flags().StringVarP(&out, bundleOut, "o", "", "file to write; the default is kvfs-debug-TIME.tar.gz")
	debug := &cobra.Command{Use: "debug", Short: "Collect what a report of a fault needs"}
	debug.AddCommand(cmd)
	return debug
}

// outside fails if path is in a kvfs mount: what watches a mount must not write into it, nor wait for it.
func outside(path string) error {
	m, err := mounts.Inside(path)
	if err != nil || m == nil {
		return err
	}
	return exit.With(exit.Config, fmt.Errorf("-o %s: it is in the mount at %s: name a file of another file system", path, m.Mountpoint))
}

// bundleOut is the flag of kvfs debug bundle that is no setting.
const bundleOut = "output"

// bundleDeadline is the time that a part of a bundle has: that of the checks, and some for their report.
const bundleDeadline = doctor.Deadline + 5*time.Second

func bundleParts(ctx context.Context, e *doctor.Env) []bundle.Part {
	examine := sync.OnceValue(func() *doctor.Report { return doctor.Examine(ctx, e, doctor.All(), doctor.Deadline) })
	report := func(write func(io.Writer) error) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) {
			var text bytes.Buffer
			err := write(&text)
			return text.Bytes(), err
		}
	}
	parts := []bundle.Part{
		{Name: "version.txt", Read: report(func(w io.Writer) error {
			info, _ := debug.ReadBuildInfo() // prints as nothing if there is none
			_, err := fmt.Fprintf(w, "%s\n\n%v", versionLine(), info)
			return err
		})},
		{Name: "config.yaml", Read: report(func(w io.Writer) error {
			if e.Config == nil {
				return e.ConfigErr
			}
			fmt.Fprintf(w, "# the configuration %s\n", e.From)
			return config.PrintPublic(w, e.Config)
		})},
		{Name: "doctor.txt", Read: report(func(w io.Writer) error { return examine().Print(w) })},
		{Name: "doctor.json", Read: report(func(w io.Writer) error {
			_, err := w.Write(status.JSON(examine()))
			return err
		})},
	}
	parts = append(parts, bundle.Machine("/")...)
	if e.Mount != "" {
		parts = append(append(parts, bundle.Mount(e.Mount)...), bundle.Daemon("/", e.PID, daemon.DebugSocket(e.PID))...)
	}
	return parts
}
