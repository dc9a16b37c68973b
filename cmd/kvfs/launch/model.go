package launch

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Model is what a command of vLLM says of its model. A value that is not a number is -1.
type Model struct {
	Path        string // a directory, or the name of a model elsewhere
	Name        string // that clients ask for; never empty
	BlockTokens int    // 0: as vLLM has them
	TP, PP      int    // ranks, 1 unless the command says it
	KVDtype     string // empty: vLLM chooses
	StateDtype  string // likewise
}

// groupOptions are the options that change the groups of layers from those of the model's
// config.json, or may change them.
var groupOptions = []string{
	"disable-hybrid-kv-cache-manager", "disable-sliding-window", "hf-overrides", "speculative-config", "mamba-cache-mode", "mamba-block-size",
}

// modelOptions are the options that Model is made of.
var modelOptions = []string{
	"model", "served-model-name", "block-size", "tensor-parallel-size", "pipeline-parallel-size", "kv-cache-dtype", "dtype",
	"mamba-ssm-cache-dtype", "mamba-cache-dtype",
}

// model finds the model of the files, or the reason why it is unknown. The files are those of
// the added configuration: one block each.
func (b *builder) model() {
	for _, name := range groupOptions {
		if len(b.given(name)) > 0 {
			b.plan.NoModel = "the command has --" + name
			return
		}
	}
	if b.plan.NoModel = b.fileSets(slices.Concat(groupOptions, modelOptions)...); b.plan.NoModel != "" {
		return
	}
	m := &Model{
		Path: b.said("model"), Name: b.said("served-model-name"), BlockTokens: number(b.said("block-size"), 0),
		TP: number(b.said("tensor-parallel-size", "-tp"), 1), PP: number(b.said("pipeline-parallel-size", "-pp"), 1),
		KVDtype:    cmp.Or(chosen(b.said("kv-cache-dtype")), chosen(b.said("dtype"))),
		StateDtype: cmp.Or(chosen(b.said("mamba-ssm-cache-dtype")), chosen(b.said("mamba-cache-dtype"))),
	}
	if args := b.program.args; m.Path == "" && len(args) > 1 && !strings.HasPrefix(args[0], "-") && !strings.HasPrefix(args[1], "-") {
		m.Path = args[1] // vllm serve MODEL
	}
	if m.Path == "" {
		b.plan.NoModel = "the command does not name the model, after vllm serve or as --model"
		return
	}
	m.Name = cmp.Or(m.Name, m.Path)
	b.plan.Model = m
}

// chosen returns the requested type, or "" if vLLM chooses.
func chosen(dtype string) string {
	if dtype == "auto" {
		return ""
	}
	return dtype
}

// number returns the number in an option, or otherwise if the option is empty.
func number(text string, otherwise int) int {
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// said returns the value of an option that counts, by its name or its short forms, or "". It
// does not check which of two forms comes last.
func (b *builder) said(name string, short ...string) string {
	value, _ := b.last(name)
	for i, arg := range b.program.args {
		word, rest, inline := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(short, word):
		case inline:
			value = rest
		case i+1 < len(b.program.args):
			value = b.program.args[i+1]
		}
	}
	return value
}
