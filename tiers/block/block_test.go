package block

import (
	"errors"
	"fmt"
	"hash/crc64"
	"os"
	"strings"
	"testing"
)

// TestParseKey shows how paths become keys (C1) and which are refused, by kind.
func TestParseKey(t *testing.T) {
	long := strings.Repeat("n", MaxName)
	for _, tc := range []struct {
		path string
		want Key
		err  error
	}{
		{"hash", Key{"", "hash"}, nil},
		{"group/hash", Key{"group", "hash"}, nil},
		{"m_0123_r0/9f0/81_g0/9f0817.bin", Key{"m_0123_r0", "9f0/81_g0/9f0817.bin"}, nil},
		{long + "/" + long, Key{GroupID(long), Hash(long)}, nil},
		{"a b@%=\xff/.hidden", Key{"a b@%=\xff", ".hidden"}, nil},
		{"g/" + Reserved, Key{"g", Reserved}, nil}, // reserved at the root only
		{"", Key{}, ErrInvalid},
		{"/a", Key{}, ErrInvalid},
		{"a/", Key{}, ErrInvalid},
		{"a//b", Key{}, ErrInvalid},
		{"a/./b", Key{}, ErrInvalid},
		{"../b", Key{}, ErrInvalid},
		{"a\x00b", Key{}, ErrInvalid},
		{"g/" + long + "n", Key{}, ErrNameTooLong},
		{strings.Repeat("d/", MaxPath/2) + "e", Key{}, ErrNameTooLong},
		{Reserved, Key{}, ErrReserved},
		{Reserved + "/status", Key{}, ErrReserved},
	} {
		got, err := ParseKey(tc.path)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("ParseKey(%.40q): got %v, %v; want %v, %v", tc.path, got, err, tc.want, tc.err)
		}
	}
}

// FuzzParseKey: no path panics, what is accepted has the limits, and prints as it
// was read.
func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"", "a", "a/b", "a//b", "/", ".", "..", ".kvfs/x", "a/b/c/d", "\x00", strings.Repeat("x", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		k, err := ParseKey(path)
		if err != nil {
			if k != (Key{}) {
				t.Fatalf("ParseKey(%q): %v with key %v", path, err, k)
			}
			return
		}
		if k.Path() != path {
			t.Fatalf("ParseKey(%q).Path() = %q", path, k.Path())
		}
		if k.Group != GroupOf(path) {
			t.Fatalf("GroupOf(%q) = %q, ParseKey says %q", path, GroupOf(path), k.Group)
		}
		for _, name := range strings.Split(path, "/") {
			if name == "" || name == "." || name == ".." || len(name) > MaxName || strings.ContainsRune(name, 0) {
				t.Fatalf("ParseKey accepts %q with component %q", path, name)
			}
		}
	})
}

// TestError shows the text of an error with all, and with some, of its parts, and
// that its kind is found through it.
func TestError(t *testing.T) {
	for _, tc := range []struct {
		err  *Error
		want string
	}{
		{&Error{Op: "load", Tier: "nvme0", Key: Key{"g", "ab"}, Err: ErrNotFound}, "load nvme0 g/ab: block not found"},
		{&Error{Op: "reserve", Err: ErrNoSpace}, "reserve: " + ErrNoSpace.Error()},
	} {
		if tc.err.Error() != tc.want {
			t.Errorf("got %q, want %q", tc.err, tc.want)
		}
		if wrapped := fmt.Errorf("outer: %w", tc.err); !errors.Is(wrapped, tc.err.Err) {
			t.Errorf("%v: kind not found", wrapped)
		}
	}
	if err := error(&Error{Op: "open", Err: os.ErrClosed}); errors.Is(err, ErrNotFound) {
		t.Error("a foreign error has one of our kinds")
	}
}

// TestChecksum compares with the standard library's CRC-64 of the NVME polynomial,
// in one piece and in several, and shows the text.
func TestChecksum(t *testing.T) {
	const nvme = 0x9a6c9329ac4bc9b5 // reversed, as crc64.MakeTable takes it
	table := crc64.MakeTable(nvme)
	for _, n := range []int{0, 1, 4095, 4096, 100_003} {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i * 31)
		}
		got := Sum(p)
		if want := crc64.Checksum(p, table); !got.Valid || got.Sum != want {
			t.Errorf("%d bytes: got %v, want %016x", n, got, want)
		}
		h := NewChecksum()
		h.Write(p[:n/3])
		h.Write(p[n/3:])
		if h.Sum64() != got.Sum {
			t.Errorf("%d bytes in two pieces: got %016x, want %v", n, h.Sum64(), got)
		}
		if text, want := got.String(), fmt.Sprintf("crc64nvme:%016x", got.Sum); text != want {
			t.Errorf("%d bytes: got %q, want %q", n, text, want)
		}
	}
	if text := (Checksum{Sum: 1}).String(); text != "" {
		t.Errorf("not computed: got %q", text)
	}
}
