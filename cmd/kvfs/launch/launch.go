package launch

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Engine is an inference engine that kvfs knows, or a way to choose one.
type Engine string

// Engines, and what else --engine may say.
const (
	Auto     Engine = "auto" // look at the command
	VLLM     Engine = "vllm"
	SGLang   Engine = "sglang"
	LMCache  Engine = "lmcache" // in the process of vLLM or SGLang
	LlamaCpp Engine = "llama.cpp"
	None     Engine = "none" // no engine: KVFS_ variables only
)

// Engines returns all values of Engine.
func Engines() []Engine { return []Engine{Auto, VLLM, SGLang, LMCache, LlamaCpp, None} }

// defaultEngineMemory is Input.EngineMemoryBytes where that is zero.
const defaultEngineMemory = 4 << 30

// Mount is the mount that the engine shall use.
type Mount struct {
	Dir      string // absolute
	Socket   string // of the owner of the memory; empty: the mount has its own
	NodeName string // may be empty
	Segment  string // the node that owns the memory, for engines that can prefer one; may be empty
}

// Input is the input of Make.
type Input struct {
	Command []string // program and arguments; at least one word
	Environ []string // "NAME=value", as os.Environ
	Engine  Engine   // empty means Auto
	Mount   Mount

	// EngineMemoryBytes is the host memory that an engine keeps as the gateway between its
	// accelerators and the mount, if it must be told. Zero means 4 GiB.
	EngineMemoryBytes int64

	// ReadFile reads a configuration file that the command names. If it is nil, nothing is
	// added to a command with such a file.
	ReadFile func(name string) ([]byte, error)
}

// Variable is an environment variable that is set for the command.
type Variable struct {
	Name, Value string
	Why         string // its purpose, in a few words
}

// Skip is a thing that was not added.
type Skip struct {
	What string // a flag, a variable, or the name of an engine
	Why  string
}

// Plan is the command to start.
type Plan struct {
	Engine    Engine     // that was recognised, or None
	Command   []string   // with the flags
	Flags     []string   // that were added, in order, with their values
	Variables []Variable // that are added to the environment
	Skipped   []Skip
	Notes     []string // advice
	Dirs      []string // below the mount; they must exist before the command starts
	Model     *Model   // whose blocks vLLM's file tier will keep; nil if that is not known
	NoModel   string   // why it is unknown; empty if Model is set, or vLLM keeps no blocks in the mount
}

// Environ returns environ with the variables of the plan.
func (p *Plan) Environ(environ []string) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.ContainsFunc(p.Variables, func(v Variable) bool { return v.Name == name })
	})
	for _, v := range p.Variables {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

// String describes the plan, one thing a line.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "engine: %s\n", p.Engine)
	for _, v := range p.Variables {
		fmt.Fprintf(&b, "variable: %s=%s  # %s\n", v.Name, Quote(v.Value), v.Why)
	}
	for _, s := range p.Skipped {
		fmt.Fprintf(&b, "skipped: %s: %s\n", s.What, s.Why)
	}
	for _, note := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	fmt.Fprintf(&b, "command: %s\n", Quote(p.Command...))
	return b.String()
}

// Make plans how to start a command. It fails if there is no command, the engine is unknown or
// not that of the command, or the mount is not absolute.
func Make(in Input) (*Plan, error) {
	if len(in.Command) == 0 || in.Command[0] == "" {
		return nil, errors.New("no command")
	}
	if in.Engine == "" {
		in.Engine = Auto
	}
	if !slices.Contains(Engines(), in.Engine) {
		return nil, fmt.Errorf("unknown engine %q; one of %s", in.Engine, engineNames())
	}
	if !filepath.IsAbs(in.Mount.Dir) {
		return nil, fmt.Errorf("mount point %q: not absolute", in.Mount.Dir)
	}
	if in.EngineMemoryBytes <= 0 {
		in.EngineMemoryBytes = defaultEngineMemory
	}
	b := &builder{in: in, plan: &Plan{Engine: None, Command: slices.Clone(in.Command)}, env: environment(in.Environ)}
	b.export()
	if in.Engine == None {
		return b.plan, nil
	}
	if err := b.engine(); err != nil {
		return nil, err
	}
	return b.plan, nil
}

// engineNames lists the values of Engine.
func engineNames() string {
	var names []string
	for _, e := range Engines() {
		names = append(names, string(e))
	}
	return strings.Join(names, ", ")
}

// builder makes one plan.
type builder struct {
	in   Input
	plan *Plan
	env  map[string]string // of the engine: the environment with what the command changes in it

	program program
	options []option // of the engine, that the command has
}

// environment splits "NAME=value" strings. The last of several wins.
func environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}

