package format

import (
	"errors"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// FuzzPages: no bytes make a decoder of pages panic or fail with another error than
// ErrCorrupt or a VersionError, and what is decoded is encoded to a page that says the
// same. The checksum is mended, so that the fields behind it are reached.
func FuzzPages(f *testing.F) {
	for _, p := range pages(f) {
		f.Add(p.page)
		f.Add(p.page[:100])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		page := make([]byte, PageBytes)
		for _, mend := range []bool{false, true} {
			copy(page, b)
			if mend {
				SealPage(page)
			}
			again := make([]byte, PageBytes)
			s, err := DecodeSuperblock(page)
			if wantDecoded(t, err) {
				s.Encode(again)
				if s2, err := DecodeSuperblock(again); err != nil || s2 != s {
					t.Errorf("superblock %+v became %+v, %v", s, s2, err)
				}
			}
			h, err := DecodeSlabHeader(page)
			if wantDecoded(t, err) {
				h.Encode(again)
				if h2, err := DecodeSlabHeader(again); err != nil || h2 != h || h.WantBytes() <= 0 {
					t.Errorf("slab header %+v became %+v, %v", h, h2, err)
				}
			}
			i, err := DecodeIndexHeader(page)
			if wantDecoded(t, err) {
				i.Encode(again)
				if i2, err := DecodeIndexHeader(again); err != nil || i2 != i {
					t.Errorf("index header %+v became %+v, %v", i, i2, err)
				}
			}
			var slot SlotHeader
			if wantDecoded(t, slot.Decode(page)) {
				var slot2 SlotHeader
				if err := slot.Encode(again); err != nil || slot2.Decode(again) != nil || !sameSlot(&slot, &slot2) {
					t.Errorf("slot header %+v became %+v, %v", slot, slot2, err)
				}
			}
		}
	})
}

func wantDecoded(t *testing.T, err error) bool {
	t.Helper()
	var later *VersionError
	if err != nil && !errors.Is(err, block.ErrCorrupt) && !errors.As(err, &later) {
		t.Errorf("got %v", err)
	}
	return err == nil
}
