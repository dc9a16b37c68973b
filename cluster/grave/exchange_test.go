package grave

import (
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/tiers/block"
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
		{Path: []byte("g/far"), Seq: block.MaxSeq + 1},
		{Path: []byte("g/near"), Seq: 5},
	}})
	if malformed != 4 || far != 1 || len(taken) != 1 || taken[0] != 5 || x.Index.Stats().Graves != 1 {
		t.Errorf("%d malformed, %d too far, taken %d, %d graves", malformed, far, taken, x.Index.Stats().Graves)
	}
}

// TestTakeClocks shows that graves from nodes whose clocks are far from right have the age that they have, and that those of
// clocks that are nearly right are left alone.
func TestTakeClocks(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	here := time.Now()
	for _, ahead := range []time.Duration{0, time.Second, -time.Second, 30 * time.Hour, -30 * time.Hour, 400 * day, -5 * year} {
		for age, kept := range map[time.Duration]bool{time.Minute: true, 23 * time.Hour: true, 25 * time.Hour: false} {
			there := here.Add(ahead)
			index := location.New(location.Options{Now: func() time.Time { return here }})
			x := &Exchange{Index: index, Now: func() time.Time { return here }, Sent: func(int) {}, Taken: func(string, bool, uint64) {},
				Bad: func(bool) { t.Error("bad") }}
			x.take(&wire.Graves{Now: there.UnixNano(), Graves: []*wire.Grave{{Path: []byte("g/x"), Seq: 5, At: there.Add(-age).UnixNano()}}})
			if got := index.Stats().Graves == 1; got != kept {
				t.Errorf("clock %v ahead, grave %v old: kept %v", ahead, age, got)
			}
			m := NewMarks()
			m.compare(there.UnixNano(), here, here)
			if got := here.Sub(time.Unix(0, m.Ours(there.Add(-age).UnixNano(), here))); (got-age).Abs() > time.Second && ahead < 30*time.Hour {
				t.Errorf("clock %v ahead: %v old, want %v", ahead, got, age)
			}
			if got := m.Ours(here.UnixNano()-int64(time.Minute), here); ahead > 0 && got != here.UnixNano()-int64(time.Minute) {
				t.Errorf("the clock that was %v ahead is mended: %v", ahead, here.Sub(time.Unix(0, got)))
			}
			var sent *wire.Graves
			mark := int64(0)
			if err := x.send(0, &mark, func(g *wire.Graves) error { sent = g; return nil }); err != nil || kept && sent.GetNow() != here.UnixNano() {
				t.Errorf("sent %v, %v", sent, err)
			}
		}
	}
}
