package policy_test

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/policy"
)

// The caller decides about each candidate: here block 1 is pinned, and one eviction is enough.
func ExamplePolicy() {
	p, err := policy.New("lru", 4096)
	if err != nil {
		fmt.Println(err)
		return
	}
	for id := range uint32(3) {
		p.Add(id, uint64(id), 1024)
	}
	p.Touch(0, 0)
	evicted := false
	p.Victims(func(id uint32) policy.Verdict {
		switch {
		case evicted:
			return policy.Stop
		case id == 1:
			return policy.Skip
		}
		fmt.Println("evict", id)
		evicted = true
		return policy.Evict
	})
	fmt.Println(p.Len(), "blocks left")
	// Output:
	// evict 2
	// 2 blocks left
}
