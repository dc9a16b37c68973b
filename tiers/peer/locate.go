package peer

import (
	"slices"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/peer/pace"
)

// locate appends to buf, which is empty, the holders of a version of a path, best first. With seq 0
// that is the latest version of any node. It needs only memory.
func (t *Tier) locate(path string, seq uint64, buf []holder) []holder {
	hash := location.HashPath(path)
	buf = t.node.locate(path, buf)
	if t.hints.any() {
		buf = t.withHints(path, hash, buf)
	}
	if t.bad.Any() || t.gone.Any() {
		now := t.now()
		buf = slices.DeleteFunc(buf, func(h holder) bool {
			k := pace.Copy{Hash: hash, Seq: h.Seq, Peer: h.peer.Name()}
			return t.bad.Has(k, now) || t.gone.Has(k, now)
		})
	}
	if seq == 0 {
		for i := range buf {
			seq = max(seq, buf[i].Seq)
		}
	}
	return slices.DeleteFunc(buf, func(h holder) bool { return h.Seq != seq })
}

// withHints puts holders that the index does not have before those of the index, in the order of the hints.
func (t *Tier) withHints(path string, hash uint64, buf []holder) []holder {
	grave, now := t.node.buried(hash), t.now()
	var few [8]hint
	put := 0 // that many hints are in buf
	for _, h := range t.hints.get(path, now, few[:0]) {
		same := func(k holder) bool { return k.peer.Name() == h.peer.Name() && k.Seq >= h.Seq }
		switch {
		case slices.ContainsFunc(buf[put:], same) || !t.stands(&h, grave):
			t.hints.drop(path, h.peer.Name(), h.Seq, now)
		case !slices.ContainsFunc(buf[:put], same):
			buf = slices.Insert(buf, put, h.holder)
			put++
		}
	}
	return buf
}

// stands reports whether the peer of a hint is there, and the version is not void.
func (t *Tier) stands(h *hint, grave uint64) bool {
	return h.Seq >= grave && (h.kind == offered || t.node.peerBy(h.peer.Name()) != nil)
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
