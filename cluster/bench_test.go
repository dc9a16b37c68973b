package cluster

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/location"
)

// BenchmarkLocate looks up names with two holders each among 100,000, and names that
// there are not.
func BenchmarkLocate(b *testing.B) {
	n := &Node{index: location.New(location.Options{})}
	zone := ""
	for i := range 2 {
		p := &Peer{n: n, bulk: breaker.New(1, 1)}
		p.feed = newFollowing(p)
		p.zone.Store(&zone)
		p.session.Store(&session{target: &target{}})
		slot, _ := p.feed.TakeSlot()
		n.index.SetLive(slot, true)
		for k := range 100_000 {
			n.index.Put(slot, location.Entry{Hash: location.HashPath(fmt.Sprintf("g/%d", k)), Seq: 1, Size: 1 << 20, Mode: 0o100644, Memory: i == 0})
		}
	}
	for _, name := range []string{"present", "absent"} {
		b.Run(name, func(b *testing.B) {
			var paths []string
			for k := range 1000 {
				if name == "absent" {
					k += 1_000_000
				}
				paths = append(paths, fmt.Sprintf("g/%d", k*97))
			}
			buf := make([]Location, 0, 4)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if got := n.Locate(paths[i%len(paths)], buf); (len(got) == 2) != (name == "present") {
					b.Fatalf("%d holders", len(got))
				}
			}
		})
	}
}
