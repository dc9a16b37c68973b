package grave

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
)

// TestTake shows that graves without sense change nothing.
func TestTake(t *testing.T) {
	var malformed, far int
	var taken []uint64
	x := &Exchange{
		Index: location.New(location.Options{}), Epoch: 1,
		Taken: func(_ string, _ bool, seq uint64) { taken = append(taken, seq) },
		Bad: func(ahead bool) {
			if ahead {
				far++
			} else {
				malformed++
			}
		},
	}
	x.take(&wire.Graves{Graves: []*wire.Grave{
		{Path: []byte("../x"), Seq: 5}, {Path: nil, Seq: 5}, {Path: []byte(".kvfs/x"), Seq: 5}, nil,
		{Path: []byte("g/far"), Seq: uint64(time.Now().Add(48 * time.Hour).UnixNano())},
		{Path: []byte("g/near"), Seq: 5},
	}})
	if malformed != 4 || far != 1 || len(taken) != 1 || taken[0] != 5 || x.Index.Stats().Graves != 1 {
		t.Errorf("%d malformed, %d too far, taken %d, %d graves", malformed, far, taken, x.Index.Stats().Graves)
	}
}
