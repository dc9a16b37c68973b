package tiertest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// mutantVariable makes TestMutant run the suite on the mutant that it names.
const mutantVariable = "KVFS_TEST_MUTANT"

// mutant is a Reference with a bug. A nil function leaves the method as it is.
type mutant struct {
	*Reference
	bug mutantBug
}

// mutantBug replaces methods of a Reference.
type mutantBug struct {
	store  func(r *Reference, job *tiers.Job)
	load   func(r *Reference, job *tiers.Job)
	lookup func(r *Reference, keys []block.Key, out []tiers.Presence) error
	remove func(r *Reference, keys []block.Key) int
	touch  func(r *Reference, keys []block.Key)
	close  func(r *Reference, ctx context.Context) error
	blocks func(r *Reference, fn func(block.Key, int64, block.Checksum) bool) error
}

func (m mutant) Store(job *tiers.Job) {
	if m.bug.store != nil {
		m.bug.store(m.Reference, job)
		return
	}
	m.Reference.Store(job)
}

func (m mutant) Load(job *tiers.Job) {
	if m.bug.load != nil {
		m.bug.load(m.Reference, job)
		return
	}
	m.Reference.Load(job)
}

func (m mutant) Lookup(ctx context.Context, keys []block.Key, out []tiers.Presence) error {
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

func (m mutant) Blocks(fn func(block.Key, int64, block.Checksum) bool) error {
	if m.bug.blocks != nil {
		return m.bug.blocks(m.Reference, fn)
	}
	return m.Reference.Blocks(fn)
}

// TestMutant runs the suite on the mutant that the environment names, "none" being
// the Reference; TestSuiteCatches runs it in processes of their own.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip(mutantVariable + " is not set")
	}
	opts := Options{LRU: true}
	latency := 50 * time.Microsecond
	var bug mutantBug
	for _, m := range mutants {
		if m.name != name {
			continue
		}
		bug = m.bug()
		if m.wantText == noResult || m.wantText == fromWithin {
			opts.Timeout = 300 * time.Millisecond // it will hang
		}
	}
	if name == "pending is a miss" || name == "close loses the queue" {
		latency = 5 * time.Millisecond // so that jobs are under way when it matters
	}
	opts.Small = func(t *testing.T) tiers.Tier {
		return mutant{openReference(t, ReferenceOptions{CapacityBytes: 8 * 4096, Latency: latency}), bug}
	}
	Run(t, func(t *testing.T) tiers.Tier {
		return mutant{openReference(t, ReferenceOptions{Latency: latency}), bug}
	}, opts)
}

// TestSuiteCatches shows that the suite notices each mutant, in the case that is
// for it and for the right reason, and that it passes the tier they are made of.
func TestSuiteCatches(t *testing.T) {
	if os.Getenv(mutantVariable) != "" {
		t.Skip("a mutant is running")
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if out, err := runMutant(t, "none", ".*"); err != nil {
			t.Errorf("got %v, want success:\n%s", err, out)
		}
	})
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			out, err := runMutant(t, m.name, m.wantCase)
			exit, ok := errors.AsType[*exec.ExitError](err)
			switch {
			case !ok || exit.ExitCode() != 1:
				t.Errorf("case %s: got %v, want a failed test:\n%s", m.wantCase, err, out)
			case !strings.Contains(out, "--- FAIL: TestMutant/"+m.wantCase):
				t.Errorf("case %s did not fail:\n%s", m.wantCase, out)
			case !strings.Contains(out, m.wantText):
				t.Errorf("case %s failed, but not with %q:\n%s", m.wantCase, m.wantText, out)
			}
		})
	}
}

// runMutant runs one case of the suite on one mutant, in another process.
func runMutant(t *testing.T, name, suiteCase string) (output string, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if suiteCase != ".*" {
		suiteCase = "^" + regexp.QuoteMeta(suiteCase) + "$"
	}
	cmd := exec.CommandContext(t.Context(), self,
		"-test.run=^TestMutant$/"+suiteCase, "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), mutantVariable+"="+name)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
