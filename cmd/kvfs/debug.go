package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/bundle"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/doctor"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// newDebugCommand returns the commands for those who look for a fault.
func newDebugCommand(m *rails.Machine) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Collect what a report of a fault needs",
	}
	cmd.AddCommand(newDebugBundleCommand(m))
	return cmd
}

func newDebugBundleCommand(m *rails.Machine) *cobra.Command {
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
	return cmd
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

// bundleParts returns the files of a bundle.
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
		parts = append(parts, bundle.Mount(e.Mount)...)
	}
	switch {
	case e.PID > 0:
		parts = append(parts, bundle.Daemon("/", e.PID, daemon.DebugSocket(e.PID))...)
	case e.Mount != "":
		parts = append(parts, bundle.NoDaemon()...)
	}
	return parts
}
