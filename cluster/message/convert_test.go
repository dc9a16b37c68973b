package message

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestHeader shows that a header always fits: directories that do not are left out.
func TestHeader(t *testing.T) {
	info := BlockInfo{Path: strings.Repeat("d/", 2000) + "x", Seq: 9, Size: 5, Sum: block.Sum(nil), Mode: 0o100600}
	for range 2000 {
		info.Dirs = append(info.Dirs, DirInfo{0o40700, 1 << 31, 1 << 31})
	}
	h, err := Header(&info)
	if err != nil || len(h) > rdma.MaxHeader {
		t.Fatalf("header of %d bytes, %v", len(h), err)
	}
	got, err := ParseHeader(h, 5, &BlockRef{Path: info.Path, Seq: 9})
	if err != nil || len(got.Dirs) == 0 || got.Dirs[0] != info.Dirs[0] || got.Path != info.Path {
		t.Errorf("got %d dirs, %v", len(got.Dirs), err)
	}
}

// TestUserAttrs: attributes of processes come whole, or the block does not (H2).
func TestUserAttrs(t *testing.T) {
	info := BlockInfo{Path: "g/x", Seq: 9, Size: 5, Sum: block.Sum(nil), Mode: 0o100600, Dirs: make([]DirInfo, 1)}
	for n, fits := range map[int]bool{0: true, 4: true, 3900: true, 4080: false} {
		info.User, _ = block.UserAttrs("").Set("user.a", strings.Repeat("v", n), block.SetAny)
		h, err := Header(&info)
		if fits != (err == nil) || !fits && !errors.Is(err, block.ErrTooLarge) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if !fits {
			continue
		}
		got, err := ParseHeader(h, 5, &BlockRef{Path: info.Path, Seq: 9})
		if err != nil || got.User != info.User {
			t.Errorf("%d bytes: got %d, %v", n, len(got.User), err)
		}
	}
	info.User = "x"
	if h, err := Header(&info); err != nil {
		t.Error(err)
	} else if _, err := ParseHeader(h, 5, &BlockRef{Path: info.Path, Seq: 9}); !errors.Is(err, rdma.ErrProtocol) {
		t.Errorf("attributes that are none: %v", err)
	}
}

// FuzzHeader: no header panics, and none that is accepted is of something else than was
// asked for.
func FuzzHeader(f *testing.F) {
	info := BlockInfo{Path: "g/x", Seq: 9, Size: 5, Sum: block.Sum(nil)}
	h, _ := Header(&info)
	f.Add(h)
	f.Add([]byte{})
	f.Add([]byte("\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, h []byte) {
		got, err := ParseHeader(h, 5, &BlockRef{Path: "g/x", Seq: 9})
		if err != nil {
			if !errors.Is(err, rdma.ErrProtocol) {
				t.Fatalf("error of another kind: %v", err)
			}
		} else if got.Path != "g/x" || got.Seq != 9 || got.Size != 5 || !got.Sum.Valid {
			t.Fatalf("accepted %+v", got)
		}
		if ref, err := ParseName(h); err == nil {
			if _, err := block.ParseKey(ref.Path); err != nil {
				t.Fatalf("accepted the name %q", ref.Path)
			}
		}
	})
}

// TestKinds shows that each kind of error arrives as itself, and one of the future as
// unavailable.
func TestKinds(t *testing.T) {
	for _, kind := range kinds {
		if got := KindFromWire(KindToWire(fmt.Errorf("x: %w", kind))); got != kind {
			t.Errorf("%v arrives as %v", kind, got)
		}
	}
	if KindFromWire(0) != nil || KindFromWire(1000) != block.ErrUnavailable {
		t.Error("out of the list")
	}
}
