// Package rdma runs the tests of reading a peer's memory over verbs, the RDMA of network
// cards, which this machine may not have: in a virtual machine whose kernel does RDMA in
// software.
//
//	guest   the virtual machine
//	nodes   what runs in it; here it runs over sockets, too
//
// `make test-rdma` does it. It needs no root, no RDMA hardware and no KVM, but QEMU, gcc,
// libfabric's headers and, the first time, Debian's mirror.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/rdma/guest"
)

// Limits of the run in the machine: all of it, and what it may take to print the next line.
const (
	limit   = 9 * time.Minute
	silence = 4 * time.Minute
)

// must lists what has to run in the machine: a suite that lost a part would pass, too.
var must = []string{
	"TestCaps", "TestConformance/read_sizes", "TestConformance/read_held_up",
	"TestConformance/read_stale_keys", "TestConformance/read_holder_dies", "TestRead", "TestKilled",
}

// maySkip is why a test in the machine may be skipped: the suite is for transports that have
// more, too.
var maySkip = regexp.MustCompile(`the (transport|harness) has no (Get|Cut|Stall)$`)

// tooLong names the tests that are left out in the machine. They have hundreds of reads refused. Over verbs each
// refusal costs a connection, and the machine takes a second to make the next one.
const tooLong = "^TestConformance$/^read_churn$"

// script runs the tests. Soft-RoCE allows completion queues that are smaller than libfabric
// makes them unless told so.
const script = `
export KVFS_TEST_FABRIC_PROVIDER=verbs KVFS_TEST_FABRIC_DEVICES=%s KVFS_TEST_FABRIC_ADDRESSES=%s KVFS_BIN=/kvfs
export FI_UNIVERSE_SIZE=8 FI_OFI_RXM_MSG_TX_SIZE=128 FI_OFI_RXM_MSG_RX_SIZE=128
ulimit -l unlimited
cd /tests
exec ./nodes.test -test.v -test.timeout=%s -test.skip='%s'
`