// export adds our own variables. They state facts, so they replace those of the environment.
func (b *builder) export() {
	for _, v := range []Variable{
		{"KVFS_MOUNT", b.in.Mount.Dir, "the mount point"},
		{"KVFS_SOCKET", b.in.Mount.Socket, "the socket of the owner"},
		{"KVFS_NODE_NAME", b.in.Mount.NodeName, "the name of this node"},
	} {
		if v.Value != "" {
			b.plan.Variables = append(b.plan.Variables, v)
		}
	}
	if b.in.Mount.Segment != "" {
		b.variable("KVFS_PREFERRED_SEGMENT", b.in.Mount.Segment, "the node that owns the memory")
	}
}

// engine finds the engine and adds what it needs.
func (b *builder) engine() error {
	p, opaque := findProgram(b.in.Command)
	asked := b.in.Engine
	if opaque != "" {
		what := string(asked)
		if asked == Auto {
			what = "engine"
		}
		b.skip(what, "%s", opaque)
		return nil
	}
	chosen, err := choose(asked, p.engine)
	if err != nil {
		return err
	}
	if chosen == None {
		b.skip("engine", "%s", p.why)
		return nil
	}
	b.program, b.options, b.plan.Engine = p, parseOptions(p.args), chosen
	maps.Copy(b.env, p.set)
	if p.engine != None && p.why != "" { // the engine, but not one of its servers
		b.skip(string(chosen), "%s", p.why)
		return nil
	}
	switch chosen {
	case VLLM:
		b.vllm()
	case SGLang:
		b.sglang()
	case LMCache:
		b.lmcache()
	case LlamaCpp:
		b.llama()
	}
	if len(b.plan.Flags) > 0 {
		b.plan.Command = p.add(b.plan.Flags)
	}
	return nil
}

// choose returns the engine that a command is to use: the one asked for, or with Auto the one found in it. found is None
// if kvfs does not know the program. choose fails if the command is another engine than the one asked for.
func choose(asked, found Engine) (Engine, error) {
	switch {
	case asked == Auto:
		return found, nil
	case found == None, found == asked, asked == LMCache && (found == VLLM || found == SGLang):
		return asked, nil
	}
	return None, fmt.Errorf("the command is %s, not %s", found, asked)
}

// groupDir returns the directory of a group, which it has made.
func (b *builder) groupDir(e Engine) string {
	if !slices.Contains(b.plan.Dirs, string(e)) {
		b.plan.Dirs = append(b.plan.Dirs, string(e))
	}
	return filepath.Join(b.in.Mount.Dir, string(e))
}

func (b *builder) skip(what, format string, args ...any) {
	b.plan.Skipped = append(b.plan.Skipped, Skip{what, fmt.Sprintf(format, args...)})
}

func (b *builder) note(format string, args ...any) {
	b.plan.Notes = append(b.plan.Notes, fmt.Sprintf(format, args...))
}

// flag adds a flag with its value, if it has one. The caller has checked that the command takes
// it; see closed.
func (b *builder) flag(words ...string) { b.plan.Flags = append(b.plan.Flags, words...) }

// closed reports that the command takes no more options, because it has a -- of its own. It
// notes that.
func (b *builder) closed(what string) bool {
	if !slices.Contains(b.program.args, "--") {
		return false
	}
	b.skip(what, "options end at the -- of the command")
	return true
}

// variable sets an environment variable, unless the environment or the command has it, even
// empty.
func (b *builder) variable(name, value, why string) {
	if b.has(name) {
		b.skip(name, "the environment has it")
		return
	}
	b.plan.Variables = append(b.plan.Variables, Variable{name, value, why})
}

// has reports whether the environment or the command sets or removes a variable.
func (b *builder) has(name string) bool {
	_, set := b.env[name]
	return set || slices.Contains(b.program.unset, name)
}

// seed makes the hashes that name blocks the same in every process. Without it
// LMCache, and vLLM up to v0.25, start their chains of hashes from a random
// number, so that no block of an earlier process or of another node is found.
func (b *builder) seed() {
	b.variable("PYTHONHASHSEED", "0", "equal names for equal blocks in all processes")
}

// configured reports that a configuration file of the command sets one of the options, or
// cannot be read. It notes that.
func (b *builder) configured(what string, names ...string) bool {
	why := b.fileSets(names...)
	if why != "" {
		b.skip(what, "%s", why)
	}
	return why != ""
}

// fileSets returns how a configuration file of the command sets one of the options, or that it
// cannot be read. It is empty if none does.
func (b *builder) fileSets(names ...string) string {
	for _, o := range b.options {
		if o.name != "config" || o.value == "" {
			continue
		}
		if b.in.ReadFile == nil {
			return o.value + " may set it"
		}
		text, err := b.in.ReadFile(o.value)
		if err != nil {
			return fmt.Sprintf("%s may set it, and cannot be read: %v", o.value, err)
		}
		for _, name := range names {
			if mentions(text, name) {
				return fmt.Sprintf("%s sets %s", o.value, name)
			}
		}
	}
	return ""
}
