package catalog

import "encoding/binary"

// packed is a record as it is stored, 26 bytes:
//
//	 0  8  hash 51 | class, low 13 bits
//	 8  8  seq; 0: the place is empty
//	16  8  pack 28 | offset 20 | size, high 16 bits
//	24  2  size, low 7 bits | class, high 9 bits
//
// The fields are given from the highest bit down. hash is the hash of the path without the bits
// that chose the shard. Processors read words at any address.
type packed [recordBytes]byte

const (
	recordBytes = 26

	hashShift = 13 // of the key in the first word
	classBits = 22
	sizeBits  = 23
	sizeLow   = 7
	unitBits  = 20
	packBits  = 28

	largeSize = 1<<sizeBits - 1 // or more: the pack has the size
)

var le = binary.LittleEndian

// record is a record unpacked.
type record struct {
	key   uint64 // see keyOf
	seq   uint64
	size  uint32 // largeSize: see packs
	class uint32
	pack  uint32
	unit  uint32 // offset in units of Align
}

// keyOf returns what a record keeps of a hash: the highest bits after those of the shard.
func keyOf(hash uint64) uint64 { return hash << shardBits >> hashShift << hashShift }

func (p *packed) key() uint64 { return le.Uint64(p[:8]) >> hashShift << hashShift }
func (p *packed) empty() bool { return le.Uint64(p[8:16]) == 0 }
func (p *packed) pack() uint32 {
	return uint32(le.Uint64(p[16:24]) >> (64 - packBits))
}

func (p *packed) load() record {
	w0, w2, w3 := le.Uint64(p[:8]), le.Uint64(p[16:24]), uint32(le.Uint16(p[24:]))
	return record{
		key:   w0 >> hashShift << hashShift,
		seq:   le.Uint64(p[8:16]),
		size:  uint32(w2&(1<<(sizeBits-sizeLow)-1))<<sizeLow | w3>>(classBits-hashShift),
		class: uint32(w0&(1<<hashShift-1)) | w3&(1<<(classBits-hashShift)-1)<<hashShift,
		pack:  uint32(w2 >> (64 - packBits)),
		unit:  uint32(w2>>(sizeBits-sizeLow)) & (1<<unitBits - 1),
	}
}

func (r record) packed() (p packed) {
	le.PutUint64(p[:8], r.key|uint64(r.class&(1<<hashShift-1)))
	le.PutUint64(p[8:16], r.seq)
	le.PutUint64(p[16:24], uint64(r.pack)<<(64-packBits)|uint64(r.unit)<<(sizeBits-sizeLow)|uint64(r.size>>sizeLow))
	le.PutUint16(p[24:], uint16(r.size&(1<<sizeLow-1)<<(classBits-hashShift)|r.class>>hashShift))
	return p
}
