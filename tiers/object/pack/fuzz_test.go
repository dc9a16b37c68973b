package pack

import (
	"errors"
	"reflect"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

func wantKind(t *testing.T, err error) {
	t.Helper()
	var later *VersionError
	if err != nil && !errors.Is(err, block.ErrCorrupt) && !errors.Is(err, block.ErrNotFound) && !errors.As(err, &later) {
		t.Errorf("got %v", err)
	}
}

// FuzzReadIndex: no bytes of an index make ReadIndex panic or believe what cannot be, and what it
// reads is the same after another encoding. The footer is a good one.
func FuzzReadIndex(f *testing.F) {
	n, object := build(f, samples())
	f.Add(object[n.Index:len(object)-FooterBytes], uint32(len(samples())), n.Index)
	f.Add([]byte{}, uint32(0), int64(Align))
	f.Fuzz(func(t *testing.T, index []byte, entries uint32, offset int64) {
		n := Name{Time: sampleTime, Writer: sampleWriter, Index: offset}
		var again []byte
		var last Entry
		var all []Entry
		read := func(e *Entry) bool {
			if block.CheckPath(e.Path) != nil || e.Offset < 0 || e.Offset%Align != 0 || e.DataOffset()+e.Size > offset || e.Attrs.Seq == 0 {
				t.Errorf("got %+v", e)
			}
			kept := *e
			kept.Attrs.Dirs = append(kept.Attrs.Dirs[:0:0], kept.Attrs.Dirs...)
			start := len(again)
			again = appendEntry(again, &last, &kept)
			le.PutUint64(again[start:], e.Sum.Sum)
			last = kept
			all = append(all, kept)
			return true
		}
		err := ReadIndex(n, appendFooter(append([]byte(nil), index...), index, n, entries, plain), read)
		wantKind(t, err)
		if err != nil {
			if len(all) > 0 {
				t.Errorf("%d entries before %v", len(all), err)
			}
			return
		}
		first, bytes := all, again
		all, again, last = nil, nil, Entry{}
		if err := ReadIndex(n, appendFooter(append([]byte(nil), bytes...), bytes, n, entries, plain), read); err != nil || !reflect.DeepEqual(all, first) {
			t.Errorf("%+v became %+v, %v", first, all, err)
		}
	})
}

// FuzzTail: no bytes make ReadIndex panic, with a footer that is not ours but for its checksum.
func FuzzTail(f *testing.F) {
	n, object := build(f, samples())
	f.Add(object[n.Index:])
	f.Fuzz(func(t *testing.T, tail []byte) {
		tail = append([]byte(nil), tail...)
		for range 2 {
			err := ReadIndex(n, tail, func(*Entry) bool { return true })
			wantKind(t, err)
			if len(tail) < FooterBytes {
				return
			}
			seal(tail[len(tail)-FooterBytes:])
		}
	})
}

// FuzzFrame: no bytes make CheckFrame panic, or return what it should not.
func FuzzFrame(f *testing.F) {
	n, object := build(f, samples())
	all, err := entries(n, object)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range all {
		f.Add(object[e.Offset:e.DataOffset()], e.Path)
	}
	f.Fuzz(func(t *testing.T, frame []byte, path string) {
		frame = append([]byte(nil), frame...)
		for range 2 {
			h, err := CheckFrame(frame, path)
			wantKind(t, err)
			if err == nil && (h.Size < 0 || h.Seq == 0 || !h.Sum.Valid || string(frame[HeaderBytes:][:len(path)]) != path) {
				t.Errorf("%q: got %+v", path, h)
			}
			if len(frame) < HeaderBytes+len(path) {
				return
			}
			seal(frame[:HeaderBytes+len(path)])
		}
	})
}

// FuzzTombs: no bytes make DecodeTombs panic, and what it reads is the same after another encoding.
func FuzzTombs(f *testing.F) {
	f.Add(EncodeTombs(tombName, someTombs()))
	f.Add(EncodeTombs(tombName, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append([]byte(nil), b...)
		for range 2 {
			tombs, err := DecodeTombs(tombName, b)
			wantKind(t, err)
			if err == nil {
				again, err := DecodeTombs(tombName, EncodeTombs(tombName, tombs))
				if err != nil || !reflect.DeepEqual(tombs, again) {
					t.Errorf("%+v became %+v, %v", tombs, again, err)
				}
			}
			if len(b) < tombFixedBytes {
				return
			}
			seal(b)
		}
	})
}

// FuzzName: a name that is accepted is printed as it was.
func FuzzName(f *testing.F) {
	f.Add("18bcd3f5a1b2c3d4-00000000deadbeef-000fffe0.pack")
	f.Add("18bcd3f5a1b2c3d4-00000000deadbeef.tomb")
	f.Fuzz(func(t *testing.T, name string) {
		if n, ok := ParseName(name); ok && n.String() != name {
			t.Errorf("%q became %q", name, n)
		}
	})
}
