package peer

import (
	"slices"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/driver"
)

// locate appends to buf, which is empty, the holders of a version of a path, best first. With seq 0
// that is the latest version of any node. It needs only memory.
func (t *Tier) locate(path string, seq uint64, buf []holder) []holder {
	hash := location.HashPath(path)
	buf = t.node.locate(path, buf)
	if t.hints.any() {
		buf = t.withHints(path, hash, buf)
	}
	if t.bad.any() || t.gone.any() {
		now := t.now()
		buf = slices.DeleteFunc(buf, func(h holder) bool {
			k := badKey{hash, h.Seq, h.peer.Name()}
			return t.bad.has(k, now) || t.gone.has(k, now)
		})
	}
	if seq == 0 {
		for i := range buf {
			seq = max(seq, buf[i].Seq)
		}
	}
	return slices.DeleteFunc(buf, func(h holder) bool { return h.Seq != seq })
}

// withHints puts holders that the index does not have yet before those of the index.
func (t *Tier) withHints(path string, hash uint64, buf []holder) []holder {
	grave := t.node.buried(hash)
	for _, h := range t.hints.get(path, t.now()) {
		known := slices.ContainsFunc(buf, func(k holder) bool {
			return k.peer.Name() == h.peer.Name() && k.Seq >= h.Seq
		})
		live := h.offer || t.node.peerBy(h.peer.Name()) != nil
		switch {
		case known || !live || h.Seq < grave:
			t.hints.drop(path, h.peer.Name(), h.Seq)
		default:
			buf = slices.Insert(buf, 0, h.holder)
		}
	}
	return buf
}

// Locate implements driver.Remote.
func (t *Tier) Locate(path string) (driver.Located, bool) {
	var buf [8]holder
	found := t.locate(path, 0, buf[:0])
	if len(found) == 0 {
		return driver.Located{}, false
	}
	e := &found[0].Entry
	return driver.Located{
		Seq: e.Seq, Size: e.Size, Mode: e.Mode, UID: e.UID, GID: e.GID, Mtime: int64(e.Seq),
	}, true
}

// Buried implements driver.Remote.
func (t *Tier) Buried(path string) uint64 { return t.node.buried(location.HashPath(path)) }
