package owner

import (
	"math/bits"
	"slices"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
)

// Copies is how many members own each shard.
const Copies = 3

// Table says which members own which shards. It does not change.
type Table struct {
	members []string
	owners  [][Copies]uint16 // by shard: places in members, the best first
}

// NewTable returns the table of some members, at most 65,535 with different names.
func NewTable(members []string) *Table {
	t := &Table{members: slices.Sorted(slices.Values(members)), owners: make([][Copies]uint16, feed.MaxParts)}
	names := make([]uint64, len(t.members))
	for i, name := range t.members {
		names[i] = location.HashPath(name)
	}
	for shard := range t.owners {
		t.owners[shard] = best(uint64(shard), names)
	}
	return t
}

// best returns the owners of a shard. Places beyond the number of names are 0xffff.
func best(shard uint64, names []uint64) (of [Copies]uint16) {
	var scores [Copies]uint64
	for i := range of {
		of[i] = 0xffff
	}
	for place, name := range names {
		at, score := uint16(place), mix(name^shard*0x9e3779b97f4a7c15)
		for i := range of {
			if of[i] == 0xffff || score > scores[i] {
				of[i], at = at, of[i]
				scores[i], score = score, scores[i]
			}
			if at == 0xffff {
				break
			}
		}
	}
	return of
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Members returns the members in order. They must not be changed.
func (t *Table) Members() []string { return t.members }

// Owners appends the owners of a key to buf, the best first: Copies of them, or all members if there are fewer.
func (t *Table) Owners(hash uint64, buf []string) []string {
	for _, place := range t.owners[hash>>(64-bits.TrailingZeros(feed.MaxParts))] {
		if int(place) < len(t.members) {
			buf = append(buf, t.members[place])
		}
	}
	return buf
}

// Owned returns the shards of a member.
func (t *Table) Owned(member string) feed.Parts {
	owned := feed.NewParts(feed.MaxParts)
	at, ok := slices.BinarySearch(t.members, member)
	for shard := range t.owners {
		if ok && slices.Contains(t.owners[shard][:], uint16(at)) {
			owned.Add(shard)
		}
	}
	return owned
}
