package location

import (
	"fmt"
	"slices"
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
	if x.Bury(n, uint64(start), false, "g/a", start) {
		t.Error("took one that is older than all")
	}
	var got []uint64
	x.Graves(c.now-1, func(g Grave) bool { got = append(got, g.Hash); return true })
	if !slices.Equal(got, []uint64{n - 2, n - 1}) {
		t.Errorf("the latest are %v", got)
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

// TestGraveBytes: the paths of graves have their own limit; the oldest graves go.
func TestGraveBytes(t *testing.T) {
	c := &clock{now: start}
	x := New(Options{MaxGraveBytes: 10 * MaxPath, Now: c.time})
	path := string(make([]byte, MaxPath-8))
	for i := range 100 {
		c.now++
		if !x.Bury(uint64(i), 5, false, fmt.Sprintf("%s%08d", path, i), c.now) {
			t.Fatalf("%d is no news", i)
		}
	}
	if n := x.Stats().Graves; n != 10 || x.Buried(99) != 5 || x.Buried(89) != 0 {
		t.Errorf("%d graves, the last %d, an old one %d", n, x.Buried(99), x.Buried(89))
	}
	if x.Bury(1000, 5, false, path, start) {
		t.Error("older than all that there is room for, and news")
	}
	if !x.Bury(95, 6, false, path, c.now) || x.Stats().Graves != 10 {
		t.Errorf("raised: %d graves", x.Stats().Graves)
	}
}
