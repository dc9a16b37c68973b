package launch

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

type option struct {
	name  string // without dashes in front, with dashes for underscores, up to a dot
	value string // after =, or the next word unless that is an option
}

// parseOptions returns the long options among the arguments of an engine, up to --. Every word that looks like one counts: to
// add one option too few is a cache less, one too many may change what the engine does.
func parseOptions(args []string) []option {
	var found []option
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, isLong := strings.CutPrefix(arg, "--")
		if !isLong {
			continue
		}
		o := option{}
		name, value, inline := strings.Cut(name, "=")
		switch {
		case inline:
			o.value = value
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			o.value = args[i+1]
		}
		// vLLM and llama.cpp take underscores; --x.key is a part of vLLM's --x.
		name, _, _ = strings.Cut(name, ".")
		o.name = strings.ReplaceAll(name, "_", "-")
		found = append(found, o)
	}
	return found
}

// given returns the options of the command that are name, or, for engines that parse with argparse, an abbreviation of it.
// Those that are abbreviations of others, too, are refused by argparse itself.
func (b *builder) given(name string) []option {
	abbreviates := b.plan.Engine != LlamaCpp
	var found []option
	for _, o := range b.options {
		if o.name == name || abbreviates && o.name != "" && strings.HasPrefix(name, o.name) {
			found = append(found, o)
		}
	}
	return found
}

// last returns the value of an option that counts: that of the last one.
func (b *builder) last(name string) (value string, given bool) {
	found := b.given(name)
	if len(found) == 0 {
		return "", false
	}
	return found[len(found)-1].value, true
}

// program is the engine in a command, below the wrappers.
type program struct {
	engine Engine // None: not one that is known
	why    string // why nothing is to be added for it; for None: why it is not known
	args   []string

	set   map[string]string // variables that wrappers set
	unset []string          // variables that wrappers take away
}

// findProgram looks through the wrappers of a command. opaque says why that is not possible, and is empty if it was.
func findProgram(argv []string) (p program, opaque string) {
	w := &walker{set: map[string]string{}}
	words, opaque := w.walk(argv)
	if opaque != "" {
		return program{}, opaque
	}
	p = identify(words)
	if w.python { // torchrun runs scripts and modules of Python
		p = identifyPython(words)
	}
	p.set, p.unset = w.set, w.unset
	return p, ""
}

// pythonName matches the names of Python interpreters.
var pythonName = regexp.MustCompile(`^(python|pypy)[0-9.]*$`)

func identify(words []string) program {
	base := filepath.Base(words[0])
	if pythonName.MatchString(base) {
		return identifyPython(pythonOptions(words[1:]))
	}
	args := words[1:]
	switch base {
	case "vllm":
		return subcommand(VLLM, args, "serve", "run-batch")
	case "sglang":
		return subcommand(SGLang, args, "serve")
	case "llama-server":
		return program{engine: LlamaCpp, args: args}
	case "llama-cli":
		return program{engine: LlamaCpp, args: args, why: "llama-cli saves no slots; give it --prompt-cache with a file in the mount"}
	}
	return unknown(base, args)
}

func unknown(name string, args []string) program {
	return program{engine: None, args: args, why: fmt.Sprintf("%s is none that kvfs knows; --engine says which it is", name)}
}

// subcommand is a program whose first argument says what it does. Only the servers among that have blocks to keep.
func subcommand(e Engine, args []string, servers ...string) program {
	p := program{engine: e, args: args}
	if len(args) == 0 || !slices.Contains(servers, args[0]) {
		p.why = fmt.Sprintf("only %s %s keeps blocks", e, servers[0])
	}
	return p
}

// modules are those that python -m starts a server with.
var modules = map[string]Engine{
	"vllm.entrypoints.openai.api_server": VLLM,
	"vllm.entrypoints.openai.run_batch":  VLLM,
	"vllm.entrypoints.api_server":        VLLM,
	"vllm.entrypoints.grpc_server":       VLLM,
	"sglang.launch_server":               SGLang,
}

// identifyPython is identify for what follows the options of Python: -m and a module, or a script.
func identifyPython(words []string) program {
	switch {
	case len(words) >= 2 && words[0] == "-m":
		module, args := words[1], words[2:]
		if e, known := modules[module]; known {
			return program{engine: e, args: args}
		}
		switch module {
		case "vllm.entrypoints.cli.main":
			return subcommand(VLLM, args, "serve", "run-batch")
		case "sglang.cli.main":
			return subcommand(SGLang, args, "serve")
		}
		return unknown(module, args)
	case len(words) == 0 || strings.HasPrefix(words[0], "-"):
		return unknown("python", nil)
	case filepath.Base(words[0]) == "vllm" || filepath.Base(words[0]) == "sglang": // the script that pip installs
		return identify(words)
	case strings.HasSuffix(words[0], "sglang/launch_server.py"):
		return program{engine: SGLang, args: words[1:]}
	}
	return unknown(filepath.Base(words[0]), words[1:])
}

