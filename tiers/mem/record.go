package mem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// The record format. The package comment draws it.
const (
	recordMagic   = "KVFR"
	recordVersion = 1
	recordHeader  = 88
	maxRecord     = recordHeader + block.MaxPath + 2 + block.MaxPath + 2 + block.MaxUserAttrs + 4

	flagDir    = 1
	flagPinned = 2
	flagSum    = 4
	flagLink   = 8
	flagUser   = 16
	flagsKnown = flagDir | flagPinned | flagSum | flagLink | flagUser
)

// castagnoli is computed once; crc32.MakeTable returns the shared table.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkRecord reports why r can be neither written nor believed: ErrInvalid, ErrNameTooLong or
// ErrReserved. Only a directory may have the empty path, which names the mount itself.
func checkRecord(r *driver.Record) error {
	if r.Size < 0 || r.Mode > 0o7777 {
		return fmt.Errorf("record of size %d and mode %#o: %w", r.Size, r.Mode, block.ErrInvalid)
	}
	if r.Dir && r.Path == "" {
		return nil
	}
	err := r.User.Check()
	if r.Link != "" {
		err = errors.Join(err, block.CheckPath(r.Link))
	}
	return errors.Join(err, block.CheckPath(r.Path))
}

// appendRecord appends the encoding of r, which checkRecord accepts.
func appendRecord(b []byte, id driver.BlobID, r *driver.Record) []byte {
	le := binary.LittleEndian
	start := len(b)
	var flags byte
	if r.Dir {
		flags |= flagDir
	}
	if r.Pinned {
		flags |= flagPinned
	}
	var sum uint64
	if r.Sum.Valid {
		flags |= flagSum
		sum = r.Sum.Sum
	}
	if r.Link != "" {
		flags |= flagLink
	}
	if r.User != "" {
		flags |= flagUser
	}
	b = append(b, recordMagic...)
	b = append(b, recordVersion, flags)
	b = le.AppendUint16(b, uint16(len(r.Path)))
	b = le.AppendUint64(b, uint64(id))
	b = le.AppendUint64(b, r.Seq)
	b = le.AppendUint64(b, uint64(r.Size))
	b = le.AppendUint32(b, r.Mode)
	b = le.AppendUint32(b, r.UID)
	b = le.AppendUint32(b, r.GID)
	b = le.AppendUint32(b, uint32(r.Mtime.Nanosecond()))
	b = le.AppendUint64(b, uint64(r.Mtime.Unix()))
	b = le.AppendUint64(b, uint64(r.Atime.Unix()))
	b = le.AppendUint64(b, uint64(r.Expires.Unix()))
	b = le.AppendUint32(b, uint32(r.Atime.Nanosecond()))
	b = le.AppendUint32(b, uint32(r.Expires.Nanosecond()))
	b = le.AppendUint64(b, sum)
	b = append(b, r.Path...)
	if r.Link != "" {
		b = append(le.AppendUint16(b, uint16(len(r.Link))), r.Link...)
	}
	if r.User != "" {
		b = append(le.AppendUint16(b, uint16(len(r.User))), r.User...)
	}
	return le.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// decodeRecord is the inverse of appendRecord. It accepts only the encoding of a record that
// checkRecord accepts. Else it fails with ErrCorrupt.
func decodeRecord(b []byte) (driver.BlobID, *driver.Record, error) {
	le := binary.LittleEndian
	corrupt := func(what string) (driver.BlobID, *driver.Record, error) {
		return 0, nil, fmt.Errorf("record of %d bytes: %s: %w", len(b), what, block.ErrCorrupt)
	}
	if why := damage(b); why != "" {
		return corrupt(why)
	}
	path, rest, whole := cut(b[recordHeader:len(b)-4], int(le.Uint16(b[6:])))
	link, rest, wholeLink := cutSized(rest, b[5]&flagLink != 0)
	user, rest, wholeUser := cutSized(rest, b[5]&flagUser != 0)
	if !whole || !wholeLink || !wholeUser || len(rest) > 0 {
		return corrupt("length of a field")
	}
	at := func(sec, nsec int) time.Time {
		return time.Unix(int64(le.Uint64(b[sec:])), int64(le.Uint32(b[nsec:])))
	}
	r := &driver.Record{
		Path:    path,
		Link:    link,
		User:    block.UserAttrs(user),
		Dir:     b[5]&flagDir != 0,
		Seq:     le.Uint64(b[16:]),
		Size:    int64(le.Uint64(b[24:])),
		Mode:    le.Uint32(b[32:]),
		UID:     le.Uint32(b[36:]),
		GID:     le.Uint32(b[40:]),
		Mtime:   at(48, 44),
		Atime:   at(56, 72),
		Sum:     block.Checksum{Sum: le.Uint64(b[80:]), Valid: b[5]&flagSum != 0},
		Pinned:  b[5]&flagPinned != 0,
		Expires: at(64, 76),
	}
	if err := checkRecord(r); err != nil {
		return corrupt(err.Error())
	}
	return driver.BlobID(le.Uint64(b[8:])), r, nil
}

// damage returns why the fields of fixed length of a record cannot be right, "" if they can.
func damage(b []byte) string {
	le := binary.LittleEndian
	switch {
	case len(b) < recordHeader+4 || len(b) > maxRecord:
		return "length"
	case string(b[:4]) != recordMagic:
		return "magic"
	case b[4] != recordVersion:
		return fmt.Sprintf("version %d", b[4])
	case crc32.Checksum(b[:len(b)-4], castagnoli) != le.Uint32(b[len(b)-4:]):
		return "crc"
	case b[5]&^flagsKnown != 0:
		return "flags"
	case b[5]&flagSum == 0 && le.Uint64(b[80:]) != 0:
		return "checksum"
	case le.Uint32(b[44:]) >= 1e9 || le.Uint32(b[72:]) >= 1e9 || le.Uint32(b[76:]) >= 1e9:
		return "nanoseconds"
	}
	return ""
}

// cut takes a field of n bytes from the front of b. ok is false if b is too short.
func cut(b []byte, n int) (field string, rest []byte, ok bool) {
	if len(b) < n {
		return "", nil, false
	}
	return string(b[:n]), b[n:], true
}

// cutSized cuts an optional field off, which begins with its length and is not empty.
func cutSized(b []byte, there bool) (field string, rest []byte, ok bool) {
	if !there {
		return "", b, true
	}
	if len(b) < 2 {
		return "", nil, false
	}
	field, rest, ok = cut(b[2:], int(binary.LittleEndian.Uint16(b)))
	return field, rest, ok && field != ""
}
