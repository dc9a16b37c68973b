package scalar

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"
)

// Size is a number of bytes, never negative. Its text is a number and a unit:
// B, KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000). Only
// zero may stand without a unit.
type Size int64

// The units of Size.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

// sizeUnits holds the units, those first that String prefers.
var sizeUnits = []struct {
	name  string
	bytes Size
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// MaxNumber bounds the digits of a number in text, so that arithmetic on it is
// bounded too; 2^63 has 19.
const MaxNumber = 40

// ParseSize is the inverse of String. A fraction is fine if it comes to whole
// bytes ("1.5GiB"). It fails with ErrUnit, ErrRange or ErrType.
func ParseSize(s string) (Size, error) {
	text := strings.TrimSpace(s)
	number, unit := SplitNumber(text)
	switch {
	case strings.HasPrefix(number, "-"):
		return 0, Violate(ErrRange, "%q is negative", s)
	case number == "" || len(number) > MaxNumber:
		return 0, Violate(ErrType, "%q is not a size: want a number and a unit, such as 4GiB", s)
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, Violate(ErrType, "%q is not a size: want a number and a unit, such as 4GiB", s)
	}
	if unit == "" {
		if value.Sign() == 0 {
			return 0, nil
		}
		return 0, Violate(ErrUnit, "%q needs a unit: %sB, %sKiB, %sMiB, %sGiB, ...", s, number, number, number, number)
	}
	for _, u := range sizeUnits {
		if u.name == unit {
			return wholeBytes(s, value.Mul(value, new(big.Rat).SetInt64(int64(u.bytes))))
		}
	}
	return 0, Violate(ErrUnit, "%q has the unknown unit %q; one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB", s, unit)
}

// wholeBytes converts an exact number of bytes.
func wholeBytes(s string, bytes *big.Rat) (Size, error) {
	if !bytes.IsInt() {
		return 0, Violate(ErrType, "%q is not a whole number of bytes", s)
	}
	if !bytes.Num().IsInt64() {
		return 0, Violate(ErrRange, "%q is more than %d bytes", s, int64(math.MaxInt64))
	}
	return Size(bytes.Num().Int64()), nil
}

// SplitNumber cuts s after its leading sign, digits and dots.
func SplitNumber(s string) (number, unit string) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.' || i == 0 && (s[i] == '-' || s[i] == '+')) {
		i++
	}
	return s[:i], strings.TrimSpace(s[i:])
}

// String returns the size exactly, in the unit that gives the smallest whole
// number; "0" for zero.
func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	best := sizeUnits[len(sizeUnits)-1]
	for _, u := range sizeUnits {
		if s%u.bytes == 0 && u.bytes > best.bytes {
			best = u
		}
	}
	return fmt.Sprintf("%d%s", s/best.bytes, best.name)
}

// MarshalText returns String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}

// Duration is a time span, never negative, in the form of Go: 5s, 1m30s, 250ms.
// Only zero may stand without a unit.
type Duration time.Duration

// ParseDuration is the inverse of String. It fails with ErrUnit, ErrRange or
// ErrType.
func ParseDuration(s string) (Duration, error) {
	text := strings.TrimSpace(s)
	d, err := time.ParseDuration(text)
	number, unit := SplitNumber(text)
	switch {
	case err == nil && d < 0, err != nil && unit == "" && strings.HasPrefix(number, "-"):
		return 0, Violate(ErrRange, "%q is negative", s)
	case err == nil:
		return Duration(d), nil
	case number != "" && unit == "":
		return 0, Violate(ErrUnit, "%q needs a unit: %sms, %ss, %sm, %sh", s, number, number, number, number)
	}
	return 0, Violate(ErrType, "%q is not a duration: want a number and a unit, such as 30s or 1m30s", s)
}

// String returns the duration without trailing zero units: "1h", not "1h0m0s".
func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDuration.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}
