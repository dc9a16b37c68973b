package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/launch"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/plan"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/mem"
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
		Long: "Mount at --mount, or use the mount there, and run CMD with KVFS_MOUNT set. If kvfs knows the engine in CMD, add\n" +
			"the flags and variables that keep its KV blocks in the mount, unless CMD has them. Pass signals to CMD, unmount\n" +
			"what this command mounted, and return the exit code of CMD: 128+n if signal n killed it, 126 or 127 if it\n" +
			"cannot be started.",
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
		return min(max(int64(config.TotalMemory())/16, 1<<30), 10<<30), nil
	}
	size, err := scalar.ParseSize(flag)
	if err == nil && size <= 0 {
		err = fmt.Errorf("%v: must be above zero", size)
	}
	return int64(size), err
}

// locate finds the mount point. It sets attached if a kvfs mount there answers within the ready timeout.
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

// maxEngineConfig bounds the configuration file of an engine, in bytes.
const maxEngineConfig = 16 << 20

func (r *runner) plan(dir string) (*launch.Plan, error) {
	m := launch.Mount{Dir: dir, NodeName: r.cfg.NodeName}
	if r.cfg.Mode == config.ModeStandaloneStore {
		m.Socket, m.Segment = r.cfg.Store.Socket, segment(dir)
	}
	read := func(name string) ([]byte, error) {
		text, _, err := client.ReadText(name, nil, maxEngineConfig)
		return text, show.Reason(err)
	}
	return launch.Make(launch.Input{
		Command: r.command, Environ: r.environ, Engine: r.engine, EngineMemoryBytes: r.memory, ReadFile: read, Mount: m,
	})
}

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

// stopGrace is how long a daemon may take to stop, beyond its drain_timeout, before it is
// killed. The engine and the tiers close one after the other, each within daemon.CloseGrace.
const stopGrace = 3 * daemon.CloseGrace

type runMount struct {
	dir   string
	made  bool // this run made dir
	temp  bool // its name is not used again
	log   *zap.Logger
	drain time.Duration // how long the daemon may wait for blocks on their way to the SSD

	daemon *child // started for the mount, or known to have taken it over; nil: none yet
}

func (r *runner) mountArgs(dir string) []string {
	return append(append([]string{"mount", "--ready-fd", "3"}, r.passed...), "--", dir)
}

// openMount mounts and waits until the mount answers. If ctx ends, it undoes what it has begun.
func (r *runner) openMount(ctx context.Context) (*runMount, error) {
	m := &runMount{dir: r.dir, log: r.log, drain: time.Duration(r.cfg.DrainTimeout)}
	if err := m.makeDir(); err != nil {
		return nil, err
	}
	args := slices.Insert(r.mountArgs(m.dir), 1, "--"+endsWithFlag, strconv.Itoa(os.Getpid()))
	var err error
	if m.daemon, err = startChild(ctx, args, m.dir, r.flags.readyTimeout); err == nil {
		return m, nil
	}
	m.close(nil)
	return nil, err
}

func (m *runMount) makeDir() (err error) {
	if m.dir == "" {
		m.temp = true
		m.dir, err = temporaryDir()
	} else if err = os.Mkdir(m.dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return exit.With(exit.Mount, fmt.Errorf("mount point: %w", err))
	}
	m.made = true
	return nil
}

