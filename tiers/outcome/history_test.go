package outcome

import (
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"time"
)

// memory is a History with a clock that ticks at each event.
type memory struct {
	*History
	now int64
}

func newMemory() *memory { return &memory{History: New(maphash.MakeSeed(), false, 0)} }

func (m *memory) add(path string, f Outcome) {
	m.now++
	f.Time = m.now
	m.Add(m.Hash(path), f)
}

// TestMemoryBound shows that the name to which something happened longest ago is forgotten first, that Nothing
// tells since when all is remembered, and that a full memory allocates nothing.
func TestMemoryBound(t *testing.T) {
	m := newMemory()
	for i := range MaxNames {
		m.add(fmt.Sprint(i), Outcome{Kind: Removed, Event: uint64(i)})
	}
	since := func(want int64) {
		t.Helper()
		if got := m.Nothing().Time; !got.Equal(time.Unix(0, want)) {
			t.Errorf("all is remembered since %v, want %d", got, want)
		}
	}
	since(0)
	m.add("0", Outcome{Kind: Replaced}) // anew, so that 1 is the oldest
	since(0)
	m.add("one more", Outcome{Kind: Removed})
	since(2)
	if m.Of(m.Hash("1")) != nil {
		t.Error("the oldest is still known")
	}
	if f := m.Of(m.Hash("0")); f == nil || f.Kind != Replaced {
		t.Errorf("the name that counts anew: %+v", f)
	}
	if f := m.Of(m.Hash("2")); f == nil || f.Event != 2 || f.Time != 3 {
		t.Errorf("the second oldest: %+v", f)
	}
	if hash := m.Hash("2"); !m.Is(hash, 2, 0) || m.Is(hash, 2, ReasonUnlink) || m.Is(hash, 3, 0) || m.Is(m.Hash("1"), 0, 0) {
		t.Error("Is takes another outcome for that of the second oldest")
	}
	path := m.now
	if n := testing.AllocsPerRun(10_000, func() {
		path++
		m.Add(uint64(path), Outcome{Time: path})
	}); n != 0 {
		t.Errorf("%v allocations for a name, with a full memory", n)
	}
}

// TestExplain shows what is told of a path whose directories were renamed: the latest of both, as far as
// something is known of the new path.
func TestExplain(t *testing.T) {
	renamed := func(m *memory, from, to string) { m.add(from, Outcome{Kind: Renamed, To: to, By: 7}) }
	removed := func(m *memory, path string) { m.add(path, Outcome{Kind: Removed, Reason: ReasonUnlink}) }
	for _, row := range []struct {
		name string
		do   func(m *memory)
		has  string // what there is: paths with spaces between
		want string // the kind and the new path of g/a
	}{
		{"nothing", func(*memory) {}, "", ""},
		{"removed", func(m *memory) { removed(m, "g/a") }, "", "removed"},
		{"renamed itself", func(m *memory) { renamed(m, "g/a", "g/b") }, "g/b", "renamed g/b"},
		{"its directory", func(m *memory) { renamed(m, "g", "h") }, "h/a", "renamed h/a"},
		{"its directory, but it was not there", func(m *memory) { renamed(m, "g", "h") }, "", ""},
		{"twice", func(m *memory) { renamed(m, "g", "h"); renamed(m, "h", "i") }, "i/a", "renamed i/a"},
		{"then removed", func(m *memory) { renamed(m, "g", "h"); removed(m, "h/a") }, "", "renamed h/a"},
		{"removed before", func(m *memory) { removed(m, "g/a"); renamed(m, "g", "h") }, "", "removed"},
		{"back and gone", func(m *memory) { renamed(m, "g", "h"); removed(m, "g/a") }, "h/a", "removed"},
		{"removed before, and there now", func(m *memory) { removed(m, "g/a"); renamed(m, "g", "h") }, "h/a", "renamed h/a"},
		{"in a circle", func(m *memory) { renamed(m, "g", "h"); renamed(m, "h", "g") }, "", ""},
	} {
		m := newMemory()
		row.do(m)
		v, ok := m.Explain("g/a", func(path string) bool { return strings.Contains(" "+row.has+" ", " "+path+" ") })
		if got := strings.TrimSpace(string(v.Kind) + " " + v.To); got != row.want || ok != (got != "") {
			t.Errorf("%s: %q, %v, want %q", row.name, got, ok, row.want)
		}
	}
	m := newMemory()
	renamed(m, "top/g", "top/h")
	if v, _ := m.Explain("top/g/x/a", func(string) bool { return true }); v.Text != "renamed to top/h/x/a, with its directory" || v.By != "thread 7" {
		t.Errorf("below a directory: %+v", v)
	}
}

// TestChain shows that Explain follows a limited number of renames.
func TestChain(t *testing.T) {
	for n := 1; n <= maxMoved+2; n++ {
		m := newMemory()
		for i := range n {
			m.add(fmt.Sprintf("d%d", i), Outcome{Kind: Renamed, To: fmt.Sprintf("d%d", i+1)})
		}
		last := fmt.Sprintf("d%d/a", n)
		_, ok := m.Explain("d0/a", func(path string) bool { return path == last })
		if want := n <= maxMoved; ok != want {
			t.Errorf("%d renames: found %v, want %v", n, ok, want)
		}
	}
}
