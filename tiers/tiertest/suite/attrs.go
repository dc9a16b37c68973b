package suite

import (
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// checkHeld checks the entry of a block from an Enumerator.
func (h *harness) checkHeld(held *driver.Held, p payload) {
	h.t.Helper()
	if held.Size != int64(len(p.data)) || held.Sum != block.Sum(p.data) {
		h.errorf("Blocks: %.80q with %d bytes and %v, want %d and %v",
			held.Key.Path(), held.Size, held.Sum, len(p.data), block.Sum(p.data))
	}
	got, want := held.Attrs, p.attrs
	if _, ok := h.tier.(driver.UserKeeper); !ok { // the engine gives it none
		got.User, want.User = "", ""
	}
	kept := len(got.Dirs)
	if kept > len(want.Dirs) || !slices.Equal(got.Dirs, want.Dirs[:kept]) {
		h.errorf("Blocks: %.80q with directories %v, want the first of %v",
			held.Key.Path(), got.Dirs, want.Dirs)
	}
	if kept < len(want.Dirs) && len(held.Key.Path())+12*len(want.Dirs) <= plainKeyBytes {
		h.errorf("Blocks: %.80q with %d directories, want all %d",
			held.Key.Path(), kept, len(want.Dirs))
	}
	got.Dirs, want.Dirs = nil, nil
	if !sameAttrs(got, want) {
		h.errorf("Blocks: %.80q with attributes %+v, want %+v", held.Key.Path(), got, want)
	}
}

// plainKeyBytes is how much any tier must keep of a name and its directories, at 12 bytes each.
const plainKeyBytes = 1024

// sameAttrs reports whether a and b are equal.
func sameAttrs(a, b driver.Attrs) bool {
	dirs := slices.Equal(a.Dirs, b.Dirs)
	a.Dirs, b.Dirs = nil, nil
	return dirs && a.Seq == b.Seq && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID &&
		a.Mtime == b.Mtime && a.Expires == b.Expires && a.Pinned == b.Pinned && a.User == b.User
}
