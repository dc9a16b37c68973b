package launch

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// wrapper describes a program that runs another one, which follows its options.
// Options that are not listed make it opaque.
type wrapper struct {
	bare    string // options without a value
	valued  string // options with a value, in the next word or attached
	skips   int    // words between the options and the program
	assigns bool   // NAME=value words stand before the program
	numbers bool   // -10 is an option
	python  bool   // the program is a script of Python, or -m and a module
}

// wrappers are those that change neither the user nor what of the environment an
// engine sees, but for env, which says how. Sources: coreutils 9.7, util-linux
// 2.41, numactl 2.0.19, torch 2.8 (torchrun).
var wrappers = map[string]wrapper{
	"env":     {bare: "-v --debug", valued: "-u --unset -C --chdir", assigns: true},
	"nice":    {valued: "-n --adjustment", numbers: true},
	"nohup":   {},
	"setsid":  {bare: "-w --wait -c --ctty"},
	"stdbuf":  {valued: "-i --input -o --output -e --error"},
	"timeout": {bare: "--foreground --preserve-status -v --verbose", valued: "-k --kill-after -s --signal", skips: 1},
	"time":    {bare: "-v --verbose -p --portability -a --append -q --quiet", valued: "-f --format -o --output"},
	"ionice":  {bare: "-t --ignore", valued: "-c --class -n --classdata"},
	"chrt":    {bare: "-b --batch -f --fifo -i --idle -o --other -r --rr -R --reset-on-fork -v --verbose", skips: 1},
	"taskset": {bare: "-c --cpu-list -a --all-tasks", skips: 1},
	"numactl": {
		bare:   "-a --all -l --localalloc -b --balancing",
		valued: "-i --interleave -p --preferred -P --preferred-many -m --membind -N --cpunodebind -C --physcpubind -w --weighted-interleave",
	},
	"torchrun": {
		bare: "--standalone --run-path --run_path",
		valued: "--nnodes --nproc-per-node --nproc_per_node --rdzv-backend --rdzv_backend --rdzv-endpoint --rdzv_endpoint --rdzv-id --rdzv_id " +
			"--rdzv-conf --rdzv_conf --max-restarts --max_restarts --monitor-interval --monitor_interval --start-method --start_method --role " +
			"--log-dir --log_dir -r --redirects -t --tee --local-ranks-filter --local_ranks_filter --node-rank --node_rank " +
			"--master-addr --master_addr --master-port --master_port --local-addr --local_addr",
		python: true,
	},
}

// hides are programs that run another one where kvfs cannot reach it, with the
// reason.
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

// shells run a command that is given as text.
var shells = []string{"sh", "bash", "dash", "ash", "zsh", "ksh"}

// maxWrappers bounds how deep wrappers may stand in each other.
const maxWrappers = 16

// walker looks through wrappers.
type walker struct {
	add    func(flags []string) []string
	set    map[string]string
	unset  []string
	python bool
	script bool // it is in the text of a shell
}

// walk returns the words of the program below all wrappers, or why it cannot be
// found.
func (w *walker) walk(argv []string) (words []string, opaque string) {
	words = argv
	for range maxWrappers {
		base := filepath.Base(words[0])
		if why := hides[base]; why != "" {
			return nil, why
		}
		if slices.Contains(shells, base) {
			inner, opaque := w.shell(words)
			if inner == nil || opaque != "" {
				return words, opaque
			}
			words = inner
			continue
		}
		outer, known := wrappers[base]
		if !known || w.python {
			return words, ""
		}
		rest, opaque := w.options(base, outer, words[1:])
		if opaque != "" {
			return nil, opaque
		}
		words = rest
		if outer.python {
			w.python = true
			return words, ""
		}
	}
	return nil, "too many wrappers in each other"
}

