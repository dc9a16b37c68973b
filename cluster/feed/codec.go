package feed

import (
	"encoding/binary"
	"fmt"

	"github.com/kvfs/kvfs/cluster/location"
)

// The bits of the first byte of a record; see "Wire format" in the package comment.
const (
	opBits     = 0x03 // the Op
	markBit    = 0x04 // Hold: in memory. Bury: a directory
	firstBit   = 0x08 // first record of one Encode: earlier values do not count
	attrsBit   = 0x10 // Hold: Mode, UID and GID follow; else those of the previous Hold
	sizeUnits  = 0x20 // Hold: Size follows, in units of sizeUnit
	sizeBytes  = 0x40 // Hold: Size follows, in bytes
	knownBits  = 0x7f
	sizeUnit   = 1 << unitShift
	unitShift  = 12
	hashBytes  = 8
	typeBits   = 0o170000
	typeDir    = 0o040000
	typeFile   = 0o100000
	maxVarints = 6 // of a record, none of them longer than binary.MaxVarintLen64
)

// known is what both sides remember of earlier records.
type known struct {
	seq            uint64 // of the latest Hold or Bury
	size           uint64 // of the latest Hold; so are the next fields
	mode, uid, gid uint32
}

// encoder makes the wire form record by record. The zero value is ready.
type encoder struct {
	known
	begun bool
}

// bound returns a number of bytes that a record does not exceed.
func bound(r *Record) int { return 1 + hashBytes + maxVarints*binary.MaxVarintLen64 + len(r.Path) }

// append adds r to buf.
func (e *encoder) append(buf []byte, r *Record) []byte {
	head := byte(r.Op)
	if !e.begun {
		e.begun = true
		head |= firstBit
	}
	switch r.Op {
	case Hold:
		return e.appendHold(buf, head, r)
	case Release:
		return binary.BigEndian.AppendUint64(append(buf, head), r.Hash)
	case Bury:
		if r.Mode&typeBits == typeDir {
			head |= markBit
		}
		buf = e.appendSeq(append(buf, head), r.Seq)
		buf = binary.AppendVarint(buf, int64(uint64(r.Time)-r.Seq))
		buf = binary.AppendUvarint(buf, uint64(len(r.Path)))
		return append(buf, r.Path...)
	}
	panic("feed: record without a known operation")
}

func (e *encoder) appendHold(buf []byte, head byte, r *Record) []byte {
	size := uint64(r.Size)
	attrs := r.Mode != e.mode || r.UID != e.uid || r.GID != e.gid
	if r.Memory {
		head |= markBit
	}
	if attrs {
		head |= attrsBit
	}
	switch {
	case size == e.size:
	case size%sizeUnit == 0:
		head |= sizeUnits
	default:
		head |= sizeBytes
	}
	buf = binary.BigEndian.AppendUint64(append(buf, head), r.Hash)
	buf = e.appendSeq(buf, r.Seq)
	switch {
	case head&sizeUnits != 0:
		buf = binary.AppendUvarint(buf, size>>unitShift)
	case head&sizeBytes != 0:
		buf = binary.AppendUvarint(buf, size)
	}
	if attrs {
		buf = binary.AppendUvarint(buf, uint64(r.Mode))
		buf = binary.AppendUvarint(buf, uint64(r.UID))
		buf = binary.AppendUvarint(buf, uint64(r.GID))
	}
	e.size, e.mode, e.uid, e.gid = size, r.Mode, r.UID, r.GID
	return buf
}

// appendSeq appends the difference to the previous Seq. It may wrap around; the other side then
// wraps back.
func (e *encoder) appendSeq(buf []byte, seq uint64) []byte {
	buf = binary.AppendVarint(buf, int64(seq-e.seq))
	e.seq = seq
	return buf
}

