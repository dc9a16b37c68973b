package pack

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// The sizes of the format. The package comment draws it.
const (
	Version     = 2  // the latest that this kvfs reads
	plain       = 1  // that of what has no attributes of processes
	Align       = 64 // frames and the index begin at multiples of it
	HeaderBytes = 64 // of a frame, before the path
	FooterBytes = 64

	MaxShared     = 8<<20 - Align // largest block in a pack with others
	MaxFrames     = 64 << 20      // all frames of a pack of several blocks
	MaxTail       = 64 << 20      // index and footer
	MaxBlockBytes = math.MaxUint32*Align - HeaderBytes - block.MaxPath

	frameMagic  = "KVFSFRAM"
	footerMagic = "KVFSPACK"
	tombMagic   = "KVFSTOMB"
)

// VersionError says that a later kvfs wrote an object.
type VersionError struct {
	What string // "frame", "pack", "tombstones"
	Got  uint32
}

// Error names both versions and says what to do.
func (e *VersionError) Error() string {
	return fmt.Sprintf("%s of format version %d, this kvfs reads up to version %d: upgrade kvfs", e.What, e.Got, Version)
}

var le = binary.LittleEndian

// corrupt returns an error that wraps block.ErrCorrupt. Its text is what, then format with args.
func corrupt(what, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", what, fmt.Sprintf(format, args...), block.ErrCorrupt)
}

// alignUp returns n rounded up to a multiple of Align.
func alignUp(n int64) int64 { return (n + Align - 1) &^ (Align - 1) }

// PaddedBytes returns what a block takes in a pack, with the zeros after it.
func PaddedBytes(pathBytes int, size int64, user block.UserAttrs) int64 {
	return alignUp(HeaderBytes + int64(pathBytes) + size + UserBytes(len(user)))
}

// UserBytes returns what n bytes of attributes of processes take behind the data.
func UserBytes(n int) int64 {
	if n == 0 {
		return 0
	}
	return int64(sumBytes + n)
}

const sumBytes = 8 // of a checksum

// appendUser appends the attributes of processes as they are behind the data.
func appendUser(b []byte, user block.UserAttrs) []byte {
	if user == "" {
		return b
	}
	return append(le.AppendUint64(b, block.Sum([]byte(user)).Sum), user...)
}

// CheckUser reads what is behind the data of a frame. It fails with ErrCorrupt.
func CheckUser(b []byte) (block.UserAttrs, error) {
	if len(b) < sumBytes || block.Sum(b[sumBytes:]).Sum != le.Uint64(b) {
		return "", corrupt("frame", "checksum of the attributes")
	}
	user := block.UserAttrs(b[sumBytes:])
	return user, user.Check()
}

// versionOf returns the version of what has attributes of processes, or not.
func versionOf(user bool) uint32 {
	if user {
		return Version
	}
	return plain
}

// seal sets the checksum of a header, a footer or tombstones.
func seal(b []byte) { le.PutUint64(b[8:], block.Sum(b[16:]).Sum) }

// sealed is the inverse of seal: it checks magic, checksum and then the version.
func sealed(b []byte, magic, what string, version uint32) error {
	switch {
	case string(b[:8]) != magic:
		return corrupt(what, "no %s at its start", magic)
	case block.Sum(b[16:]).Sum != le.Uint64(b[8:]):
		return corrupt(what, "checksum")
	case version > Version:
		return &VersionError{What: what, Got: version}
	case version == 0:
		return corrupt(what, "version 0")
	}
	return nil
}

// Header is what a frame says about its block.
type Header struct {
	Seq            uint64
	Size           int64
	Sum            block.Checksum // of the data
	Mtime          int64
	Mode, UID, GID uint32
	User           int // length of the attributes of processes: they are behind the data, see UserBytes
}

// appendHead appends the header and path of a frame, without sums.
func appendHead(b []byte, path string, a *driver.Attrs, size int64) []byte {
	start := len(b)
	b = append(b, make([]byte, HeaderBytes)...)
	h := b[start:]
	copy(h, frameMagic)
	le.PutUint16(h[16:], uint16(versionOf(a.User != "")))
	le.PutUint16(h[18:], uint16(len(path)))
	le.PutUint16(h[20:], uint16(a.Mode))
	le.PutUint16(h[22:], uint16(len(a.User)))
	le.PutUint64(h[24:], a.Seq)
	le.PutUint64(h[32:], uint64(size))
	le.PutUint64(h[48:], uint64(a.Mtime))
	le.PutUint32(h[56:], a.UID)
	le.PutUint32(h[60:], a.GID)
	return append(b, path...)
}

// sealHead completes what appendHead made.
func sealHead(head []byte, sum block.Checksum) {
	le.PutUint64(head[40:], sum.Sum)
	seal(head)
}

// CheckFrame checks the beginning of a frame: header, path and anything after them. It does not
// look at the data: the caller compares Header.Sum with the Size bytes after the path.
//
// It fails with ErrNotFound if the frame is that of another path, a VersionError, or ErrCorrupt.
func CheckFrame(frame []byte, path string) (Header, error) {
	const what = "frame"
	if len(frame) < HeaderBytes {
		return Header{}, corrupt(what, "%d bytes", len(frame))
	}
	end := HeaderBytes + int(le.Uint16(frame[18:]))
	if len(frame) < end {
		return Header{}, corrupt(what, "path of %d bytes", end-HeaderBytes)
	}
	if err := sealed(frame[:end], frameMagic, what, uint32(le.Uint16(frame[16:]))); err != nil {
		return Header{}, err
	}
	if got := frame[HeaderBytes:end]; string(got) != path {
		return Header{}, fmt.Errorf("%s: it holds %.64q: %w", what, got, block.ErrNotFound)
	}
	h := Header{
		Seq:   le.Uint64(frame[24:]),
		Size:  int64(le.Uint64(frame[32:])),
		Sum:   block.Checksum{Sum: le.Uint64(frame[40:]), Valid: true},
		Mtime: int64(le.Uint64(frame[48:])),
		Mode:  uint32(le.Uint16(frame[20:])),
		User:  int(le.Uint16(frame[22:])),
		UID:   le.Uint32(frame[56:]),
		GID:   le.Uint32(frame[60:]),
	}
	if h.Size < 0 || h.Size > MaxBlockBytes || h.Seq == 0 || h.User > block.MaxUserAttrs {
		return Header{}, corrupt(what, "seq %d, %d bytes", h.Seq, h.Size)
	}
	return h, nil
}
