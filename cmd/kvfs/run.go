package main

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/launch"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// Exit codes of kvfs run for a command that cannot be started, as env(1) has
// them.
const (
	exitNotRun   = 126
	exitNotFound = 127
)

// readyTimeout is the default of run --ready-timeout.
const readyTimeout = 60 * time.Second

// runFlags are the flags of kvfs run that are its own.
type runFlags struct {
	mount        string
	readyTimeout time.Duration
	engine       string
	engineMemory string
	ownerConfig  string
	print        bool
}

// newRunCommand returns the command that starts a program beside a mount. It
// parses its flags itself, since it hands those of the configuration on as they
// were given.
func newRunCommand() *cobra.Command {
	var own runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD [ARGS...]",
		Short: "Mount, run CMD with what its engine needs to use the mount, and unmount",
		Long: "Mount at --mount, or use the mount that is there, and wait until it is ready. Run CMD with KVFS_MOUNT set, and, if it is an " +
			"inference engine that kvfs knows, with the flags and variables by which it keeps its KV blocks in the mount, unless it has them " +
			"already. Pass signals on to it, and return its exit code: 128+n if signal n killed it, 126 or 127 if it cannot be started. " +
			"Then unmount what was mounted here.",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			passed, err := parseRunFlags(cmd.Flags(), args)
			if err != nil {
				return cmd.FlagErrorFunc()(cmd, err)
			}
			if help, err := cmd.Flags().GetBool("help"); help && err == nil {
				return cmd.Help()
			}
			command := cmd.Flags().Args()
			if len(command) == 0 {
				return usageError(cmd, "which command? Name it after --")
			}
			r := &runner{flags: own, passed: passed, command: command, environ: os.Environ()}
			if err := r.prepare(cmd); err != nil {
				return err
			}
			if own.print {
				return r.print(cmd.OutOrStdout())
			}
			code, err := r.run()
			if err != nil {
				return exit.With(code, err)
			}
			os.Exit(code) // the command's own: there is nothing to say about it
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&own.mount, "mount", "", "`DIR` to mount at, made if need be; a mount that is there is used and stays (env KVFS_MOUNT; default: a new directory)")
	f.DurationVar(&own.readyTimeout, "ready-timeout", readyTimeout, "how long to wait until the mount is ready")
	f.StringVar(&own.engine, "engine", string(launch.Auto), "`ENGINE` that CMD is: auto, vllm, sglang, lmcache, llama.cpp or none; auto looks at CMD")
	f.StringVar(&own.engineMemory, "engine-memory", "", "`SIZE` of the host memory through which vLLM moves blocks (default: a sixteenth of RAM, 1GiB to 10GiB)")
	f.StringVar(&own.ownerConfig, "owner-config", "", "with --mode standalone-store: start kvfs serve with this `FILE` if no owner serves; it ends with CMD")
	f.BoolVar(&own.print, "print", false, "print what would be run, and run nothing")
	config.AddFlags(f)
	f.SetInterspersed(false) // what follows CMD is CMD's
	f.SortFlags = false
	return cmd
}

// parseRunFlags parses args and returns the flags of the configuration among
// them, as they are to be given to kvfs mount.
func parseRunFlags(flags *pflag.FlagSet, args []string) (passed []string, err error) {
	settings := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(settings)
	err = flags.ParseAll(args, func(f *pflag.Flag, value string) error {
		if settings.Lookup(f.Name) != nil {
			passed = append(passed, "--"+f.Name+"="+value)
		}
		return flags.Set(f.Name, value)
	})
	return passed, err
}

// runner is one run.
type runner struct {
	flags   runFlags
	passed  []string // flags for kvfs mount
	command []string
	environ []string

	// Set by prepare.
	cfg        *config.Config
	ownerDrain time.Duration // drain_timeout of the owner that may be started
	log        *zap.Logger
	engine     launch.Engine
	memory     int64  // for launch.Input
	dir        string // mount point, absolute; empty: a new directory
	attached   bool   // a mount is there already
}

// prepare checks all that can be checked before anything is started.
func (r *runner) prepare(cmd *cobra.Command) (err error) {
	r.engine = launch.Engine(r.flags.engine)
	if r.flags.readyTimeout <= 0 {
		return usageError(cmd, "--ready-timeout %v: must be above zero", r.flags.readyTimeout)
	}
	if r.memory, err = engineMemory(r.flags.engineMemory); err != nil {
		return usageError(cmd, "--engine-memory: %w", err)
	}
	if r.cfg, err = load(config.Sources{Environ: r.environ, Flags: cmd.Flags()}); err != nil {
		return exit.With(exit.Config, err)
	}
	if r.log, err = daemon.NewLogger(r.cfg); err != nil {
		return err
	}
	r.log = r.log.Named("run")
	if err := r.prepareOwner(cmd); err != nil {
		return err
	}
	if err := r.locate(); err != nil {
		return exit.With(exit.Mount, err)
	}
	if r.dir == "" && r.cfg.Memory.Keep {
		return exit.With(exit.Config, errors.New("memory.keep needs --mount: in a directory made for one run, nobody finds the blocks again"))
	}
	if r.attached || r.flags.print { // else the mount process says it
		daemon.Warn(r.cfg, r.log)
	}
	// A command line that makes no sense is to fail before anything is mounted.
	if _, err := r.plan(r.shownDir()); err != nil {
		return usageError(cmd, "%w", err)
	}
	return nil
}

