package llama

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

//go:embed engine.mjs
var engineScript []byte

const (
	promptLength   = 256 // tokens that Save evaluates by default
	continueLength = 32  // tokens that Save and Restore generate

	// runTimeout bounds one process. It takes about a second on a local disk.
	runTimeout = 2 * time.Minute
)

// nextToken is the first token after the prompt. It is not in the state, so
// that a process that has only the state can begin to generate.
const nextToken = firstByteToken + 'A'

// Engine runs llama.cpp, a new process per call, on one random model. It is
// immutable and safe for concurrent use.
type Engine struct {
	node    string // path of the interpreter
	modules string // directory of node_modules
	script  string // engine.mjs
	model   string // GGUF file

	prompt     []int
	transposed bool
	context    int // tokens
	opts       Options
}

// Options say how to run the engine.
type Options struct {
	Threads int           // 1 fixes the order of additions, and so the last bit
	Warm    bool          // evaluate a token before the measured work, as a server has
	Timeout time.Duration // of one process
}

// Continuation is what a process generated from a state.
type Continuation struct {
	Context       []int     // tokens that the state covers
	Tokens        []int     // generated
	Probabilities []float64 // of each of Tokens, as the model saw it
	Bytes         int64     // size of the state file; 0 after Restore

	// FirstToken is the time from the beginning of the evaluation of the prompt, or of the loading of the state, to the
	// first token. The saving of the state is not in it.
	FirstToken time.Duration
}

// Prepare installs the engine, if this is the first use by the user, and writes
// a model for tb. If the machine lacks what the engine needs, it returns nil
// and the reason, for tb.Skip; anything else that goes wrong fails tb.
func Prepare(tb testing.TB) (e *Engine, skipReason string) {
	tb.Helper()
	e, err := Open(tb.Context(), tb.TempDir(), Small(), Options{Threads: 1, Timeout: runTimeout})
	if errors.Is(err, ErrUnavailable) {
		return nil, fmt.Sprint(err)
	} else if err != nil {
		tb.Fatal(err)
	}
	return e, ""
}

// Open installs the engine, if this is the first use by the user, and writes engine.mjs and random.gguf to dir. It
// fails with ErrUnavailable if the machine lacks what the engine needs.
func Open(ctx context.Context, dir string, m Model, o Options) (*Engine, error) {
	node, err := findNode(ctx)
	if err != nil {
		return nil, err
	}
	modules, err := installOnce()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		node:    node,
		modules: modules,
		script:  filepath.Join(dir, "engine.mjs"),
		model:   filepath.Join(dir, "random.gguf"),
		prompt:  randomPrompt(1, promptLength),
		context: m.Context,
		opts:    o,
	}
	if err := os.WriteFile(e.script, engineScript, 0o644); err != nil {
		return nil, err
	}
	return e, WriteModel(e.model, m, 1)
}

// WithPrompt returns an engine that saves the state of another prompt: length
// random tokens from seed. Each token of a Small model takes 4 KiB of the state file.
func (e *Engine) WithPrompt(seed uint64, length int) *Engine {
	c := *e
	c.prompt = randomPrompt(seed, length)
	return &c
}

// WithTransposedValues returns an engine without flash attention. It keeps the
// values of its cache transposed and writes them in pieces of 2 bytes per token
// of the prompt, which stdio gathers into writes of st_blksize; with flash
// attention a layer is one long write. The state files of the two do not mix.
func (e *Engine) WithTransposedValues() *Engine {
	c := *e
	c.transposed = true
	return &c
}