// temporaryDir makes a directory and returns its path as in mount tables. It removes empty
// directories of killed runs: the name holds the process and its pid name space.
func temporaryDir() (string, error) {
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	prefix := "kvfs-" + strings.Trim(space, "pid:[]") + "-"
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*-*")) // the pattern is right
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && unix.Kill(n, 0) == unix.ESRCH {
			_ = unix.Rmdir(dir) // fails unless it is empty and no mount point; another run may be faster
		}
	}
	dir, err := os.MkdirTemp("", prefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

func makeDirs(mount string, dirs []string) error {
	for _, dir := range dirs {
		if err := os.Mkdir(mount+"/"+dir, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("directory of the engine: %w", err)
		}
	}
	return nil
}

// close unmounts and removes what this run has made. It waits for the daemon as long as its configuration allows, or until
// hurry; then it kills the daemon. A program that keeps files of the mount open keeps them, and close does not wait for it.
func (m *runMount) close(hurry <-chan struct{}) {
	if m.daemon == nil {
		m.removeDir()
		return
	}
	m.daemon.stop(m.drain+stopGrace, hurry, m.log)
	for h := m.findHeir(); h != nil; h = m.findHeir() { // the daemon may have handed the mount over, and so may each heir
		h.stop(m.drain+stopGrace, hurry, m.log)
	}
	m.detach()
	if m.temp {
		m.freeMemory()
	}
	m.removeDir()
}

// freeMemory frees the blocks that a killed or keeping daemon left in memory for a mount point of this
// run: no later daemon will adopt them. Blocks in memory.dir are freed by the next daemon that uses it.
func (m *runMount) freeMemory() {
	stores, _ := mem.List() // the error is about other stores, which are unreadable
	for _, s := range stores {
		if s.Label != m.dir || s.Alive {
			continue
		}
		if err := mem.Discard(s.Dir); err != nil {
			m.log.Warn("cannot free the memory of the daemon: its blocks stay", zap.String("dir", s.Dir), zap.Error(err))
		}
	}
}

// detach unmounts if the daemon has not, because it was killed.
func (m *runMount) detach() {
	now, err := mounts.Find(m.dir)
	if err != nil || !mounts.IsOurs(now) || !mounts.Abandoned(now) && !mounts.Dead(mounts.Answers(now.Mountpoint)) {
		return // gone, or another mount is there
	}
	ctx, cancel := context.WithTimeout(context.Background(), umountWait)
	defer cancel()
	if err := mounts.GiveUp(ctx, now); err != nil {
		m.log.Error("the mount stays", zap.String("dir", now.Mountpoint), zap.Error(err))
	}
}

// removeDir removes the mount point if this run made it. Files that an engine wrote into it after the daemon had died stay.
func (m *runMount) removeDir() {
	if !m.made {
		return
	}
	if err := os.Remove(m.dir); err != nil {
		m.log.Warn("the mount point stays", zap.Error(err))
	}
}

// ownerArgs returns the arguments of kvfs serve. It overrides the mode of the environment, which is meant for the mount.
func (r *runner) ownerArgs() []string {
	return []string{"serve", "--ready-fd", "3", "--config", r.flags.ownerConfig, "--mode", config.ModeEmbedded, "--store-socket", r.cfg.Store.Socket}
}

// prepareOwner checks the configuration of the owner before anything is started.
func (r *runner) prepareOwner(cmd *cobra.Command) error {
	if r.flags.ownerConfig == "" {
		return nil
	}
	if r.cfg.Mode != config.ModeStandaloneStore {
		return usageError(cmd, "--owner-config is for --mode %s: another mount has no owner", config.ModeStandaloneStore)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	if err := flags.Parse(r.ownerArgs()[3:]); err != nil {
		return err
	}
	cfg, err := load(config.Sources{Environ: r.environ, Flags: flags})
	if err != nil {
		return exit.With(exit.Config, fmt.Errorf("--owner-config: %w", err))
	}
	r.ownerDrain = time.Duration(cfg.DrainTimeout)
	return nil
}

// openOwner starts the owner of the mount if none serves, and waits until mounts can attach. It
// returns nil if another owner serves.
func (r *runner) openOwner(ctx context.Context) (*child, error) {
	if r.flags.ownerConfig == "" || r.attached || r.served(ctx) {
		return nil, nil
	}
	owner, err := startChild(ctx, r.ownerArgs(), r.cfg.Store.Socket, r.flags.readyTimeout)
	if err == nil {
		return owner, nil
	}
	if owner != nil {
		owner.stop(stopGrace, nil, r.log)
	}
	if ctx.Err() == nil && r.served(ctx) { // another run was faster
		return nil, nil
	}
	return nil, err
}

// served reports whether an owner exists. One that refuses counts: the mount reports its reason.
func (r *runner) served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.flags.readyTimeout)
	defer cancel()
	conn, err := handoff.Dial(ctx, r.cfg.Store.Socket)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, handoff.ErrNoOwner)
}

// segment returns the node that owns the memory of the mount at dir, for the command to prefer.
// It is empty without peers, and before there is a mount.
func segment(dir string) string {
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	var members []cluster.Member
	text, err := client.Read(dir, "members", mounts.Timeout)
	if err != nil || json.Unmarshal(text, &members) != nil || len(members) == 0 || !members[0].Self {
		return ""
	}
	return members[0].Name
}

// setSpec sets the spec of a hybrid model that vLLM will serve, under the model's name, unless
// the mount has one of that name. The command does not depend on it, so faults are only logged.
func (r *runner) setSpec(dir string, p *launch.Plan) {
	if p.Model == nil && p.NoModel == "" {
		return
	}
	spec, err := specOf(p)
	if err != nil {
		r.log.Debug("no spec of the model is set", zap.Error(err))
		return
	}
	log := r.log.With(zap.String("spec", p.Model.Name), zap.Int("groups", len(spec.Groups)))
	before, err := addSpec(dir, p.Model.Name, spec)
	switch {
	case err != nil:
		log.Info("no spec of the model is set", zap.Error(err))
	case before == nil:
		log.Info("the spec of the model is set", zap.String("from", p.Model.Path))
	case !reflect.DeepEqual(before, spec):
		log.Info("the mount has another spec of this name: it stays. To remove it, run: kvfs specs DIR remove NAME")
	}
}

// specOf returns the spec from the model's config.json. It fails if there is none.
func specOf(p *launch.Plan) (*hybrid.Spec, error) {
	m := p.Model
	if m == nil {
		return nil, errors.New(p.NoModel)
	}
	if info, err := os.Stat(m.Path); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is not a local directory", m.Path)
	}
	model, err := readModel(filepath.Join(m.Path, "config.json"), nil)
	if err != nil {
		return nil, err
	}
	return plan.SpecOf(model, plan.Options{TP: m.TP, PP: m.PP, BlockTokens: m.BlockTokens, KVDtype: m.KVDtype, StateDtype: m.StateDtype})
}

// addSpec sets a spec of the mount at dir. If the mount has one of that name, addSpec keeps and returns it.
func addSpec(dir, name string, spec *hybrid.Spec) (before *hybrid.Spec, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), mounts.Timeout)
	defer cancel()
	c, err := client.System()
	if err != nil {
		return nil, err
	}
	d, err := c.Control(dir, "specs")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var all struct {
		Specs map[string]*hybrid.Spec `json:"specs"`
	}
	if err := d.AskInto(ctx, struct{}{}, &all); err != nil || all.Specs[name] != nil {
		return all.Specs[name], err
	}
	return nil, d.AskInto(ctx, map[string]any{"set": map[string]*hybrid.Spec{name: spec}}, &struct{}{})
}