// options leaves out the options of a wrapper, and the other words before the program. opaque says why that fails.
func (w *walker) options(name string, outer wrapper, words []string) (rest []string, opaque string) {
	for len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-' {
		word := words[0]
		if word == "--" {
			words = words[1:]
			break
		}
		if outer.python && (word == "-m" || word == "--module") {
			return append([]string{"-m"}, words[1:]...), ""
		}
		option, value, n := outer.option(words)
		if n == 0 {
			return nil, fmt.Sprintf("%s %s is not looked through", name, word)
		}
		if option == "-u" || option == "--unset" {
			w.unset = append(w.unset, value)
			delete(w.set, value)
		}
		words = words[n:]
	}
	for outer.assigns && len(words) > 0 && w.assignment(words[0]) {
		words = words[1:]
	}
	if len(words) <= outer.skips {
		return nil, fmt.Sprintf("%s has no program", name)
	}
	return words[outer.skips:], ""
}

// option returns the option at the start of words, its value if it takes one, and how many words they are: 0 if o has no
// such option, or if its value is missing.
func (o wrapper) option(words []string) (option, value string, n int) {
	word, valued := words[0], strings.Fields(o.valued)
	if slices.Contains(strings.Fields(o.bare), word) || o.numbers && strings.Trim(word[1:], "0123456789") == "" {
		return word, "", 1
	}
	option, value, inline := strings.Cut(word, "=")
	if !strings.HasPrefix(word, "--") && len(word) > 2 && slices.Contains(valued, word[:2]) {
		option, value, inline = word[:2], word[2:], true
	}
	switch {
	case !slices.Contains(valued, option):
		return "", "", 0
	case inline:
		return option, value, 1
	case len(words) > 1:
		return option, words[1], 2
	}
	return "", "", 0
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

// shell returns the words of the one simple command that a shell is given with -c. It returns none for a shell that
// runs a file or reads its input. opaque says why the command is not found.
func (w *walker) shell(words []string) (inner []string, opaque string) {
	name := filepath.Base(words[0])
	at, opaque := shellText(words)
	if at == 0 {
		return nil, opaque
	}
	if at == len(words) || w.script {
		return nil, fmt.Sprintf("%s -c is not looked through here", name)
	}
	inner, simple := splitScript(words[at])
	if simple {
		w.script = true
		w.addToText(words[at], len(words)-at)
		inner = w.plain(inner)
	}
	if len(inner) == 0 || strings.HasPrefix(inner[0], "-") {
		return nil, fmt.Sprintf("what %s -c runs is more than one plain command", name)
	}
	return inner, ""
}

// shellText returns the position in words, or just behind them, of the text that a shell is given with -c. It returns 0
// for a shell without -c; opaque then says whether it has an unknown option.
func shellText(words []string) (at int, opaque string) {
	at = 1
	for at < len(words) && len(words[at]) > 1 && strings.Trim(words[at], "-celiux") == "" && !strings.HasPrefix(words[at], "--") {
		at++
		if strings.Contains(words[at-1], "c") {
			break
		}
	}
	if last := words[at-1]; strings.HasPrefix(last, "-") && strings.Contains(last, "c") {
		return at, ""
	}
	if at < len(words) && strings.HasPrefix(words[at], "-") {
		return 0, fmt.Sprintf("%s %s is not looked through", filepath.Base(words[0]), words[at])
	}
	return 0, ""
}

// addToText makes w.add append flags to the text of a shell, the word of the command that is back words from its end.
// Wrappers stand in front of the shell and change nothing behind it.
func (w *walker) addToText(text string, back int) {
	outer := w.add(nil)
	place := len(outer) - back
	w.add = func(flags []string) []string {
		command := slices.Clone(outer)
		if len(flags) > 0 {
			command[place] = strings.TrimRight(text, " ") + " " + Quote(flags...)
		}
		return command
	}
}

// plain leaves out the assignments of a simple command, which it notes, and exec.
func (w *walker) plain(command []string) []string {
	for len(command) > 0 && w.assignment(command[0]) {
		command = command[1:]
	}
	if len(command) > 0 && command[0] == "exec" {
		command = command[1:]
	}
	return command
}
