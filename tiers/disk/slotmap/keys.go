package slotmap

import (
	"encoding/binary"

	"github.com/kvfs/kvfs/tiers/disk/format"
)

// keyArena holds the keys of all blocks, in chunks without pointers. Freed keys are kept in lists
// by length, chained through the freed bytes.
//
// A reference counts units of keyUnit bytes, so 32 bits reach 32 GiB. Reference 0 means no key.
type keyArena struct {
	chunks []*[keyChunk]byte
	next   uint32 // first unit never handed out
	free   [format.MaxKeyBytes/keyUnit + 2]uint32
}

const (
	keyUnit       = 8
	keyChunk      = 1 << 18
	unitsPerChunk = keyChunk / keyUnit
)

// keyUnits returns how many units n bytes take.
func keyUnits(n int) uint32 { return uint32(max(n+keyUnit-1, keyUnit)) / keyUnit }

// put copies key into the arena. It must be at most format.MaxKeyBytes long.
func (a *keyArena) put(key []byte) uint32 {
	ref := a.alloc(keyUnits(len(key)))
	copy(a.at(ref, len(key)), key)
	return ref
}

func (a *keyArena) alloc(units uint32) uint32 {
	if ref := a.free[units]; ref != 0 {
		a.free[units] = binary.LittleEndian.Uint32(a.at(ref, 4))
		return ref
	}
	if a.next == 0 {
		a.next = 1
	}
	// A key lies in one chunk. If the rest of a chunk is too short, it becomes a free piece.
	if rest := unitsPerChunk - a.next%unitsPerChunk; rest < units {
		a.grow()
		a.release(a.next, rest)
		a.next += rest
	}
	a.grow()
	ref := a.next
	a.next += units
	return ref
}

// grow makes the chunk that holds unit next.
func (a *keyArena) grow() {
	if int(a.next/unitsPerChunk) == len(a.chunks) {
		a.chunks = append(a.chunks, new([keyChunk]byte))
	}
}

// at returns the n bytes of a key. They are valid until drop.
func (a *keyArena) at(ref uint32, n int) []byte {
	off := int(ref%unitsPerChunk) * keyUnit
	return a.chunks[ref/unitsPerChunk][off : off+n : off+n]
}

// drop frees a key of n bytes.
func (a *keyArena) drop(ref uint32, n int) { a.release(ref, keyUnits(n)) }

func (a *keyArena) release(ref, units uint32) {
	binary.LittleEndian.PutUint32(a.at(ref, 4), a.free[units])
	a.free[units] = ref
}
