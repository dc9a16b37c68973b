package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// fakeDaemon is the daemon of a mount at dir, with one control file. It answers each
// request by a script, and holds a reader up where the script says so.
type fakeDaemon struct {
	dir, name string
	answer    func(request string) string // ends with hold: more does not come
	attrs     func(path, attr, value string) error
	ctx       context.Context // of the commands; nil: none
	other     string          // another mount; "": none

	mu       sync.Mutex // leaf
	wake     *sync.Cond
	requests []string
	out      []byte
	ended    bool // out is the end of an answer
	opened   bool
	closed   bool
}

// hold at the end of an answer means that the reader waits for more until the close.
const hold = "...\n"

func newFakeDaemon(dir, name string, answer func(request string) string) *fakeDaemon {
	f := &fakeDaemon{dir: dir, name: name, answer: answer, ended: true}
	f.wake = sync.NewCond(&f.mu)
	return f
}

// Write implements io.Writer: one request a call.
func (f *fakeDaemon) Write(request []byte) (int, error) {
	text := f.answer(strings.TrimSuffix(string(request), "\n"))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, string(request))
	text, held := strings.CutSuffix(text, hold)
	f.out, f.ended = []byte(text), !held
	f.wake.Broadcast()
	return len(request), nil
}

// Read implements io.Reader.
func (f *fakeDaemon) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.out) == 0 && !f.ended && !f.closed {
		f.wake.Wait()
	}
	switch {
	case f.closed:
		return 0, os.ErrClosed
	case len(f.out) == 0:
		return 0, io.EOF
	}
	n := copy(p, f.out)
	f.out = f.out[n:]
	return n, nil
}

// Close implements io.Closer.
func (f *fakeDaemon) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.wake.Broadcast()
	return nil
}

// asked returns the requests so far.
func (f *fakeDaemon) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// connect is a connector.
func (f *fakeDaemon) connect() (*client.Controls, error) {
	table := []*mountinfo.Info{{ID: 1, Mountpoint: "/", FSType: "ext4"}, {ID: 2, Minor: 2, Mountpoint: f.dir, FSType: mounts.Type}}
	if f.other != "" {
		table = append(table, &mountinfo.Info{ID: 3, Minor: 3, Mountpoint: f.other, FSType: mounts.Type})
	}
	return &client.Controls{
		Mounts: table,
		Open: func(path string) (io.ReadWriteCloser, error) {
			if path != filepath.Join(f.dir, ".kvfs", f.name) {
				return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
			}
			f.opened = true
			return f, nil
		},
		Setxattr: f.attrs,
	}, nil
}

// run runs a command against the daemon.
func (f *fakeDaemon) run(t *testing.T, command func(client.Connector) *cobra.Command, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := command(f.connect)
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	checkUsage(cmd)
	if f.ctx != nil {
		cmd.SetContext(f.ctx)
	}
	err = cmd.Execute()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened && !f.closed {
		t.Error("the control file is left open")
	}
	return out.String(), errs.String(), err
}

// cliCase is one command line against a daemon, and what comes of it.
type cliCase struct {
	args    string
	stdin   string
	answers []string // one after the other
	asked   []string
	out     string
	stderr  string
	err     string // begins so
	code    int
}

// checkCLI runs the cases, with a mount at /m.
func checkCLI(t *testing.T, command func(client.Connector) *cobra.Command, file string, cases []cliCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.args, func(t *testing.T) {
			answers := tc.answers
			f := newFakeDaemon("/m", file, func(string) string {
				if len(answers) == 0 {
					return ""
				}
				answer := answers[0]
				answers = answers[1:]
				return answer
			})
			out, stderr, err := f.run(t, command, tc.stdin, strings.Fields(tc.args)...)
			if out = withoutTime(out); out != tc.out || stderr != tc.stderr {
				t.Errorf("got\n%s\nand on standard error\n%s\nwant\n%s\nand\n%s", out, stderr, tc.out, tc.stderr)
			}
			var asked []string
			for _, q := range f.asked() {
				asked = append(asked, strings.TrimSpace(q))
			}
			if !slices.Equal(asked, tc.asked) {
				t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(tc.asked, "\n"))
			}
			switch {
			case (err == nil) != (tc.code == 0), err != nil && exit.Code(err) != tc.code:
				t.Errorf("got error %v, want %q with code %d", err, tc.err, tc.code)
			case err != nil && !strings.HasPrefix(fmt.Sprint(err), tc.err):
				t.Errorf("got error %q, want %q", err, tc.err)
			}
		})
	}
}