// engineMemory returns the size that a flag says, or the default: what holds a
// long prompt, but leaves the memory of the machine to the mount.
func engineMemory(flag string) (int64, error) {
	if flag == "" {
		return min(max(daemon.TotalMemory()/16, 1<<30), 10<<30), nil
	}
	size, err := config.ParseSize(flag)
	if err == nil && size <= 0 {
		err = fmt.Errorf("%v: must be above zero", size)
	}
	return int64(size), err
}

// locate finds the mount point, and whether a kvfs mount is there that answers
// within the time that it may take to get ready.
func (r *runner) locate() error {
	dir := r.flags.mount
	if dir == "" {
		dir = strings.TrimSpace(os.Getenv("KVFS_MOUNT"))
	}
	if dir == "" {
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	r.dir = abs
	m, err := mounts.Find(abs)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		return nil // to be made
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case !mounts.IsOurs(m):
		return nil
	}
	if mounts.Abandoned(m) {
		return nil // likewise
	}
	switch _, err := client.Read(m.Mountpoint, "status", r.flags.readyTimeout); {
	case mounts.Dead(err):
		return nil // of a daemon that is dead: kvfs mount takes it away
	case err != nil:
		return fmt.Errorf("mount point %s: %w", dir, client.Explain(m.Mountpoint, err))
	}
	r.dir, r.attached = m.Mountpoint, true
	return nil
}

// shownDir is the mount point, or what stands for one that is not made yet.
func (r *runner) shownDir() string {
	if r.dir != "" {
		return r.dir
	}
	return filepath.Join(os.TempDir(), "kvfs-XXXXXX")
}

// plan decides how the command is started beside a mount.
func (r *runner) plan(dir string) (*launch.Plan, error) {
	m := launch.Mount{Dir: dir, NodeName: r.cfg.NodeName}
	if r.cfg.Mode == config.ModeStandaloneStore {
		m.Socket, m.Segment = r.cfg.Store.Socket, segment(dir)
	}
	return launch.Make(launch.Input{
		Command: r.command, Environ: r.environ, Engine: r.engine, EngineMemoryBytes: r.memory, ReadFile: launch.ReadFile,
		Mount: m,
	})
}

// print writes what run would do.
func (r *runner) print(w io.Writer) error {
	plan, err := r.plan(r.shownDir())
	if err != nil {
		return err
	}
	var b strings.Builder
	if r.attached {
		fmt.Fprintf(&b, "mount: %s is mounted, and stays\n", r.dir)
		if len(r.passed) > 0 {
			fmt.Fprintf(&b, "without effect: %s\n", launch.Quote(r.passed...))
		}
	} else {
		if r.flags.ownerConfig != "" {
			fmt.Fprintf(&b, "owner: %s  # unless one serves\n", launch.Quote(append([]string{"kvfs"}, r.ownerArgs()...)...))
		}
		fmt.Fprintf(&b, "mount: %s\n", launch.Quote(append([]string{"kvfs"}, r.mountArgs(r.shownDir())...)...))
	}
	if spec, err := specOf(plan); err == nil {
		fmt.Fprintf(&b, "spec: %s: %d groups  # unless the mount has one of this name\n", launch.Quote(plan.Model.Name), len(spec.Groups))
	}
	b.WriteString(plan.String())
	_, err = io.WriteString(w, b.String())
	return err
}

// tell logs what of a plan the user should know.
func (r *runner) tell(plan *launch.Plan) {
	var variables []string
	for _, v := range plan.Variables {
		variables = append(variables, v.Name)
	}
	r.log.Info("starting", zap.String("engine", string(plan.Engine)), zap.Strings("variables", variables), zap.Strings("flags", plan.Flags))
	for _, s := range plan.Skipped {
		r.log.Info("not added", zap.String("what", s.What), zap.String("why", s.Why))
	}
	for _, note := range plan.Notes {
		r.log.Info(note)
	}
}

// lookPath fails for a command that cannot be found, as env(1) does, before
// anything is mounted for it.
func lookPath(name string) (path string, code int, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, 0, nil
	case errors.Is(err, iofs.ErrPermission):
		return "", exitNotRun, err
	}
	return "", exitNotFound, err
}
