package pack

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"
)

// Name is the name of an object.
type Name struct {
	Time   int64  // when it was made, nanoseconds since the epoch
	Writer uint64 // who made it. A writer uses no time twice
	Index  int64  // offset of a pack's index in bytes, a multiple of Align; 0 for tombstones
}

const (
	packEnd = ".pack"
	tombEnd = ".tomb"
)

// String returns the name in the bucket.
func (n Name) String() string {
	if n.Index == 0 {
		return fmt.Sprintf("%016x-%016x%s", uint64(n.Time), n.Writer, tombEnd)
	}
	return fmt.Sprintf("%016x-%016x-%08x%s", uint64(n.Time), n.Writer, n.Index/Align, packEnd)
}

// ParseName is the inverse of String. ok is false for a name that String does not return.
func ParseName(name string) (n Name, ok bool) {
	digits, isPack := strings.CutSuffix(name, packEnd)
	if !isPack {
		if digits, ok = strings.CutSuffix(name, tombEnd); !ok {
			return Name{}, false
		}
	}
	parts := strings.Split(digits, "-")
	if isPack && len(parts) != 3 || !isPack && len(parts) != 2 {
		return Name{}, false
	}
	at, ok1 := parseHex(parts[0], 16)
	writer, ok2 := parseHex(parts[1], 16)
	n = Name{Time: int64(at), Writer: writer}
	if isPack {
		units, ok3 := parseHex(parts[2], 8)
		if !ok3 || units == 0 {
			return Name{}, false
		}
		n.Index = int64(units) * Align
	}
	if !ok1 || !ok2 || at > math.MaxInt64 {
		return Name{}, false
	}
	return n, true
}

// parseHex reads a number of this many lower-case digits.
func parseHex(s string, digits int) (n uint64, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(s) != digits || strings.ToLower(s) != s {
		return 0, false
	}
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n, true
}

// TailBytes returns how many bytes at the end of a pack of this size are index and footer. It fails
// with ErrCorrupt if there is no such pack.
func (n Name) TailBytes(size int64) (int64, error) {
	tail := size - n.Index
	if n.Index == 0 || tail < FooterBytes+minEntryBytes || tail > MaxTail {
		return 0, corrupt("pack", "%s has %d bytes", n, size)
	}
	return tail, nil
}