// Decode calls fn for each record in buf, until fn fails, and returns its error. The record is
// valid until fn returns, its Path for ever.
//
// Decode fails with ErrMalformed on anything that the encoder does not make; it has called fn for
// the records before that. It never reads past buf, and a length in buf never makes it allocate.
func Decode(buf []byte, fn func(r *Record) error) error {
	d := decoder{buf: buf}
	for len(d.buf) > 0 {
		var r Record
		at := len(buf) - len(d.buf)
		if d.next(&r); d.bad != "" {
			return fmt.Errorf("%w: %s in the record at byte %d", ErrMalformed, d.bad, at)
		}
		if err := fn(&r); err != nil {
			return err
		}
	}
	return nil
}

// decoder reads records off the front of buf.
type decoder struct {
	known
	buf   []byte
	begun bool
	bad   string // what is wrong; once set, all values read are void
}

func (d *decoder) fail(what string) {
	if d.bad == "" {
		d.bad = what
	}
}

// next reads one record. buf must not be empty.
func (d *decoder) next(r *Record) {
	head := d.buf[0]
	d.buf = d.buf[1:]
	if head&^knownBits != 0 {
		d.fail("unknown bit")
	}
	switch {
	case head&firstBit != 0:
		d.known, d.begun = known{}, true
	case !d.begun:
		d.fail("no beginning")
	}
	r.Op = Op(head & opBits)
	switch r.Op {
	case Hold:
		d.hold(head, r)
	case Release:
		if head&^(opBits|firstBit) != 0 {
			d.fail("bit without a meaning")
		}
		r.Hash = d.hash()
	case Bury:
		d.bury(head, r)
	default:
		d.fail("unknown operation")
	}
}

func (d *decoder) hold(head byte, r *Record) {
	r.Memory = head&markBit != 0
	r.Hash = d.hash()
	d.seq += uint64(d.varint())
	r.Seq = d.seq
	d.decodeSize(head)
	if head&attrsBit != 0 {
		mode, uid, gid := d.uint32(), d.uint32(), d.uint32()
		if mode == d.mode && uid == d.uid && gid == d.gid {
			d.fail("attributes told twice")
		}
		d.mode, d.uid, d.gid = mode, uid, gid
	}
	r.Size, r.Mode, r.UID, r.GID = int64(d.size), d.mode, d.uid, d.gid
}

func (d *decoder) decodeSize(head byte) {
	var size uint64
	switch head & (sizeUnits | sizeBytes) {
	case 0:
		return
	case sizeUnits:
		units := d.uvarint()
		size = units << unitShift
		if size>>unitShift != units {
			d.fail("size out of range")
		}
	case sizeBytes:
		size = d.uvarint()
		if size%sizeUnit == 0 {
			d.fail("size in the wrong unit")
		}
	default:
		d.fail("two sizes")
	}
	if size == d.size {
		d.fail("size told twice")
	}
	d.size = size
}

func (d *decoder) bury(head byte, r *Record) {
	if head&^(opBits|firstBit|markBit) != 0 {
		d.fail("bit without a meaning")
	}
	r.Mode = typeFile
	if head&markBit != 0 {
		r.Mode = typeDir
	}
	d.seq += uint64(d.varint())
	r.Seq = d.seq
	r.Time = int64(uint64(d.varint()) + r.Seq)
	n := d.uvarint()
	if n > uint64(len(d.buf)) {
		d.fail("path cut off")
	}
	if d.bad != "" {
		return
	}
	r.Path = string(d.buf[:n])
	r.Hash = location.HashPath(r.Path)
	d.buf = d.buf[n:]
}

func (d *decoder) hash() uint64 {
	if len(d.buf) < hashBytes {
		d.fail("hash cut off")
		return 0
	}
	h := binary.BigEndian.Uint64(d.buf)
	d.buf = d.buf[hashBytes:]
	return h
}

// uvarint reads a number in its shortest form.
func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.buf)
	if n <= 0 || n > 1 && d.buf[n-1] == 0 {
		d.fail("bad number")
		return 0
	}
	d.buf = d.buf[n:]
	return v
}

func (d *decoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > 1<<32-1 {
		d.fail("attribute out of range")
	}
	return uint32(v)
}
