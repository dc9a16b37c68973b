package gossip

import (
	"sync"
	"testing"
)

// TestLeaveTogether shows that nodes which leave at the same time do not wait for each other
// until their time is over, as each does for others that are to hear of it: none fails.
func TestLeaveTogether(t *testing.T) {
	for range 5 {
		a := start(t, "a", deps{}, nil)
		b := start(t, "b", deps{}, func(o *Options) { o.Join = []string{a.Self().Addr} })
		if err := b.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "they know each other", func() bool { return len(a.members.nodes()) == 1 && len(b.members.nodes()) == 1 })
		var all sync.WaitGroup
		for _, n := range []*node{a, b} {
			all.Go(func() {
				if err := n.Leave(t.Context()); err != nil {
					t.Error(err)
				}
				n.Close()
			})
		}
		all.Wait()
	}
}