// Save evaluates the prompt in a new process, saves the state to file in dir,
// in place, and continues in the same process from the state in its memory.
func (e *Engine) Save(tb testing.TB, dir, file string) Continuation {
	tb.Helper()
	c, err := e.run(tb.Context(), "save", filepath.Join(dir, file))
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// Restore loads the state from file in dir in a new process, and continues.
func (e *Engine) Restore(tb testing.TB, dir, file string) Continuation {
	tb.Helper()
	c, err := e.run(tb.Context(), "restore", filepath.Join(dir, file))
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// request is the argument of engine.mjs.
type request struct {
	Modules string `json:"modules"`
	Model   string `json:"model"`
	Context int    `json:"context"`
	Threads int    `json:"threads"`
	Warm    bool   `json:"warm"`
	Flash   bool   `json:"flash"`
	Op      string `json:"op"`
	File    string `json:"file"`
	Prompt  []int  `json:"prompt"`
	Next    int    `json:"next"`
	Length  int    `json:"length"`
}

// reply is what engine.mjs prints.
type reply struct {
	Error         string    `json:"error"`
	Bytes         int64     `json:"bytes"`
	Context       []int     `json:"context"`
	Tokens        []int     `json:"tokens"`
	Probabilities []float64 `json:"probabilities"`
	FirstToken    float64   `json:"first_token_ms"`
}

// command returns the program and arguments that do "save" or "restore" once.
func (e *Engine) command(op, file string) ([]string, error) {
	req := request{
		Modules: e.modules,
		Model:   e.model,
		Context: e.context,
		Threads: e.opts.Threads,
		Warm:    e.opts.Warm,
		Flash:   !e.transposed,
		Op:      op,
		File:    file,
		Next:    nextToken,
		Length:  continueLength,
	}
	if op == "save" {
		req.Prompt = e.prompt
	}
	arg, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	return []string{e.node, e.script, string(arg)}, nil
}

// result reads the standard output of a command that ended with code 0.
func result(op, file string, stdout []byte) (Continuation, error) {
	var rep reply
	if err := json.Unmarshal(stdout, &rep); err != nil {
		return Continuation{}, fmt.Errorf("reply %q: %w", stdout, err)
	}
	if rep.Error != "" {
		return Continuation{}, fmt.Errorf("llama.cpp: %s %s: %s", op, file, rep.Error)
	}
	if len(rep.Tokens) != continueLength || len(rep.Probabilities) != continueLength {
		return Continuation{}, fmt.Errorf("llama.cpp: %s %s: generated %d tokens and %d probabilities, want %d",
			op, file, len(rep.Tokens), len(rep.Probabilities), continueLength)
	}
	return Continuation{
		Context:       rep.Context,
		Tokens:        rep.Tokens,
		Probabilities: rep.Probabilities,
		Bytes:         rep.Bytes,
		FirstToken:    time.Duration(rep.FirstToken * float64(time.Millisecond)),
	}, nil
}

// run does one operation in a new process.
func (e *Engine) run(ctx context.Context, op, file string) (Continuation, error) {
	p, err := e.Start(ctx, op, file)
	if err != nil {
		return Continuation{}, err
	}
	return p.Wait()
}

// Process is an operation under way.
type Process struct {
	op, file       string
	cmd            *exec.Cmd
	cancel         context.CancelFunc
	stdout, stderr bytes.Buffer
}

// Start starts a process that does "save" or "restore" of the file. Call Wait. It is
// killed when ctx ends.
func (e *Engine) Start(ctx context.Context, op, file string) (*Process, error) {
	argv, err := e.command(op, file)
	if err != nil {
		return nil, err
	}
	p := &Process{op: op, file: file}
	ctx, p.cancel = context.WithTimeout(ctx, e.opts.Timeout)
	p.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		p.cancel()
		return nil, fmt.Errorf("llama.cpp: %w", err)
	}
	return p, nil
}

// Wait waits for the end of the process.
func (p *Process) Wait() (Continuation, error) {
	err := p.cmd.Wait()
	p.cancel()
	if err != nil {
		return Continuation{}, fmt.Errorf("llama.cpp: %s %s: %w\n%s", p.op, p.file, err, bytes.TrimSpace(p.stderr.Bytes()))
	}
	return result(p.op, p.file, p.stdout.Bytes())
}

// Diff says where got continues otherwise than want, or "" if they are the same
// to the last bit.
func Diff(got, want Continuation) string {
	if !slices.Equal(got.Context, want.Context) {
		return fmt.Sprintf("state covers %d tokens, want %d: %v, want %v",
			len(got.Context), len(want.Context), got.Context, want.Context)
	}
	for i := range min(len(got.Tokens), len(want.Tokens)) {
		if got.Tokens[i] != want.Tokens[i] {
			return fmt.Sprintf("token %d is %d, want %d", i, got.Tokens[i], want.Tokens[i])
		}
		if got.Probabilities[i] != want.Probabilities[i] {
			return fmt.Sprintf("token %d (%d) has probability %v, want %v",
				i, got.Tokens[i], got.Probabilities[i], want.Probabilities[i])
		}
	}
	if len(got.Tokens) != len(want.Tokens) {
		return fmt.Sprintf("%d tokens, want %d", len(got.Tokens), len(want.Tokens))
	}
	return ""
}

// randomPrompt returns length byte tokens.
func randomPrompt(seed uint64, length int) []int {
	r := rand.New(rand.NewPCG(seed, 0))
	tokens := make([]int, length)
	for i := range tokens {
		tokens[i] = firstByteToken + r.IntN(256)
	}
	return tokens
}
