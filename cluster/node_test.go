package cluster

import (
	"bytes"
	"reflect"
	"testing"
)

// TestThree shows the way of a block through a cluster of three: announced by one, found
// by the others without asking, fetched from its holder, with all that is known of it.
func TestThree(t *testing.T) {
	nodes := cluster(t, "a", "b", "c")
	data := pattern(1, 100_000)
	want := nodes[0].put("g/one", 17, data)
	for _, n := range nodes[1:] {
		at := n.located(t, "g/one", 1)[0]
		if at.Peer.Name() != "a" || at.Seq != 17 || at.Size != 100_000 || !at.Memory || at.UID != 7 {
			t.Errorf("%s: located %+v", n.o.Gossip.Name, at)
		}
		got, info, err := fetchOne(t, t.Context(), at.Peer, BlockRef{Path: "g/one", Seq: 17})
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%s: fetched %d bytes, %v", n.o.Gossip.Name, len(got), err)
		}
		if !reflect.DeepEqual(info, want) {
			t.Errorf("%s: told %+v, want %+v", n.o.Gossip.Name, info, want)
		}
	}
	if at := nodes[0].Locate("g/one", nil); len(at) != 0 {
		t.Errorf("a finds itself: %v", at)
	}
	nodes[0].drop("g/one", false)
	nodes[1].located(t, "g/one", 0)
}
