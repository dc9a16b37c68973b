package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/csi"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/doctor"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/object"
	"github.com/kvfs/kvfs/cmd/kvfs/plan"
	"github.com/kvfs/kvfs/cmd/kvfs/result"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/docs"
	"github.com/kvfs/kvfs/tiers/disk"
	tier "github.com/kvfs/kvfs/tiers/object"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, print and explain the configuration",
	}
	cmd.AddCommand(
		newConfigCheckCommand(),
		newConfigLoadCommand("print", "Print the configuration in effect, with the origin of each value",
			func(cmd *cobra.Command, c *config.Config) error {
				return config.Print(cmd.OutOrStdout(), c)
			}),
		&cobra.Command{
			Use:   "example",
			Short: "Print an example file with every setting and its default",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := cmd.OutOrStdout().Write(docs.Example)
				return err
			},
		},
	)
	return cmd
}

// newConfigCheckCommand returns the command that checks settings, and whether they fit this machine.
func newConfigCheckCommand() *cobra.Command {
	var elsewhere bool
	cmd := newConfigLoadCommand("check", "Check the configuration from all sources and this machine for it, and report every error",
		func(cmd *cobra.Command, c *config.Config) error {
			var warnings []string
			if !elsewhere {
				e, err := doctor.ThisMachine()
				if err != nil {
					return err
				}
				e.Config = c
				warnings, err = doctor.Examine(cmd.Context(), e, doctor.Fitting(), doctor.Deadline).Fit()
				printWarnings(cmd, warnings)
				if err != nil {
					return exit.With(exit.Config, err)
				}
			}
			return result.Print(cmd, map[string][]string{"warnings": slices.Concat([]string{}, c.Warnings, warnings)}, "configuration ok\n")
		})
	cmd.Long = cmd.Short + ".\n\n" +
		"This checks memory, directories of the SSD tier and named files as kvfs doctor does, which checks more. --elsewhere\n" +
		"leaves them out: the settings are for another machine.\n\n" +
		"Exit codes: 0 if the configuration is accepted; 3 if it is refused, or does not fit this machine."
	cmd.Flags().BoolVar(&elsewhere, "elsewhere", false, "check only the settings: they are for another machine")
	return result.WithJSON(cmd)
}

// printWarnings writes warnings to standard error.
func printWarnings(cmd *cobra.Command, lines []string) {
	for _, line := range lines {
		fmt.Fprintln(cmd.ErrOrStderr(), "kvfs: warning: "+line)
	}
}