// TestVerbs shows that all tests of nodes pass over verbs: the conformance suite, holders
// that are killed or stopped, stale registrations, two daemons that read from each other.
//
// KVFS_TEST_RDMA=1: it fails if it cannot run. KVFS_TEST_RDMA=auto: then it is skipped. Else it is
// skipped anyway, as it takes minutes.
func TestVerbs(t *testing.T) {
	mode := os.Getenv("KVFS_TEST_RDMA")
	if mode == "" {
		t.Skip("runs a virtual machine for minutes: make test-rdma, or KVFS_TEST_RDMA=1")
	}
	cannot := t.Fatalf
	if mode == "auto" {
		cannot = t.Skipf
	}
	if why := guest.Lacks(); why != "" {
		cannot("%s", why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	// An interrupt ends the machine and removes what was made, too.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer stop()
	image := prepare(ctx, t, cannot)
	files := build(ctx, t)

	var r *results
	var dir string
	var code int
	var err error
	for try := range 2 {
		begin := time.Now()
		dir, r = t.TempDir(), &results{t: t, last: map[string]string{}, outcome: map[string]string{}}
		code, err = image.Run(ctx, guest.Options{
			Files:   files,
			Script:  fmt.Sprintf(script, guest.Device, strings.Join(guest.Addrs[:], ","), limit, tooLong),
			Line:    r.line,
			Silence: silence,
			Dir:     dir,
		})
		t.Logf("the virtual machine ran for %v: %v", time.Since(begin).Round(time.Second), err)
		died := errors.Is(err, guest.ErrBroken) || err == nil && code > 1 && !slices.Contains(slices.Collect(maps.Values(r.outcome)), "FAIL")
		if try > 0 || !died {
			break
		}
		t.Logf("the kernel or the program died (exit code %d), as they do now and then on emulated processors: once more", code)
	}
	if err != nil || code != 0 {
		t.Errorf("the last words of the tests:\n%s", strings.Join(r.end, "\n"))
		console, _ := os.ReadFile(filepath.Join(dir, guest.Console))
		say := t.Errorf
		if errors.Is(err, guest.ErrNotStarted) {
			say = cannot
		}
		say("in the virtual machine: exit code %d, %v; the last words of its kernel:\n%s", code, err, tail(string(console), 40))
	}
	r.check()
}

// prepare gets the image of the guest and tells what it is made of.
func prepare(ctx context.Context, t *testing.T, cannot func(string, ...any)) *guest.Image {
	begin := time.Now()
	cache, err := os.UserCacheDir()
	if err != nil {
		cannot("no place to keep the guest's image: %v", err)
	}
	image, err := guest.Prepare(ctx, filepath.Join(cache, "kvfs", "guest"))
	if err != nil {
		cannot("%v", err)
	}
	var of []string
	for _, p := range image.Packages {
		of = append(of, p.Name+" "+p.Version)
	}
	t.Logf("guest (%v): %s: %s", time.Since(begin).Round(time.Millisecond), image.Dir, strings.Join(of, ", "))
	return image
}

// build makes the programs for the guest: by their path here, the path there.
func build(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	begin, dir := time.Now(), t.TempDir()
	kvfs, tests, root := filepath.Join(dir, "kvfs"), filepath.Join(dir, "nodes.test"), filepath.Join(dir, "main.go")
	flags := []string{"-tags=giouring,ofi", "-ldflags=-checklinkname=0 -s -w"}
	for _, c := range [][]string{
		slices.Concat([]string{"build", "-o", kvfs}, flags, []string{"./cmd/kvfs"}),
		slices.Concat([]string{"test", "-c", "-o", tests}, flags, []string{"./tests/rdma/nodes"}),
	} {
		cmd := exec.CommandContext(ctx, "go", c...)
		cmd.Dir, cmd.Env = harness.Root(t), append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v\n%s", c, err, out)
		}
	}
	// The harness of the tests looks for cmd/kvfs.
	if err := os.WriteFile(root, []byte("package main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("built in %v", time.Since(begin).Round(time.Second))
	return map[string]string{kvfs: "/kvfs", tests: "/tests/nodes.test", root: "/tests/cmd/kvfs/main.go"}
}

// results collects what the tests in the machine print.
type results struct {
	t       *testing.T
	current string            // the test that prints
	last    map[string]string // the last line of each test
	end     []string          // the last lines of all
	names   []string          // of those that ended, in their order
	outcome map[string]string // PASS, FAIL or SKIP, by name
}

var (
	verdict = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	running = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +(\S+)`)
)

func (r *results) line(line string) {
	r.t.Log(line)
	r.end = append(r.end[max(0, len(r.end)-59):], line)
	if m := verdict.FindStringSubmatch(line); m != nil {
		r.names = append(r.names, m[2])
		r.outcome[m[2]] = m[1]
	} else if m := running.FindStringSubmatch(line); m != nil {
		r.current = m[1]
	} else {
		r.last[r.current] = line
	}
}

// check reports the tests in the machine as tests of its own.
func (r *results) check() {
	for _, name := range must {
		if r.outcome[name] != "PASS" {
			r.t.Errorf("%s: %q, want it to have passed", name, r.outcome[name])
		}
	}
	for _, name := range r.names {
		if slices.ContainsFunc(r.names, func(s string) bool { return strings.HasPrefix(s, name+"/") }) {
			continue // its parts are reported
		}
		switch last := r.last[name]; {
		case r.outcome[name] == "SKIP" && maySkip.MatchString(last):
		case r.outcome[name] == "PASS":
			r.t.Run(name, func(*testing.T) {})
		default:
			r.t.Run(name, func(t *testing.T) {
				t.Errorf("%s in the virtual machine: %s", r.outcome[name], strings.TrimSpace(last))
			})
		}
	}
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