// TestNoNames shows that an empty list is nothing to do, successfully, which each command says in
// one line, and that the daemon is not asked; with --json there is an answer all the same (C18).
func TestNoNames(t *testing.T) {
	const said = "standard input has no names: nothing to do\n"
	for _, tc := range []struct {
		command     func(client.Connector) *cobra.Command
		args        string
		json        string // the answer
		wrong, want string // arguments that are refused all the same, and why
	}{
		{newEvictCommand, "--tier memory -", `{"tier":"memory","blocks":0,"bytes":0,"kept_total":0,"kept":[]}`, "-", "--tier is missing"},
		{newPinCommand, "-", `{"changed":0,"failed":0}`, "", "no blocks are named"},
		{newUnpinCommand, "-", `{"changed":0,"failed":0}`, "", "no blocks are named"},
		{newTTLCommand, "10m -", `{"changed":0,"failed":0}`, "10x -", `"10x" is not a duration`},
		{newPrefetchCommand, "-", `{"results":"","done":0,"total":0,"bytes":0,"in_memory":0,"loaded":0,"absent":0,"pending":0,"failed":0,"errors":[]}`,
			"--mount /m/g -", "/m/g is not a kvfs mount"},
		{newWhyCommand, "-", "", "", "no blocks are named"},
		{newLookupCommand, "-", `{"op":"exists","states":"","hits":0,"pending":0,"late":0,"misses":0,"prefix":0}`, "--mount /m/g -", "/m/g is not a kvfs mount"},
		{newLookupCommand, "--mount /m --spec gemma -", `{"op":"longest_hit","hit_tokens":0,"capped":false,"pending":0,"late":0,"groups":[]}`,
			"--mount /proc --spec gemma -", "/proc is not in a kvfs mount"},
	} {
		for _, in := range []struct{ flags, stdin string }{{"", ""}, {"", "\n\n"}, {"-0 ", "\x00\x00"}, {"--json ", ""}} {
			args := in.flags + tc.args
			f := newFakeDaemon("/m", "none", nil)
			out, stderr, err := f.run(t, tc.command, in.stdin, strings.Fields(args)...)
			want := ""
			if in.flags == "--json " {
				want = tc.json
			}
			var flat bytes.Buffer
			if out != "" {
				if err := json.Compact(&flat, []byte(out)); err != nil {
					t.Errorf("%s: %v", out, err)
				}
			}
			if got := strings.TrimSpace(flat.String()); got != want || stderr != said || err != nil {
				t.Errorf("%s %q: got %q, %q, %v", args, in.stdin, got, stderr, err)
			}
		}
		f := newFakeDaemon("/m", "none", nil)
		if _, _, err := f.run(t, tc.command, "", strings.Fields(tc.wrong)...); err == nil || !strings.HasPrefix(fmt.Sprint(err), tc.want) {
			t.Errorf("%q: got error %v, want %q", tc.wrong, err, tc.want)
		}
	}
}

// TestOnlyMount shows that commands about a mount need no argument if there is one mount, and name the mounts if there
// are several; and that a shell can complete them.
func TestOnlyMount(t *testing.T) {
	dir := statusDir(t, `{"schema": 2, "mount": {"dir": "/mnt/kv"}, "secondaries": [{"name": "disk", "durable": true}]}`)
	must(t, os.WriteFile(filepath.Join(dir, ".kvfs/members"), []byte(membersExample), 0o600))
	for _, tc := range []struct {
		command           func(client.Connector) *cobra.Command
		file, args, stdin string
		asked, out        string // out: in the output
	}{
		{newStatusCommand, "status", "", "", "", "mount       /mnt/kv"},
		{newMembersCommand, "members", "", "", "", "following"},
		{newStatsCommand, "", "-i 10ms -n 1", "", "", "ssd used"},
		{newDuCommand, "", "", "", "", "total"},
		{newEventsCommand, "events", "-n 1", "", "{}", "stored"},
		{newSpecsCommand, "specs", "", "", "{}", "no specs"},
		{newSpecsCommand, "specs", "set s -", "{}", `{"set":{"s":{}}}`, ""},
		{newSpecsCommand, "specs", "remove s", "", `{"remove":["s"]}`, ""},
		{newDrainCommand, "drain", "", "", "{}", ""},
		{newFlushCommand, "", "", "", "", ""},
		{newEvictCommand, "evict", "--tier memory --all", "", `{"tier":"memory","all":true}`, "evicted"},
	} {
		f := newFakeDaemon(dir, tc.file, func(string) string {
			if tc.file == "events" {
				return `{"event":"stored","group":"g","hash":"h"}` + "\n" + hold
			}
			return `{"specs":{"s":{}}}`
		})
		if tc.args == "" && tc.file == "specs" {
			f.answer = func(string) string { return `{"specs":{}}` }
		}
		out, _, err := f.run(t, tc.command, tc.stdin, strings.Fields(tc.args)...)
		if asked := strings.Join(f.asked(), ""); err != nil || !strings.Contains(out, tc.out) || strings.TrimSpace(asked) != tc.asked {
			t.Errorf("%s %s: got %q, %v, asked %q", tc.command(f.connect).Name(), tc.args, out, err, asked)
		}
		f.other = "/other"
		_, _, err = f.run(t, tc.command, tc.stdin, strings.Fields(tc.args)...)
		if want := "there are 2 kvfs mounts; name one of them: /other, " + dir; fmt.Sprint(err) != want || exit.Code(err) != exit.Usage {
			t.Errorf("%s %s: got error %v, want %s", tc.command(f.connect).Name(), tc.args, err, want)
		}
	}
	f := newFakeDaemon("/m", "", nil)
	f.other = "/n"
	complete := complete.MountArg(f.connect)
	for begun, want := range map[string][]string{"": {"/m", "/n"}, "/n": {"/n"}, "x": nil} {
		if got, _ := complete(nil, nil, begun); !slices.Equal(got, want) {
			t.Errorf("completion of %q: got %q, want %q", begun, got, want)
		}
	}
	if got, _ := complete(nil, []string{"/m"}, ""); got != nil {
		t.Errorf("completion of a second argument: got %q", got)
	}
}