// newConfigLoadCommand returns a command that loads the configuration as mount would, and calls
// do with it. FILE is short for --config FILE.
func newConfigLoadCommand(name, short string, do func(*cobra.Command, *config.Config) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + " [FILE]",
		Short: short,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			src := config.Sources{Environ: os.Environ(), Flags: cmd.Flags()}
			if len(args) == 1 {
				if cmd.Flags().Changed("config") {
					return usageError(cmd, "FILE and --config exclude each other")
				}
				src.File = args[0]
			}
			c, err := load(src)
			if err != nil {
				return err
			}
			printWarnings(cmd, c.Warnings)
			return do(cmd, c)
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

// maxModelConfig bounds the config.json of a model, in bytes. Lists of layers that are not quantized make some of them long.
const maxModelConfig = 8 << 20

// defaultReuse is the reuse window unless --reuse-window says otherwise.
const defaultReuse = 10 * time.Minute

func newPlanCommand() *cobra.Command {
	var o plan.Options
	var file string
	var raw bool
	cmd := &cobra.Command{
		Use:   "plan --model-config FILE|- [flags]",
		Short: "Compute sizes of blocks and tiers from a model's config.json",
		Long: "Compute from FILE, the config.json of a model from Hugging Face, how many bytes a token, a block and a request\n" +
			"need, which files an engine writes, how much memory and SSD a workload needs, and the settings to paste. It\n" +
			"guesses nothing: a missing field is an error, and assumptions are printed. - is standard input.\n" +
			"docs/sizing.md explains the output.\n\n" +
			"Exit codes: 0; 1 if FILE cannot be read or understood, or the figures cannot be computed.",
		Example: "  kvfs plan --model-config config.json\n" +
			"  kvfs plan --model-config config.json --engine vllm --tp 4 --requests-per-second 2 \\\n" +
			"    --mean-prompt 8000 --mean-output 500 --prefix-share 0.5 --reuse-window 15m --concurrency 32",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError(cmd, "--model-config is missing: give the config.json of the model")
			}
			m, err := readModel(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			p, err := plan.Make(m, o)
			if err != nil {
				return err
			}
			if raw {
				return show.JSON(cmd.OutOrStdout(), p)
			}
			return p.Write(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "model-config", "", "config.json of the model; - is standard input")
	f.IntVar(&o.TP, "tp", 1, "ranks of tensor parallelism")
	f.IntVar(&o.PP, "pp", 1, "stages of pipeline parallelism")
	f.StringVar(&o.KVDtype, "kv-dtype", "auto", "type of keys and values: auto, bf16, fp16, fp8, int8, ...; auto is that of the config")
	f.StringVar(&o.StateDtype, "state-dtype", "auto", "type of recurrent states, of models that have them")
	f.StringVar(&o.Engine, "engine", "", "engine that writes the files: vllm, sglang, lmcache or llama.cpp")
	f.IntVar(&o.BlockTokens, "block-tokens", 0, "tokens of a stored block; 0 is 16, 64 for sglang, 256 for lmcache")
	f.IntVar(&o.Context, "context", 0, "tokens of a request; 0: the most that the model allows")
	f.IntVar(&o.Load.Concurrency, "concurrency", 0, "requests at a time; 0 follows from the rate")
	f.Float64Var(&o.Load.Rate, "requests-per-second", 0, "requests a second, of all engines that use this kvfs")
	f.IntVar(&o.Load.MeanPrompt, "mean-prompt", 0, "tokens of a prompt, on average")
	f.IntVar(&o.Load.MeanOutput, "mean-output", 0, "tokens of an answer, on average")
	f.DurationVar(&o.Load.ReuseWindow, "reuse-window", defaultReuse, "how long blocks should stay for reuse")
	f.Float64Var(&o.Load.PrefixShare, "prefix-share", 0, "share of a prompt that was stored before, 0 to 1, on average")
	f.BoolVar(&raw, "json", false, "print the plan as JSON, sizes in bytes")
	return cmd
}

func readModel(file string, stdin io.Reader) (*plan.Model, error) {
	text, shown, err := client.ReadText(file, stdin, maxModelConfig)
	if err != nil {
		return nil, err
	}
	m, err := plan.Parse(text)
	if err != nil {
		return nil, eachOf(shown, err)
	}
	return m, nil
}

// eachOf puts a name before each error that is joined in err.
func eachOf(name string, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s: %w", name, err)
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, fmt.Errorf("%s: %w", name, one))
	}
	return errors.Join(all...)
}

// The exit codes of kvfs fsck are those of fsck(8), except for usage.
const (
	fsckRepaired  = 1
	fsckFindings  = 4
	fsckUnchecked = 8
)

