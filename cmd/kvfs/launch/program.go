package launch

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// program is the engine in a command, below the wrappers.
type program struct {
	engine Engine // None: not one that is known
	why    string // why nothing is to be added for it; for None: why it is not known
	args   []string
	add    func(flags []string) []string // the whole command with more arguments for the program

	set   map[string]string // variables that wrappers set
	unset []string          // variables that wrappers take away
}

// findProgram looks through the wrappers of a command. opaque says why that is
// not possible, and is empty if it was.
func findProgram(argv []string) (p program, opaque string) {
	w := &walker{set: map[string]string{}, add: func(flags []string) []string { return append(slices.Clone(argv), flags...) }}
	words, opaque := w.walk(argv)
	if opaque != "" {
		return program{}, opaque
	}
	p = identify(words)
	if w.python { // torchrun runs scripts and modules of Python
		p = identifyPython(words)
	}
	p.add, p.set, p.unset = w.add, w.set, w.unset
	return p, ""
}

// pythonName matches the names of Python interpreters.
var pythonName = regexp.MustCompile(`^(python|pypy)[0-9.]*$`)

// identify tells which engine the words start.
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

// unknown is a program that is no engine.
func unknown(name string, args []string) program {
	return program{engine: None, args: args, why: fmt.Sprintf("%s is none that kvfs knows; --engine says which it is", name)}
}

// subcommand is a program whose first argument says what it does. Only the
// servers among that have blocks to keep.
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

// identifyPython is identify for what follows the options of Python: -m and a
// module, or a script.
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
