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
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/launch"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// Exit codes of kvfs run for a command that cannot be started. Source: env(1).
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

// newRunCommand returns the command that starts a program beside a mount. It parses its flags
// itself, because it passes the flags of the configuration on unchanged.
func newRunCommand() *cobra.Command {
	var own runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD [ARGS...]",
		Short: "Mount, run an engine with what it needs to use the mount, and unmount",
		Long: "Mount at --mount, or use an existing mount there, and wait until it is ready. Run CMD with KVFS_MOUNT set. If\n" +
			"CMD is an inference engine that kvfs knows, add the flags and variables with which it keeps its KV blocks in\n" +
			"the mount, unless it has them already. Pass signals to it, and return its exit code: 128+n if signal n killed\n" +
			"it, 126 or 127 if it cannot be started. Then unmount, if this command mounted.",
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
				return usageError(cmd, "no command is named: give it after --")
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
			os.Exit(code) // the command has printed its own errors
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&own.mount, "mount", "", "`DIR` to mount at, made if absent; an existing mount is used and stays (env KVFS_MOUNT; default: a new directory)")
	f.DurationVar(&own.readyTimeout, "ready-timeout", readyTimeout, "how long to wait until the mount is ready")
	f.StringVar(&own.engine, "engine", string(launch.Auto), "`ENGINE` that CMD is: auto, vllm, sglang, lmcache, llama.cpp or none; auto looks at CMD")
	f.StringVar(&own.engineMemory, "engine-memory", "", "`SIZE` of the host memory through which vLLM moves blocks (default: a sixteenth of RAM, 1GiB to 10GiB)")
	f.StringVar(&own.ownerConfig, "owner-config", "", "with --mode standalone-store: start kvfs serve with this `FILE` if no owner serves; it ends with CMD")
	f.BoolVar(&own.print, "print", false, "print what would be run, and run nothing")
	config.AddFlags(f)
	f.SetInterspersed(false) // the rest belongs to CMD
	f.SortFlags = false
	return cmd
}

// parseRunFlags parses args. It returns the flags of the configuration, for kvfs mount.
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
	ownerDrain time.Duration // drain_timeout of the owner that this run may start
	log        *zap.Logger
	engine     launch.Engine
	memory     int64  // for launch.Input
	dir        string // mount point, absolute; empty: a new directory
	attached   bool   // a mount answers at dir
}

// prepare checks everything that can be checked before it starts a process.
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
		return exit.With(exit.Config, errors.New("memory.keep needs --mount: no later run finds the blocks of a directory made for one run"))
	}
	if r.attached || r.flags.print { // else the mount process reports it
		daemon.Warn(r.cfg, r.log)
	}
	// A wrong command line must fail before anything is mounted.
	if _, err := r.plan(r.shownDir()); err != nil {
		return usageError(cmd, "%w", err)
	}
	return nil
}

// engineMemory returns the size in a flag, or the default: room for a long prompt, and the rest
// of the machine's memory for the mount.
func engineMemory(flag string) (int64, error) {
	if flag == "" {
		return min(max(daemon.TotalMemory()/16, 1<<30), 10<<30), nil
	}
	size, err := scalar.ParseSize(flag)
	if err == nil && size <= 0 {
		err = fmt.Errorf("%v: must be above zero", size)
	}
	return int64(size), err
}

// locate finds the mount point. It sets attached if a kvfs mount there answers within the ready
// timeout.
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
		return nil // prepare makes it later
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
		return nil // its daemon is dead: kvfs mount unmounts it
	case err != nil:
		return fmt.Errorf("mount point %s: %w", dir, client.Explain(m.Mountpoint, err))
	}
	r.dir, r.attached = m.Mountpoint, true
	return nil
}

// shownDir returns the mount point, or a placeholder if it is not made yet.
func (r *runner) shownDir() string {
	if r.dir != "" {
		return r.dir
	}
	return filepath.Join(os.TempDir(), "kvfs-XXXXXX")
}

// plan decides how to start the command.
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

// tell logs the parts of a plan that matter to the user.
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

// lookPath fails like env(1) if a command cannot be found, before anything is mounted.
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
