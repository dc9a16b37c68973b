// Mutations breaks the engine in the ways of list.txt, one after the other, and says which tests notice: a mutation that
// none notices shows that a test is missing. The tree stays as it is, because Go compiles the broken file from elsewhere,
// also where a test builds the daemon.
//
//	go run ./tests/mutations -only 3,7 -packages ./tiers -- -short
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed list.txt
var list string

// mutation is a change of one place in a file. Its breaks say what goes wrong then.
type mutation struct{ file, breaks, from, to string }

func main() {
	only := flag.String("only", "", "numbers of mutations, else all")
	packages := flag.String("packages", "", "packages whose tests run, else those of the file and of the whole engine")
	flag.Parse()
	missed, err := run(*only, *packages, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(2)
	}
	if missed > 0 {
		os.Exit(1)
	}
}

func run(only, packages string, args []string) (missed int, err error) {
	all, err := parse(list)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutations")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	chosen := strings.Split(only, ",")
	for i, m := range all {
		if only != "" && !slices.Contains(chosen, strconv.Itoa(i+1)) {
			continue
		}
		fmt.Printf("%2d %s: %s\n", i+1, m.file, m.breaks)
		by, err := m.try(dir, packages, args)
		switch {
		case err != nil:
			return missed, err
		case by == "":
			missed++
			fmt.Println("   MISSED")
		default:
			fmt.Println("   found by", by)
		}
	}
	return missed, nil
}

// parse reads a list: blocks of lines with an empty line between them. Each block begins with the file and what breaks.
func parse(list string) ([]mutation, error) {
	var all []mutation
	for block := range strings.SplitSeq(list, "\n\n") {
		var m mutation
		var from, to []string
		for line := range strings.Lines(block) {
			line = strings.TrimSuffix(line, "\n")
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, "-"):
				from = append(from, line[1:])
			case strings.HasPrefix(line, "+"):
				to = append(to, line[1:])
			default:
				m.file, m.breaks, _ = strings.Cut(line, ": ")
			}
		}
		m.from, m.to = strings.Join(from, "\n"), strings.Join(to, "\n")
		switch {
		case m.file == "" && m.from == "": // comments alone
		case m.breaks == "" || m.from == "" || m.from == m.to:
			return nil, fmt.Errorf("not a mutation:\n%s", block)
		default:
			all = append(all, m)
		}
	}
	return all, nil
}

// apply returns the text of the file with the change.
func (m mutation) apply(text string) (string, error) {
	if n := strings.Count(text, m.from); n != 1 {
		return "", fmt.Errorf("%s (%s): has the old text %d times, not once", m.file, m.breaks, n)
	}
	return strings.Replace(text, m.from, m.to, 1), nil
}

// try runs tests with the mutation, and returns the package and the test that noticed it; "" if none did.
func (m mutation) try(dir, packages string, args []string) (by string, err error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", fmt.Errorf("run this in the root of the repository: %w", err)
	}
	broken, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	whole, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	copied, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {whole: copied}})
	if err := errors.Join(err, os.WriteFile(copied, []byte(broken), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	if packages == "" {
		packages = "./" + path.Dir(m.file) + ",./tiers/catalog,./tiers"
	}
	for _, p := range strings.Split(packages, ",") {
		test := exec.Command("go", slices.Concat([]string{"test", "-failfast"}, args, []string{p})...)
		test.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay) // tests build the daemon, too
		out, err := test.CombinedOutput()
		switch {
		case err == nil:
		case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
			return "", fmt.Errorf("does not compile:\n%s", out)
		default:
			return p + " " + firstFailed(string(out)), nil
		}
	}
	return "", nil
}

// firstFailed returns the name of the test that failed or was running when the time was over, else the last line.
func firstFailed(out string) string {
	_, running, _ := strings.Cut(out, "running tests:\n")
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			return strings.Fields(name)[0]
		}
		if strings.HasPrefix(line, "panic: ") {
			running, _, _ = strings.Cut(running, "\n")
			return strings.TrimSpace(line + running)
		}
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}
