package suite

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// payload is one block as the suite knows it: its key, the only bytes that a Load may give, and the
// attributes that a tier must keep.
type payload struct {
	key   block.Key
	data  []byte
	attrs driver.Attrs
}

// newPayload returns generation gen of a block. Its bytes and attributes are random,
// but the same for the same arguments; generations are versions.
func newPayload(seed uint64, key block.Key, gen int, size int64) payload {
	name := fmt.Sprintf("%d %d %d %q %q", seed, gen, size, key.Group, key.Hash)
	data := make([]byte, size)
	source := rand.NewChaCha8(sha256.Sum256([]byte(name)))
	source.Read(data)
	rng := rand.New(source)
	p := payload{key: key, data: data, attrs: driver.Attrs{
		Seq:   uint64(gen) + 1,
		Mode:  rng.Uint32N(0o1000),
		UID:   rng.Uint32(),
		GID:   rng.Uint32(),
		Mtime: rng.Int64(),
	}}
	if rng.IntN(2) == 0 {
		p.attrs.Expires = 1<<62 + rng.Int64N(1<<62) // after 2116
	}
	if rng.IntN(3) == 0 && len(key.Path()) <= plainKeyBytes {
		p.attrs.User, _ = p.attrs.User.Set("user.suite", string(data[:min(len(data), 40)]), block.SetAny)
	}
	for range strings.Count(key.Path(), "/") {
		p.attrs.Dirs = append(p.attrs.Dirs, driver.DirAttrs{
			Mode: rng.Uint32N(0o1000), UID: rng.Uint32(), GID: rng.Uint32(),
		})
	}
	return p
}

// numberedKey returns a key as engines name blocks: a group, and a hash in hex.
func numberedKey(prefix string, i int) block.Key {
	return block.Key{Group: block.GroupID(prefix), Hash: block.Hash(fmt.Sprintf("%016x", i))}
}

func keysOf(blocks []payload) []block.Key {
	keys := make([]block.Key, len(blocks))
	for i, p := range blocks {
		keys[i] = p.key
	}
	return keys
}

// contentOf returns the whole of f, however long.
func contentOf(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, info.Size())
	if n, err := f.ReadAt(data, 0); err != nil && err != io.EOF {
		return data[:n], err
	}
	return data, nil
}

// firstDifference says where got differs from want, for messages.
func firstDifference(got, want []byte) string {
	if len(got) != len(want) {
		return fmt.Sprintf("got %d bytes, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Sprintf("at byte %d of %d: got %#02x, want %#02x", i, len(got), got[i], want[i])
		}
	}
	return "none"
}
