package tiertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

const (
	// mutantVariable names the mutant on which TestMutant runs the suite.
	mutantVariable = "KVFS_TEST_MUTANT"
	// timeoutVariable is how long a mutant may hang, as a duration.
	timeoutVariable = "KVFS_TEST_MUTANT_TIMEOUT"
)

// mutant is a Reference with a bug. A nil function leaves the method as it is.
type mutant struct {
	*Reference
	bug mutantBug
}

// mutantBug replaces methods of a Reference.
type mutantBug struct {
	store  func(r *Reference, job *driver.Job)
	load   func(r *Reference, job *driver.Job)
	lookup func(r *Reference, keys []block.Key, out []driver.Presence) error
	remove func(r *Reference, keys []block.Key) int
	touch  func(r *Reference, keys []block.Key)
	close  func(r *Reference, ctx context.Context) error
	blocks func(r *Reference, fn func(*driver.Held) bool) error
	host   func(r *Reference, host driver.Host) driver.Host // may return nil: it is not set
	update func(r *Reference, from, to block.Key, a *driver.Attrs) bool
	sync   func(r *Reference, done func(error))
	find   func(r *Reference, path string) (driver.Located, bool)
}

func (m mutant) Store(job *driver.Job) {
	if m.bug.store != nil {
		m.bug.store(m.Reference, job)
		return
	}
	m.Reference.Store(job)
}

func (m mutant) Load(job *driver.Job) {
	if m.bug.load != nil {
		m.bug.load(m.Reference, job)
		return
	}
	m.Reference.Load(job)
}

func (m mutant) Lookup(ctx context.Context, keys []block.Key, out []driver.Presence) error {
	if m.bug.lookup != nil {
		return m.bug.lookup(m.Reference, keys, out)
	}
	return m.Reference.Lookup(ctx, keys, out)
}

func (m mutant) Remove(keys []block.Key) int {
	if m.bug.remove != nil {
		return m.bug.remove(m.Reference, keys)
	}
	return m.Reference.Remove(keys)
}

func (m mutant) Touch(keys []block.Key) {
	if m.bug.touch != nil {
		m.bug.touch(m.Reference, keys)
		return
	}
	m.Reference.Touch(keys)
}

func (m mutant) Close(ctx context.Context) error {
	if m.bug.close != nil {
		return m.bug.close(m.Reference, ctx)
	}
	return m.Reference.Close(ctx)
}

func (m mutant) SetHost(host driver.Host) {
	if m.bug.host != nil {
		host = m.bug.host(m.Reference, host)
	}
	m.Reference.SetHost(host)
}

func (m mutant) Update(from, to block.Key, a *driver.Attrs) bool {
	if m.bug.update != nil {
		return m.bug.update(m.Reference, from, to, a)
	}
	return m.Reference.Update(from, to, a)
}

func (m mutant) Sync(done func(error)) {
	if m.bug.sync != nil {
		m.bug.sync(m.Reference, done)
		return
	}
	m.Reference.Sync(done)
}

func (m mutant) Blocks(fn func(*driver.Held) bool) error {
	if m.bug.blocks != nil {
		return m.bug.blocks(m.Reference, fn)
	}
	return m.Reference.Blocks(fn)
}

func (m mutant) Find(path string) (driver.Located, bool) {
	if m.bug.find != nil {
		return m.bug.find(m.Reference, path)
	}
	return m.Reference.find(path)
}