func newFsckCommand() *cobra.Command {
	var repair, noData, raw bool
	var keys string
	cmd := &cobra.Command{
		Use:   "fsck [--repair] [--no-data] [--json] DIR | s3://BUCKET/PREFIX [--object KEY=VALUE,...]",
		Short: "Check an unused directory of the SSD tier, or a bucket",
		Long: "Check a directory of the SSD tier (disk.dirs), or the objects of kvfs in a bucket, and report what is\n" +
			"wrong. No daemon may be using the directory; a bucket may be in use. Without --repair nothing is written.\n\n" +
			"A repair of a directory drops a bad block, and does not restore it. The block is then a miss.\n" +
			"A repair of a bucket deletes each damaged object. All blocks in that object are then misses.\n\n" +
			"Exit codes:\n" +
			"  0  clean\n" +
			"  1  damaged, and fully repaired\n" +
			"  2  wrong usage\n" +
			"  4  damaged, and not repaired\n" +
			"  8  not checked, or not to the end: missing, not of kvfs, of a later version, in use, no access, Ctrl-C",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var bucket *object.Options
			var err error
			if strings.HasPrefix(args[0], "s3://") {
				bucket, err = bucketAt(args[0], keys)
			} else if keys != "" {
				err = usageError(cmd, "--object needs s3://BUCKET/PREFIX")
			}
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			bar := show.NewBar(cmd.ErrOrStderr(), show.IsTerminal(cmd.ErrOrStderr()))
			o := disk.CheckOptions{Repair: repair, Data: !noData, Progress: func(done, total int64) {
				if done == total {
					bar.Clear()
					return
				}
				bar.Share("checking "+args[0], done, total)
			}}
			return fsck(ctx, cmd.OutOrStdout(), args[0], bucket, o, raw)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what is wrong, by dropping blocks that are bad")
	cmd.Flags().BoolVar(&noData, "no-data", false, "check headers and index only; by default all blocks are read and their checksums verified")
	cmd.Flags().BoolVar(&raw, "json", false, "print the report as JSON")
	cmd.Flags().StringVar(&keys, "object", "", "how to reach the bucket: `endpoint=URL,...`, with the keys of --object of kvfs mount, but url")
	return cmd
}

type checkReport interface {
	ExitCode() int // fsck(8)
	String() string
}

// bucketAt returns the bucket with this URL and other keys of an entry of tiers.
func bucketAt(url, keys string) (*object.Options, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	if err := flags.Set(config.TierObject, strings.TrimSuffix("url="+url+","+keys, ",")); err != nil {
		return nil, err
	}
	c, err := load(config.Sources{Flags: flags})
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(c.Tiers, func(t config.Tier) bool { return t.Type == config.TierObject })
	return c.Tiers[at].Options.(*object.Options), nil
}

// check checks a directory, or a bucket. After an error without findings there is no report.
func check(ctx context.Context, dir string, bucket *object.Options, o disk.CheckOptions) (checkReport, error) {
	if bucket == nil {
		report, err := disk.Check(ctx, dir, o)
		if report == nil || err != nil && len(report.Findings) == 0 {
			return nil, err
		}
		return report, err
	}
	report, err := bucket.Check(ctx, tier.CheckOptions{Data: o.Data, Repair: o.Repair, Progress: o.Progress})
	if report == nil || err != nil && len(report.Findings) == 0 {
		return nil, err
	}
	return report, err
}

// fsck checks a place and prints the report. After an error it prints what it has found so far.
func fsck(ctx context.Context, w io.Writer, place string, bucket *object.Options, o disk.CheckOptions, raw bool) error {
	report, err := check(ctx, place, bucket, o)
	if report != nil && raw {
		err = errors.Join(err, show.JSON(w, report))
	} else if report != nil {
		_, failed := io.WriteString(w, report.String())
		err = errors.Join(err, failed)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return exit.With(fsckUnchecked, fmt.Errorf("fsck: %s: stopped before the end", place))
	case err != nil:
		return exit.With(fsckUnchecked, fmt.Errorf("fsck: %w", err))
	}
	return fsckError(place, report.ExitCode(), o.Repair)
}

// fsckError returns the error for a code of the report, or nil for a clean place.
func fsckError(dir string, code int, repair bool) error {
	switch {
	case code == exit.OK:
		return nil
	case code == fsckRepaired:
		return exit.With(code, fmt.Errorf("fsck: %s was damaged and is repaired", dir))
	case repair:
		return exit.With(code, fmt.Errorf("fsck: %s is damaged, and not all of it could be repaired", dir))
	}
	return exit.With(code, fmt.Errorf("fsck: %s is damaged; to drop the bad blocks, run: kvfs fsck --repair", dir))
}

func newCSICommand() *cobra.Command {
	readyFD := -1
	var o csi.Options
	cmd := &cobra.Command{
		Use:   "csi [flags]",
		Short: "Serve mounts to pods of Kubernetes: a CSI driver, until SIGTERM or SIGINT",
		Long: "Mount the store at store.socket, which kvfs serve owns, in pods, at the request of a kubelet. The mounts\n" +
			"outlive this process. Needs root.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("mode") {
				return usageError(cmd, "--mode: kvfs csi has mode %s", config.ModeStandaloneStore)
			}
			if err := cmd.Flags().Set("mode", config.ModeStandaloneStore); err != nil {
				return err
			}
			return serveUntilStopped(cmd, readyFD, func(ctx context.Context, cfg *config.Config, ready *daemon.Readiness) (err error) {
				if o.Logger, err = daemon.NewLogger(cfg); err != nil {
					return err
				}
				daemon.Warn(cfg, o.Logger)
				o.Program, o.Config = thisProgram(), cfg
				return csi.Serve(ctx, o, ready)
			})
		},
	}
	name, _ := os.Hostname() // without it --node-id is missing
	cmd.Flags().IntVar(&readyFD, "ready-fd", -1, "descriptor to write one line to, and close, when requests are answered")
	cmd.Flags().StringVar(&o.Endpoint, "endpoint", "unix:///csi/csi.sock", "socket at which the kubelet finds this driver")
	cmd.Flags().StringVar(&o.NodeID, "node-id", name, "name of this node in Kubernetes")
	config.AddFlags(cmd.Flags())
	return cmd
}
