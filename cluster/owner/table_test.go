package owner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/cluster/feed"
)

func names(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("node-%d", i))
	}
	return list
}

// TestTable shows that each shard has three different owners, that all agree whatever the order of the members, that the work
// is spread, and that a member that leaves or joins moves no more than its share.
func TestTable(t *testing.T) {
	members := names(100)
	table := NewTable(members)
	shuffled := slices.Clone(members)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	other := NewTable(shuffled)
	without := NewTable(members[1:])
	first, moved := map[string]int{}, 0
	for shard := range uint64(feed.MaxParts) {
		hash := shard<<48 | 12345
		owners := table.Owners(hash, nil)
		if len(owners) != Copies || owners[0] == owners[1] || owners[0] == owners[2] || owners[1] == owners[2] {
			t.Fatalf("shard %d: %v", shard, owners)
		}
		if !slices.Equal(other.Owners(hash, nil), owners) {
			t.Fatalf("shard %d: %v and %v", shard, owners, other.Owners(hash, nil))
		}
		first[owners[0]]++
		left := slices.DeleteFunc(slices.Clone(owners), func(o string) bool { return o == members[0] })
		now := without.Owners(hash, nil)
		if !slices.Equal(now[:len(left)], left) {
			t.Fatalf("shard %d: %v, and without %s %v", shard, owners, members[0], now)
		}
		if len(left) < len(now) {
			moved++
		}
	}
	if owned := table.Owned(members[0]).Count(); owned != moved {
		t.Errorf("%d shards moved, the member had %d", moved, owned)
	}
	for _, member := range members {
		share := float64(feed.MaxParts) / float64(len(members))
		if n := float64(first[member]); n < 0.8*share || n > 1.2*share {
			t.Errorf("%s is the first owner of %.0f shards, %.0f are its share", member, n, share)
		}
		if n := float64(table.Owned(member).Count()); n < 0.85*Copies*share || n > 1.15*Copies*share {
			t.Errorf("%s owns %.0f shards, %.0f are its share", member, n, Copies*share)
		}
	}
}

// TestFew shows who owns the shards of fewer members than copies, and that a stranger owns none.
func TestFew(t *testing.T) {
	for n := range Copies + 1 {
		table := NewTable(names(n))
		if owners := table.Owners(1, nil); len(owners) != n {
			t.Errorf("%d members: owners %v", n, owners)
		}
		for _, member := range table.Members() {
			if owned := table.Owned(member).Count(); owned != feed.MaxParts {
				t.Errorf("%s of %d owns %d", member, n, owned)
			}
		}
		if owned := table.Owned("stranger").Count(); owned != 0 {
			t.Errorf("a stranger owns %d", owned)
		}
	}
}
