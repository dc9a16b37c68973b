package replay

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// ErrMiss says that a block is not there, and that the engine goes on without.
var ErrMiss = errors.New("miss")

// Block is one block of a prompt.
type Block struct {
	Hash  string // 64 hexadecimal digits
	Group int    // of layers
	Size  int
}

// Name is what the contents of the block follow from.
func (b Block) Name() string { return fmt.Sprintf("%s/%d", b.Hash, b.Group) }

// Engine is what one worker of an engine does with blocks.
type Engine interface {
	// Lookup reports whether the block is there, as far as the engine knows.
	Lookup(b Block) bool
	// Load fills p with the block. An error that wraps ErrMiss makes the
	// engine compute it; any other is a failure.
	Load(b Block, p []byte) error
	// Store stores p. An error is a failure.
	Store(b Block, p []byte) error
}

// Chat is a number of conversations.
type Chat struct {
	Seed          uint64
	Conversations int
	First, Turns  int // the turns from First to Turns, exclusively
	Concurrent    int // workers
	TurnBlocks    int // that each turn adds
	SharedBlocks  int // with which all conversations begin
	BlockBytes    int
	HeadBytes     int // of the first block of each conversation; 0: BlockBytes
	Groups        int // of layers; 0: one

	// Down says that the daemon may go away meanwhile: operations that fail
	// as those of a dead mount do are counted apart.
	Down bool
}

// Seed returns the seed of this run and prints it.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("KVFS_TEST_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			tb.Fatalf("KVFS_TEST_SEED: %v", err)
		}
	}
	tb.Logf("KVFS_TEST_SEED=%d", seed)
	return seed
}

// Scale returns n, or half of it under the race detector, which makes everything
// several times as slow.
func Scale(n int) int {
	if harness.RaceEnabled {
		return n / 2
	}
	return n
}

// Last returns the chat that looks at the whole of each conversation once more.
func (c Chat) Last() Chat {
	c.First = c.Turns - 1
	return c
}

// Prompt returns the blocks of a conversation up to the end of a turn, those of
// all groups next to each other.
func (c Chat) Prompt(conversation, turn int) []Block {
	var blocks []Block
	for i := range c.SharedBlocks + (turn+1)*c.TurnBlocks {
		in, size := conversation, c.BlockBytes
		if i < c.SharedBlocks {
			in = -1
		}
		if i == 0 && c.HeadBytes > 0 {
			size = c.HeadBytes
		}
		var id [24]byte
		binary.LittleEndian.PutUint64(id[:], c.Seed)
		binary.LittleEndian.PutUint64(id[8:], uint64(in))
		binary.LittleEndian.PutUint64(id[16:], uint64(i))
		hash := fmt.Sprintf("%x", sha256.Sum256(id[:]))
		for g := range max(c.Groups, 1) {
			blocks = append(blocks, Block{hash, g, size})
		}
	}
	return blocks
}

// Blocks returns how many different blocks the chat has.
func (c Chat) Blocks() int {
	return max(c.Groups, 1) * (c.SharedBlocks + c.Conversations*c.Turns*c.TurnBlocks)
}

// Bytes returns how many bytes these are.
func (c Chat) Bytes() int64 {
	n := int64(c.Blocks()) * int64(c.BlockBytes)
	heads := c.Conversations
	if c.SharedBlocks > 0 {
		heads = 1
	}
	if c.HeadBytes > 0 {
		n -= int64(max(c.Groups, 1)) * int64(heads) * int64(c.BlockBytes-c.HeadBytes)
	}
	return n
}

// Tally is what came of a chat.
type Tally struct {
	Turns                    int
	Hits, Misses             int // looked up. A prompt is looked up to its first miss.
	Loaded, Stored           int
	LoadedBytes, StoredBytes int64
	Broken                   int // looked up with success, and then not there
	Down                     int // failed because there was no daemon
	Failed                   int
	Errors                   []string // of the first failures
}