// TestControlUsage pins what is wrong usage of the commands that talk to a daemon,
// and what is not a mount.
func TestControlUsage(t *testing.T) {
	plain := t.TempDir()
	for _, tc := range []struct {
		args string
		code int
		err  string
	}{
		{"lookup", exit.Usage, "no blocks are named: give PATH, or - to read names from standard input (see kvfs lookup --help)"},
		{"lookup --group g a", exit.Usage, "--group is for hashes: give --mount, too (see kvfs lookup --help)"},
		{"lookup --mount m --ranks 0 a", exit.Usage, "--ranks: 0 is less than 1 (see kvfs lookup --help)"},
		{"lookup --spec s a", exit.Usage, "--spec is for hashes: give --mount, too (see kvfs lookup --help)"},
		{"lookup --mount m --spec @ a", exit.Usage, "--spec needs a name, or @ and a file (see kvfs lookup --help)"},
		{"lookup --mount m --spec s --group g a", exit.Usage, "--group and --spec exclude each other: a spec has the names of its groups (see kvfs lookup --help)"},
		{"lookup --mount m --cached 1 a", exit.Usage, "--num-tokens and --cached need --spec (see kvfs lookup --help)"},
		{"lookup --mount m --spec s --num-tokens -1 a", exit.Usage, "a number of tokens cannot be negative (see kvfs lookup --help)"},
		{"lookup --deadline -1s a", exit.Usage, "--deadline: -1s is negative (see kvfs lookup --help)"},
		{"lookup --request \xff a", exit.Usage, "--request: \"\\xff\" is not UTF-8 (see kvfs lookup --help)"},
		{"ttl", exit.Usage, "DURATION is missing: give it before the blocks (see kvfs ttl --help)"},
		{"ttl 10m", exit.Usage, "no blocks are named: give PATH, or - to read names from standard input (see kvfs ttl --help)"},
		{"ttl soon a", exit.Usage, "\"soon\" is not a duration: want for example 10m, 1h30m, or a number of seconds (see kvfs ttl --help)"},
		{"ttl -- -1s a", exit.Usage, "-1s: a time to live cannot be negative (see kvfs ttl --help)"},
		{"events a b", exit.Usage, "accepts at most 1 arg(s), received 2 (see kvfs events --help)"},
		{"events --since -1 m", exit.Usage, "invalid argument \"-1\" for \"--since\" flag: strconv.ParseUint: parsing \"-1\": invalid syntax (see kvfs events --help)"},
		{"events --group \xff m", exit.Usage, "--group: \"\\xff\" is not UTF-8: the daemon cannot be asked for it (see kvfs events --help)"},
		{"specs check", exit.Usage, "check needs one FILE, got 0 (see kvfs specs --help)"},
		{"specs set a", exit.Usage, "set needs NAME and FILE, got 1 (see kvfs specs --help)"},
		{"specs m remove", exit.Usage, "remove needs one NAME, got 0 (see kvfs specs --help)"},
		{"specs m remove \xff", exit.Usage, "the name \"\\xff\" is not UTF-8 (see kvfs specs --help)"},
		{"specs m get", exit.Usage, "\"get\": want set or remove (see kvfs specs --help)"},

		{"lookup " + plain + "/a", exit.NotMount, plain + "/a is not in a kvfs mount"},
		{"lookup --mount " + plain + " a", exit.NotMount, plain + " is not in a kvfs mount"},
		{"prefetch " + plain, exit.NotMount, plain + " is not in a kvfs mount"},
	} {
		code, stdout, stderr := runCLI(strings.Fields(tc.args)...)
		if code != tc.code || stderr != "kvfs: "+tc.err+"\n" || stdout != "" {
			t.Errorf("%s: got code %d, %q and %q; want %d, %q", tc.args, code, stderr, stdout, tc.code, tc.err)
		}
	}
}