// pythonOptions leaves out the options of Python itself, but not -m and -c.
func pythonOptions(words []string) []string {
	for len(words) > 0 {
		switch w := words[0]; {
		case (w == "-W" || w == "-X") && len(words) > 1:
			words = words[2:]
		case strings.HasPrefix(w, "-W") || strings.HasPrefix(w, "-X"):
			words = words[1:]
		case len(w) > 1 && w[0] == '-' && strings.Trim(w[1:], "bBdEiIOPqsSuvx") == "":
			words = words[1:]
		default:
			return words
		}
	}
	return words
}

// wrappers run another program, which stands behind their options. They change neither the user nor what of the environment
// an engine sees, but for env, which says how.
var wrappers = strings.Fields("env nice nohup setsid stdbuf timeout time ionice chrt taskset numactl torchrun")

// hides are programs that run another one where kvfs cannot reach it, with the reason.
var hides = map[string]string{
	"sudo": "sudo changes the user and the environment", "su": "su changes the user and the environment",
	"doas": "doas changes the user and the environment", "runuser": "runuser changes the user",
	"docker": "what runs in a container is set up there", "podman": "what runs in a container is set up there",
	"nerdctl": "what runs in a container is set up there", "kubectl": "what runs in a cluster is set up there",
	"ssh": "what runs on another machine is set up there", "srun": "what slurm starts is set up there",
	"mpirun": "what mpirun starts may be on other machines", "mpiexec": "what mpiexec starts may be on other machines",
	"xargs": "xargs adds arguments of its own", "chroot": "chroot changes the paths", "unshare": "unshare may change the paths",
	"ray": "what ray starts may be on other machines",
}

// shells may run a command that is given as text.
var shells = strings.Fields("sh bash dash ash zsh ksh")

type walker struct {
	set    map[string]string
	unset  []string
	python bool
}

// walk returns the words of the program below all wrappers, or why it cannot be
// found. If none of them is known, that is the wrapper.
func (w *walker) walk(argv []string) (words []string, opaque string) {
	for words = argv; !w.python; {
		base := filepath.Base(words[0])
		switch {
		case hides[base] != "":
			return nil, hides[base]
		case slices.Contains(shells, base) && slices.ContainsFunc(words[1:], func(s string) bool { return s[:min(len(s), 1)] == "-" && strings.Contains(s, "c") }):
			return nil, fmt.Sprintf("what %s -c runs is not looked at: let it run kvfs run -- and the engine", base)
		case !slices.Contains(wrappers, base):
			return words, ""
		}
		inner, opaque := w.below(base, words[1:])
		if inner == nil || opaque != "" {
			return words, opaque
		}
		words = inner
	}
	return words, ""
}

// below returns the words from the first one on that names a program which kvfs knows, or an engine, and none if there is
// no such word.
func (w *walker) below(outer string, words []string) (inner []string, opaque string) {
	w.python = outer == "torchrun"
	for i, word := range words {
		switch base := filepath.Base(word); {
		case w.python && (word == "-m" || word == "--module"):
			return append([]string{"-m"}, words[i+1:]...), ""
		case w.python && strings.HasSuffix(word, ".py"), hides[base] != "", slices.Contains(shells, base), slices.Contains(wrappers, base),
			pythonName.MatchString(base), identify([]string{base}).engine != None: // kvfs knows the program
			return words[i:], ""
		case outer == "env" && !w.changed(words[i:]):
			return nil, fmt.Sprintf("env %s is not looked through", word)
		}
	}
	return nil, ""
}

// changed notes what env changes by its first word. It reports false if that word takes all variables away.
func (w *walker) changed(words []string) bool {
	word := strings.Replace(words[0], "--unset", "-u", 1)
	name, unset := strings.CutPrefix(word, "-u")
	if !unset {
		w.assignment(word)
		return word != "-i" && word != "-" && word != "--ignore-environment"
	}
	if name == "" && len(words) > 1 {
		name = words[1]
	}
	name = strings.TrimPrefix(name, "=")
	w.unset = append(w.unset, name)
	delete(w.set, name)
	return true
}

// assignmentForm matches NAME=value.
var assignmentForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// assignment takes note of a word that is NAME=value and reports whether it is.
func (w *walker) assignment(word string) bool {
	if !assignmentForm.MatchString(word) {
		return false
	}
	name, value, _ := strings.Cut(word, "=")
	w.set[name] = value
	return true
}

// plain are the characters that mean nothing to a shell.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_"

// Quote returns words as a line that a POSIX shell splits into them again.
func Quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if word == "" || strings.Trim(word, plain) != "" || i == 0 && assignmentForm.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		quoted[i] = word
	}
	return strings.Join(quoted, " ")
}
