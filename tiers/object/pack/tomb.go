package pack

import (
	"encoding/binary"
	"math"

	"github.com/kvfs/kvfs/tiers/block"
)

// Tomb says that the versions of a path up to Seq were removed.
type Tomb struct {
	Path    string
	Seq     uint64
	Expires int64 // nanoseconds since the epoch: not needed any more after that
}

const (
	tombFixedBytes = 40
	minTombBytes   = 4
)

// EncodeTombs returns the tombstones object n, whose Index is 0. The paths are valid ones.
func EncodeTombs(n Name, tombs []Tomb) []byte {
	b := make([]byte, tombFixedBytes)
	copy(b, tombMagic)
	le.PutUint32(b[16:], plain)
	le.PutUint32(b[20:], uint32(len(tombs)))
	le.PutUint64(b[24:], uint64(n.Time))
	le.PutUint64(b[32:], n.Writer)
	for _, t := range tombs {
		b = binary.AppendUvarint(b, uint64(len(t.Path)))
		b = append(b, t.Path...)
		b = binary.AppendUvarint(b, t.Seq)
		b = binary.AppendVarint(b, t.Expires)
	}
	seal(b)
	return b
}

// DecodeTombs is the inverse of EncodeTombs. It fails with ErrCorrupt or a VersionError.
func DecodeTombs(n Name, b []byte) ([]Tomb, error) {
	const what = "tombstones"
	if len(b) < tombFixedBytes {
		return nil, corrupt(what, "%d bytes", len(b))
	}
	if err := sealed(b, tombMagic, what, le.Uint32(b[16:])); err != nil {
		return nil, err
	}
	named := Name{Time: int64(le.Uint64(b[24:])), Writer: le.Uint64(b[32:])}
	entries := int(le.Uint32(b[20:]))
	r := reader{b: b[tombFixedBytes:]}
	if named != n || entries > len(r.b)/minTombBytes {
		return nil, corrupt(what, "%d in %s, which says that it is %s", entries, n, named)
	}
	tombs := make([]Tomb, 0, entries)
	for range entries {
		t := Tomb{
			Path:    string(r.take(r.uvarint(block.MaxPath))),
			Seq:     r.uvarint(math.MaxUint64),
			Expires: r.varint(),
		}
		if r.bad || t.Seq == 0 || block.CheckPath(t.Path) != nil {
			return nil, corrupt(what, "entry %d of %s", len(tombs), n)
		}
		tombs = append(tombs, t)
	}
	if len(r.b) > 0 {
		return nil, corrupt(what, "%d bytes after the last entry of %s", len(r.b), n)
	}
	return tombs, nil
}
