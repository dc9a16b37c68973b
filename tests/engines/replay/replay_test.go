package replay

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// TestContent shows that Check takes what Fill makes, in all sizes, and finds
// each byte that is wrong, a page that is at another's place, and a block that
// has another's bytes.
func TestContent(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 4095, 4096, 4097, 3*4096 + 5, 1 << 20} {
		p := make([]byte, n)
		Fill(p, "a")
		if err := Check(p, "a"); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if n > 0 && Check(p, "b") == nil {
			t.Errorf("%d bytes of a pass for b", n)
		}
		for _, at := range []int{0, n / 2, n - 1} {
			if n == 0 {
				break
			}
			p[at] ^= 1
			if Check(p, "a") == nil {
				t.Errorf("%d bytes: byte %d is wrong, and passes", n, at)
			}
			p[at] ^= 1
		}
	}
	p := make([]byte, 3*pageBytes)
	Fill(p, "a")
	copy(p[pageBytes:], p[2*pageBytes:])
	if Check(p, "a") == nil {
		t.Error("the third page passes for the second")
	}
}

// fake is an engine in memory that can be made to err.
type fake struct {
	mu     sync.Mutex
	blocks map[string][]byte
	wrong  bool  // a load gives a wrong byte
	fail   error // of each load
}

func (f *fake) Lookup(b Block) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blocks[b.Name()] != nil
}

func (f *fake) Load(b Block, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	copy(p, f.blocks[b.Name()])
	if f.wrong {
		p[len(p)-1] ^= 1
	}
	return f.fail
}

func (f *fake) Store(b Block, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks[b.Name()] = append([]byte(nil), p...)
	return nil
}

// TestChat shows what a chat counts: all blocks once stored and each turn's
// history loaded; wrong bytes and errors as failures; misses at the load as such.
func TestChat(t *testing.T) {
	c := Chat{Seed: 1, Conversations: 10, Turns: 3, Concurrent: 4, TurnBlocks: 2, BlockBytes: 5000, HeadBytes: 100, Groups: 2}
	for _, q := range []struct {
		name  string
		wrong bool
		fail  error
		want  string // of the second time: loaded, broken, failed
	}{
		{"good", false, nil, "120 0 0"},
		{"wrong byte", true, nil, "10 0 10"},
		{"error", false, os.ErrInvalid, "0 0 10"},
		{"gone", false, fmt.Errorf("%w: gone", ErrMiss), "0 10 0"},
	} {
		f := &fake{blocks: map[string][]byte{}}
		engine := func(int) Engine { return f }
		first := c.Run(engine)
		if first.Failed != 0 || first.Stored != c.Blocks() || first.StoredBytes != c.Bytes() ||
			first.Loaded != 10*(4+8) {
			t.Errorf("%s: the first time: %+v", q.name, first)
		}
		f.wrong, f.fail = q.wrong, q.fail
		tally := c.Last().Run(engine)
		if got := fmt.Sprint(tally.Loaded, tally.Broken, tally.Failed); got != q.want {
			t.Errorf("%s: got %s, want %s: %+v", q.name, got, q.want, tally)
		}
		if tally.Failed > 0 && (len(tally.Errors) == 0 || len(tally.Errors) > maxErrors) {
			t.Errorf("%s: %d errors told", q.name, len(tally.Errors))
		}
	}
}

// TestSameSeed shows that a chat follows from its seed.
func TestSameSeed(t *testing.T) {
	c := Chat{Seed: 7, Turns: 2, TurnBlocks: 2, SharedBlocks: 1, BlockBytes: 1}
	a, b := fmt.Sprint(c.Prompt(3, 1)), fmt.Sprint(c.Prompt(3, 1))
	other := c
	other.Seed++
	if a != b || a == fmt.Sprint(c.Prompt(4, 1)) || a == fmt.Sprint(other.Prompt(3, 1)) {
		t.Error("prompts do not follow from seed and conversation")
	}
	if !strings.HasPrefix(a, strings.TrimSuffix(fmt.Sprint(c.Prompt(3, 0)), "]")) {
		t.Error("a turn does not go on from the one before")
	}
	if c.Prompt(3, 0)[0] != c.Prompt(4, 0)[0] {
		t.Error("the shared blocks are not shared")
	}
}

// TestErrors shows what counts as the end of the daemon.
func TestErrors(t *testing.T) {
	if _, err := Open("/nonexistent", os.O_RDONLY, 0); !dead(err) {
		t.Errorf("%v is not one", err)
	}
	if dead(errors.New("x")) {
		t.Error("any error is one")
	}
}
