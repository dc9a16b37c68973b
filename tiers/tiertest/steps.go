package tiertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// Step is one step of a random sequence: a kind, and numbers that choose what the kind does. A sequence from which steps
// are taken away is one, too: a step that does not fit does nothing.
type Step struct {
	Kind    int
	A, B, N uint32
}

// RunSteps plays sequences of so many random steps, of kinds that have these names. play makes a new world and the steps.
// It returns how many it made, and what is wrong then. Of a sequence that fails RunSteps logs the few steps that matter.
// KVFS_TEST_SEED repeats a run.
func RunSteps(t *testing.T, sequences, steps int, kinds []string, play func(steps []Step) (n int, err error)) {
	t.Helper()
	seed := Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range sequences {
		list := make([]Step, steps)
		for i := range list {
			list[i] = Step{rng.IntN(len(kinds)), rng.Uint32(), rng.Uint32(), rng.Uint32()}
		}
		_, err := caught(play, list)
		if err == nil {
			continue
		}
		list = shrink(list, play)
		if _, again := caught(play, list); again != nil {
			err = again
		}
		for _, s := range list {
			t.Logf("%s %d %d %d", kinds[s.Kind], s.A, s.B, s.N)
		}
		t.Fatalf("KVFS_TEST_SEED=%d: after these %d steps: %v", seed, len(list), err)
	}
}

// Seed returns the seed of a random test, and logs it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("KVFS_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("KVFS_TEST_SEED=%d", seed)
	return seed
}

// caught is play with an error for a panic.
func caught(play func([]Step) (int, error), list []Step) (n int, err error) {
	n = len(list)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return play(list)
}

// shrink takes away steps of a sequence that fails for as long as it fails.
func shrink(list []Step, play func([]Step) (int, error)) []Step {
	n, err := caught(play, list)
	if err == nil { // it fails by chance
		return list
	}
	list = list[:n]
	for size := len(list) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(list); {
			less := slices.Delete(slices.Clone(list), i, i+size)
			if n, err := caught(play, less); err != nil {
				list = less[:n]
			} else {
				i += size
			}
		}
	}
	return list
}
