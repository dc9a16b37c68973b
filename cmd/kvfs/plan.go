package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/plan"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// maxModelConfig bounds the config.json of a model, in bytes. Lists of layers that are not
// quantized make some of them long.
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
			"guesses nothing: an unknown model type is an error, and assumptions are printed. - is standard input.\n" +
			"docs/sizing.md explains the output.\n\n" +
			"Exit codes: 0; 1 if FILE cannot be read or understood, or the figures cannot be computed.",
		Example: "  kvfs plan --model-config config.json\n" +
			"  kvfs plan --model-config config.json --engine vllm --tp 4 --requests-per-second 2 \\\n" +
			"    --mean-prompt 8000 --mean-output 500 --prefix-share 0.5 --reuse-window 15m --concurrency 32",
		DisableFlagsInUseLine: true,

		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError(cmd, "--model-config is missing: give the config.json of the model")
			}
			p, err := makePlan(file, cmd.InOrStdin(), o)
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

// makePlan reads the config of a model and computes its plan.
func makePlan(file string, stdin io.Reader, o plan.Options) (*plan.Plan, error) {
	m, err := readModel(file, stdin)
	if err != nil {
		return nil, err
	}
	return plan.Make(m, o)
}

// readModel reads the config of a model.
func readModel(file string, stdin io.Reader) (*plan.Model, error) {
	text, shown, err := readModelConfig(file, stdin)
	if err != nil {
		return nil, err
	}
	m, err := plan.Parse(text)
	if err != nil {
		return nil, eachOf(shown, err)
	}
	return m, nil
}

// readModelConfig reads a file, or stdin for "-". shown is its name in errors.
func readModelConfig(file string, stdin io.Reader) (text []byte, shown string, err error) {
	in, shown := stdin, "standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, "", err
		}
		defer f.Close()
		in, shown = f, file
	}
	text, err = io.ReadAll(io.LimitReader(in, maxModelConfig+1))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", shown, show.Reason(err))
	}
	if len(text) > maxModelConfig {
		return nil, "", fmt.Errorf("%s: more than %d bytes", shown, maxModelConfig)
	}
	return text, shown, nil
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