// TestMutant runs the suite on the mutant in the environment; "none" is the Reference.
// TestSuiteCatches runs it in separate processes.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip(mutantVariable + " is not set")
	}
	opts := suite.Options{LRU: true}
	latency := 50 * time.Microsecond
	var bug mutantBug
	for _, m := range slices.Concat(mutants, ruleMutants) {
		if m.name != name {
			continue
		}
		bug = m.bug()
		if slices.Contains([]string{noResult, fromWithin, notDone, notLost, notOffline, notGone}, m.wantText) {
			opts.Timeout = hangTimeout(t) // it will hang
		}
	}
	if slices.Contains([]string{"pending is a miss", "close loses the queue", "pending loads as absent",
		"remove overtaken by a store", "update overtaken by a store", "removed store says it is held", "found while pending"}, name) {
		latency = hangTimeout(t) / 60 // so that jobs are under way at the right time, also on a slow machine
	}
	opts.Corrupt = func(t *testing.T, tier driver.Tier, key block.Key) {
		if n := tier.(mutant).Reference.Corrupt(key); n != 1 {
			t.Errorf("Corrupt %v: got %d, want 1", key, n)
		}
	}
	opts.Offline = func(_ *testing.T, tier driver.Tier) {
		tier.(mutant).Fail(errors.New("device pulled"))
	}
	opts.Reopen = func(t *testing.T, old driver.Tier) driver.Tier {
		if err := old.Close(t.Context()); err != nil {
			t.Error(err)
		}
		return mutant{crashed(t, old.(mutant).Reference), bug}
	}
	opts.Crash = func(t *testing.T, old driver.Tier) driver.Tier {
		return mutant{crashed(t, old.(mutant).Reference), bug}
	}
	opts.Budgeted = func(t *testing.T) driver.Tier {
		return mutant{opened(t, ReferenceOptions{BudgetBytes: 20000, Latency: latency}), bug}
	}
	opts.Small = func(t *testing.T) driver.Tier {
		return mutant{opened(t, ReferenceOptions{CapacityBytes: 8 * 4096, Latency: latency}), bug}
	}
	suite.Run(t, func(t *testing.T) driver.Tier {
		return mutant{opened(t, ReferenceOptions{Latency: latency}), bug}
	}, opts)
}

// opened opens a tier that the suite closes.
func opened(t *testing.T, opts ReferenceOptions) *Reference {
	t.Helper()
	r, err := OpenReference(opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// crashed opens a tier with what outlives a power cut of old, if old is not closed.
func crashed(t *testing.T, old *Reference) *Reference {
	t.Helper()
	r, err := old.Reopen()
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return r
}

// TestSuiteCatches shows that the suite detects each mutant in the right case and for the right
// reason, and that the original tier passes (A34).
func TestSuiteCatches(t *testing.T) {
	if os.Getenv(mutantVariable) != "" {
		t.Skip("a mutant is running")
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if out, err := runMutant(t, "none", ".*", "1m"); err != nil {
			t.Errorf("got %v, want success:\n%s", err, out)
		}
	})
	for _, m := range slices.Concat(mutants, ruleMutants) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			var complaint string
			for _, timeout := range []string{"300ms", "20s"} { // the second if the machine is slow
				if complaint = checkMutant(t, m, timeout); complaint == "" {
					return
				}
			}
			t.Error(complaint)
		})
	}
}

// checkMutant runs a mutant, which may hang for timeout, and says how the suite failed to detect
// it.
func checkMutant(t *testing.T, m mutantRow, timeout string) (complaint string) {
	t.Helper()
	out, err := runMutant(t, m.name, m.wantCase, timeout)
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case !ok || exit.ExitCode() != 1:
		return fmt.Sprintf("case %s: got %v, want a failed test:\n%s", m.wantCase, err, out)
	case !strings.Contains(out, "--- FAIL: TestMutant/"+m.wantCase):
		return fmt.Sprintf("case %s did not fail:\n%s", m.wantCase, out)
	case !strings.Contains(out, m.wantText):
		return fmt.Sprintf("case %s failed, but not with %q:\n%s", m.wantCase, m.wantText, out)
	}
	return ""
}

// hangTimeout is how long a mutant may hang.
func hangTimeout(t *testing.T) time.Duration {
	t.Helper()
	timeout, err := time.ParseDuration(os.Getenv(timeoutVariable))
	if err != nil {
		t.Fatalf("%s: %v", timeoutVariable, err)
	}
	return timeout
}

// runMutant runs one case of the suite on one mutant, in another process.
func runMutant(t *testing.T, name, suiteCase, timeout string) (output string, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if suiteCase != ".*" {
		suiteCase = "^" + regexp.QuoteMeta(suiteCase) + "$"
	}
	cmd := exec.CommandContext(t.Context(), self,
		"-test.run=^TestMutant$/"+suiteCase, "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), mutantVariable+"="+name, timeoutVariable+"="+timeout)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
