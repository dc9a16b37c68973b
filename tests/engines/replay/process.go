package replay

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Maker starts an engine whose files are in dir, and returns what makes its
// workers.
type Maker func(dir string) (func(worker int) Engine, error)

const helper = "engine"

// Main is the body of TestMain of a package with engines, by their names. It
// returns the exit code.
func Main(m *testing.M, engines map[string]Maker) int {
	unix.Umask(0o022)
	harness.Helper(helper, func(args []string) int { return serve(engines[args[0]], args[1]) })
	return harness.Main(m)
}

// serve is the process of an engine: it holds each chat that it reads from its
// standard input, and prints the tally, until the input ends.
func serve(start Maker, dir string) int {
	workers, err := start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var c Chat
		if in.Decode(&c) != nil {
			return 0
		}
		if err := out.Encode(c.Run(workers)); err != nil {
			return 1
		}
	}
}

// Process is an engine in a process of its own, as a user of its own if the
// test is root.
type Process struct {
	tb  testing.TB
	p   *harness.Process
	in  *json.Encoder
	out *json.Decoder
}

// Start starts the engine of that name, with its files in dir. It ends with the
// test.
func Start(tb testing.TB, name, dir string) *Process {
	tb.Helper()
	p := harness.StartHelper(tb, harness.ProcessOptions{User: engineUser()}, helper, name, dir)
	return &Process{tb, p, json.NewEncoder(p.Stdin), json.NewDecoder(bufio.NewReader(p.Stdout))}
}

// Begin has the engine hold a chat; End waits for it.
func (p *Process) Begin(c Chat) {
	p.tb.Helper()
	if err := p.in.Encode(c); err != nil {
		p.tb.Fatalf("engine: %v\n%s", err, p.p.Stderr())
	}
}

// End returns the tally of the chat that has begun.
func (p *Process) End() Tally {
	p.tb.Helper()
	var t Tally
	if err := p.out.Decode(&t); err != nil {
		p.p.Kill()
		p.tb.Fatalf("engine: %v\n%s", err, p.p.Stderr())
	}
	return t
}

// Run holds a chat.
func (p *Process) Run(c Chat) Tally {
	p.tb.Helper()
	p.Begin(c)
	return p.End()
}
