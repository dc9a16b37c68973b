package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
)

// Contents of blocks. Each page begins with a stamp, which names the block and
// the page, and goes on with a piece of one table of random bytes, so that
// making and comparing a block is little more than copying it.

const (
	pageBytes  = 4096
	stampBytes = 16
	tableBytes = 1 << 20
)

var table = makeTable()

func makeTable() []byte {
	src := rand.NewPCG(1, 2)
	b := make([]byte, 0, tableBytes+pageBytes)
	for len(b) < cap(b) {
		b = binary.LittleEndian.AppendUint64(b, src.Uint64())
	}
	return b
}

// Fill writes the contents of the block of that name to p.
func Fill(p []byte, name string) {
	id := identity(name)
	for page := 0; len(p) > 0; page++ {
		n := min(len(p), pageBytes)
		stamp, rest := pageOf(id, page)
		copy(p[copy(p[:n], stamp[:]):n], rest)
		p = p[n:]
	}
}

// Check returns an error unless p is what Fill writes for that name.
func Check(p []byte, name string) error {
	id := identity(name)
	for page := 0; page*pageBytes < len(p); page++ {
		got := p[page*pageBytes : min(len(p), (page+1)*pageBytes)]
		stamp, rest := pageOf(id, page)
		k := min(len(got), stampBytes)
		if !bytes.Equal(got[:k], stamp[:k]) || !bytes.Equal(got[k:], rest[:len(got)-k]) {
			return fmt.Errorf("%s: page %d of %d bytes is wrong: it begins with %x, want %x",
				name, page, len(p), got[:k], stamp[:k])
		}
	}
	return nil
}

func identity(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

func pageOf(id uint64, page int) (stamp [stampBytes]byte, rest []byte) {
	binary.LittleEndian.PutUint64(stamp[:], id)
	binary.LittleEndian.PutUint64(stamp[8:], uint64(page))
	at := (id + uint64(page)*7919) % tableBytes
	return stamp, table[at:][:pageBytes-stampBytes]
}