// Run holds the conversations: all of them turn by turn, in an order that
// differs from turn to turn, so that much happens between two turns of one.
// Engine is called once for each worker.
func (c Chat) Run(engine func(worker int) Engine) Tally {
	rng := rand.New(rand.NewPCG(c.Seed, uint64(c.First)))
	engines := make([]Engine, c.Concurrent)
	for i := range engines {
		engines[i] = engine(i)
	}
	var mu sync.Mutex
	var sum Tally
	for turn := c.First; turn < c.Turns; turn++ {
		order := make(chan int, c.Conversations)
		for _, conversation := range rng.Perm(c.Conversations) {
			order <- conversation
		}
		close(order)
		var wg sync.WaitGroup
		for _, e := range engines {
			wg.Go(func() { // ends with the turn
				w := worker{chat: c, engine: e, buf: Buffer(max(c.BlockBytes, c.HeadBytes))}
				for conversation := range order {
					w.turn(c.Prompt(conversation, turn))
				}
				mu.Lock()
				defer mu.Unlock()
				sum.add(w.tally)
			})
		}
		wg.Wait()
	}
	return sum
}

// worker is one worker of a run.
type worker struct {
	chat   Chat
	engine Engine
	buf    []byte
	tally  Tally
}

// turn looks up a prompt, loads what is there, and computes and stores the rest.
func (w *worker) turn(prompt []Block) {
	w.tally.Turns++
	hits := 0
	for hits < len(prompt) && w.engine.Lookup(prompt[hits]) {
		hits++
	}
	w.tally.Hits += hits
	w.tally.Misses += len(prompt) - hits
	loaded := 0
	for loaded < hits && w.load(prompt[loaded]) {
		loaded++
	}
	for _, b := range prompt[loaded:] {
		w.store(b)
	}
}

func (w *worker) load(b Block) bool {
	p := w.buf[:b.Size]
	clear(p[:min(len(p), stampBytes)])
	err := w.engine.Load(b, p)
	switch {
	case err == nil:
		err = Check(p, b.Name())
		w.fail("load", b, err)
		w.tally.Loaded++
		w.tally.LoadedBytes += int64(b.Size)
		return err == nil
	case errors.Is(err, ErrMiss):
		w.tally.Broken++
	default:
		w.fail("load", b, err)
	}
	return false
}

func (w *worker) store(b Block) {
	p := w.buf[:b.Size]
	Fill(p, b.Name())
	if err := w.engine.Store(b, p); err != nil {
		w.fail("store", b, err)
		return
	}
	w.tally.Stored++
	w.tally.StoredBytes += int64(b.Size)
}

func (w *worker) fail(op string, b Block, err error) {
	if err == nil {
		return
	}
	if w.chat.Down && dead(err) {
		w.tally.Down++
		return
	}
	w.tally.failed(fmt.Sprintf("%s %s: %v", op, b.Name(), err))
}

// dead reports whether err is one of a mount whose daemon is gone or goes away
// just now, in the middle of a read or write too, or of the directory below it,
// in which an engine can do nothing, or of a temporary file that was written
// before. EEXIST is for one that the engine could not remove, as the daemon was
// gone: the next daemon has it still, and the engine removes it now.
func dead(err error) bool {
	for _, e := range []error{
		unix.ENOTCONN, unix.ECONNABORTED, unix.EACCES, unix.ENOENT, unix.EEXIST, io.ErrShortWrite, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

const maxErrors = 10

func (t *Tally) failed(text string) {
	t.Failed++
	if len(t.Errors) < maxErrors {
		t.Errors = append(t.Errors, text)
	}
}

func (t *Tally) add(u Tally) {
	t.Turns += u.Turns
	t.Hits += u.Hits
	t.Misses += u.Misses
	t.Loaded += u.Loaded
	t.Stored += u.Stored
	t.LoadedBytes += u.LoadedBytes
	t.StoredBytes += u.StoredBytes
	t.Broken += u.Broken
	t.Down += u.Down
	t.Failed += u.Failed
	t.Errors = append(t.Errors, u.Errors...)
	t.Errors = t.Errors[:min(len(t.Errors), maxErrors)]
}

// Want prints the tally and fails the test if anything failed. Unless gone is
// allowed, a block that was looked up must have been there to load.
func (t Tally) Want(tb testing.TB, what string, goneAllowed bool) {
	tb.Helper()
	tb.Logf("%s: %d turns, %d hits, %d misses, loaded %d blocks (%d MiB), stored %d (%d MiB), gone after the look-up %d, without a daemon %d, failed %d",
		what, t.Turns, t.Hits, t.Misses, t.Loaded, t.LoadedBytes>>20, t.Stored, t.StoredBytes>>20, t.Broken, t.Down, t.Failed)
	if t.Failed > 0 {
		tb.Errorf("%s: %d failed, first %q", what, t.Failed, t.Errors)
	}
	if t.Broken > 0 && !goneAllowed {
		tb.Errorf("%s: %d blocks were gone after their look-up", what, t.Broken)
	}
}
