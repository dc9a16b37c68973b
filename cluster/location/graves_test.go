package location

import (
	"fmt"
	"testing"
	"time"
)

const start = int64(1e18) // a time

// clock is a fake clock.
type clock struct{ now int64 }

func (c *clock) time() time.Time { return time.Unix(0, c.now) }

// TestManyGraves makes more graves than the limit, and lets them expire: memory stays bounded and
// is freed.
func TestManyGraves(t *testing.T) {
	const most, n = 5000, 20000
	c := &clock{now: start}
	x := New(Options{Horizon: time.Hour, MaxGraves: most, Now: c.time})
	empty := x.Stats().Bytes
	message := make([]byte, 1<<20)
	for i := range n {
		c.now++
		path := string(message[:100]) + fmt.Sprintf("%08d", i)
		if !x.Bury(uint64(i), uint64(c.now), i%2 == 0, path, c.now) {
			t.Fatalf("%d is not news", i)
		}
	}
	st := x.Stats()
	if st.Graves != most || x.Buried(n-most-1) != 0 || x.Buried(n-most) == 0 || x.Buried(n-1) == 0 {
		t.Fatalf("%+v: not the latest %d", st, most)
	}
	if each := (st.Bytes - empty) / most; each < 100+int64(len("00000000")) || each > 500 {
		t.Errorf("%d bytes a grave", each)
	}
	calls := 0
	x.Graves(0, func(Grave) bool { calls++; return calls < 3 })
	if calls != 3 {
		t.Errorf("called %d times, want 3", calls)
	}
	// Made during Graves: not returned, and no deadlock.
	calls = 0
	x.Graves(0, func(g Grave) bool {
		c.now++
		calls++
		return x.Bury(g.Hash, uint64(c.now), g.Dir, g.Path, c.now)
	})
	if calls == 0 || calls > most {
		t.Errorf("called %d times of %d", calls, most)
	}
	c.now += int64(time.Hour)
	if x.Buried(n-1) != 0 { // nothing has swept it yet
		t.Error("there after its time")
	}
	if st := x.Stats(); st.Graves != 0 || st.Bytes > empty+16<<10 {
		t.Errorf("%+v, was empty with %d bytes", st, empty)
	}
}
