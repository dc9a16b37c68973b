package top

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/latency"
)

// example returns a frame with all parts.
func example() *Frame {
	var opens, reads latency.Counts
	for range 99 {
		opens.Observe(100 * time.Microsecond)
	}
	opens.Observe(20 * time.Second)
	reads.Observe(3 * time.Microsecond)
	ratio := 0.75
	f := &Frame{
		Doc: &status.Document{
			Schema: status.Schema, Version: "v1.2.3", PID: 42, UptimeSeconds: 3725.4,
			Mount: status.Mount{Dir: "/mnt/kv", ReadPath: "passthrough", WritePath: "daemon"},
			Tiers: []status.Tier{
				{Name: "memory", Type: "memory", State: "online", UsedBytes: 3 << 20, CapacityBytes: 4 << 20, Blocks: 7},
				{Name: "disk", Type: "disk", State: "degraded", Reason: "b failed", UsedBytes: 1, CapacityBytes: 1 << 30, Blocks: 1},
			},
			Groups:      []status.Group{{Name: "a", UsedBytes: 1 << 20}, {Name: "b", UsedBytes: 2 << 20, QuotaBytes: 2 << 20, Pinned: true}},
			Counters:    tiers.Counters{Lost: 3, NoSpace: 4},
			Secondaries: make([]tiers.SecondaryStats, 1),
			Cluster: &status.Cluster{Warning: "several addresses", Members: []cluster.Member{
				{Name: "here", State: "alive", Self: true, Blocks: 8, FreeBytes: 1 << 20, TotalBytes: 2 << 20},
				{Name: "there", State: "failed", Failures: 2, LastError: "no answer"},
			}},
		},
		Rates:    &watch.Rates{Interval: 2, Reads: 30, ReadBytes: 10240, Writes: 0.5, WrittenBytes: 20, HitRatio: &ratio, Misses: 10, Cascades: 1, QueuedBlocks: 1, QueuedBytes: 99},
		Requests: map[string]latency.Counts{"READ": reads, "OPEN": opens, "WRITE": {}},
		Events:   []string{"older", "newer"},
	}
	f.Doc.Secondaries[0].Corrupt = 5
	return f
}

// TestBody pins the lines of a frame.
func TestBody(t *testing.T) {
	want := `kvfs top  /mnt/kv  version v1.2.3, pid 42, up 1h2m5s
reads by passthrough, writes by daemon

TIERS
memory  [|||||||||||||||     ]  75.0%  3.0 MiB of 4.0 MiB  7 blocks  online
disk    [|                   ]  0.0%   1 B of 1.0 GiB      1 block   degraded (b failed)

RATES A SECOND
reads       30   10.0 KiB  hits       75.0%  misses  10
writes      0.5  20 B      evictions  0      queued  1 block, 99 B
promotions  0              cascades   1.0

PROBLEMS
memory   3  blocks evicted that no other tier had
memory   4  writes refused for lack of room
-        5  copies that failed their checksum
cluster     several addresses

REQUESTS OF THE KERNEL
OPERATION  A SECOND  MEAN   HALF WITHIN  99% WITHIN
OPEN       50        200ms  131µs        131µs
READ       0.5       3µs    4µs          4µs

GROUPS IN MEMORY
b  [||||||||||||||||||||]  2.0 MiB  quota 2.0 MiB pinned
a  [|||||               ]  1.0 MiB

MEMBERS
there  failed  0 blocks  0 B free of 0 B          fetched 0 B  2 failures, the last: no answer
here   alive   8 blocks  1.0 MiB free of 2.0 MiB  fetched 0 B  this node

LAST EVENTS
newer
older
`
	var got strings.Builder
	for _, l := range body(example(), 120) {
		got.WriteString(l.text + "\n")
	}
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
	// The first frame of a new daemon has little to show.
	got.Reset()
	for _, l := range body(&Frame{Doc: &status.Document{}, EventErr: errors.New("permission denied")}, 80) {
		got.WriteString(l.text + "\n")
	}
	if want := "kvfs top  -  version -, pid 0, up 0s\nreads by -, writes by -\n\nRATES A SECOND\ncome with the next view\n\nLAST EVENTS\npermission denied\n"; got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

// TestManyGroups shows that the lists are cut, and say so.
func TestManyGroups(t *testing.T) {
	f := &Frame{Doc: &status.Document{Cluster: &status.Cluster{}}}
	for i := range 100 {
		f.Doc.Groups = append(f.Doc.Groups, status.Group{Name: fmt.Sprint("g", i), UsedBytes: int64(i)})
		f.Doc.Cluster.Members = append(f.Doc.Cluster.Members, cluster.Member{Name: fmt.Sprint("n", i), State: "alive"})
	}
	var texts []string
	for _, l := range body(f, 80) {
		texts = append(texts, l.text)
	}
	if !slices.Contains(texts, "and 80 more") || !slices.Contains(texts, "and 50 more") || len(texts) > 90 {
		t.Errorf("got %q", texts)
	}
}

// TestShown shows that no name reaches the terminal as it is, and that no line is wider than the terminal.
func TestShown(t *testing.T) {
	const hostile = "g/\x1b[2J\u009b31m\x1b]0;x\x07\rline\n\x7f\xff"
	f := example()
	d := f.Doc
	d.Version, d.Mount.Dir, d.Mount.ReadPath, d.Mount.WritePath, d.Cluster.Warning = hostile, hostile, hostile, hostile, hostile
	d.Tiers[0].Name, d.Tiers[0].Reason, d.Groups[0].Name, d.Secondaries[0].Name = hostile, hostile, hostile, hostile
	d.Cluster.Members[1] = cluster.Member{Name: hostile, State: hostile, Reason: hostile, Breaker: hostile, Failures: 1, LastError: hostile}
	f.Requests[hostile] = f.Requests["OPEN"]
	f.EventErr = errors.New(hostile)
	for _, width := range []int{0, 1, 20, 80, 200} {
		m, _ := (&Model{}).Update(tea.WindowSizeMsg{Width: width, Height: 1000})
		m, _ = m.Update(frameMsg{frame: f})
		for l := range strings.Lines(m.View().Content) {
			l = strings.TrimSuffix(l, "\n")
			l = strings.TrimSuffix(strings.TrimPrefix(l, "\x1b[1m"), "\x1b[m") // a title
			if n := len([]rune(l)); n > width {
				t.Errorf("%d of %d characters: %q", n, width, l)
			}
			if i := strings.IndexFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 || strings.HasPrefix(l, "line") {
				t.Errorf("shows %q", l)
			}
		}
	}
}

// press returns the model after some keys.
func press(m tea.Model, keys ...tea.KeyPressMsg) *Model {
	for _, k := range keys {
		m, _ = m.Update(k)
	}
	return m.(*Model)
}

// shown returns the lines that a model shows, without its last line.
func shown(m *Model) []string {
	lines := strings.Split(m.View().Content, "\n")
	return lines[:len(lines)-1]
}

// TestScroll shows which lines are shown after which keys, and after the terminal has changed its size.
func TestScroll(t *testing.T) {
	var all []string
	for _, l := range body(example(), 120) {
		text := l.text
		if l.title {
			text = "\x1b[1m" + text + "\x1b[m"
		}
		all = append(all, text)
	}
	model, _ := (&Model{}).Update(tea.WindowSizeMsg{Width: 120, Height: 11})
	if got := model.View(); got.Content != "waiting for the daemon; q quits" || !got.AltScreen {
		t.Errorf("before the first frame: %+v", got)
	}
	model, _ = model.Update(frameMsg{frame: example()})
	up, down := tea.KeyPressMsg{Code: tea.KeyUp}, tea.KeyPressMsg{Code: tea.KeyDown}
	pageUp, pageDown := tea.KeyPressMsg{Code: tea.KeyPgUp}, tea.KeyPressMsg{Code: tea.KeyPgDown}
	home, end := tea.KeyPressMsg{Code: tea.KeyHome}, tea.KeyPressMsg{Code: tea.KeyEnd}
	last := len(all) - 10
	for _, tc := range []struct {
		keys  []tea.KeyPressMsg
		first int
	}{
		{nil, 0}, {[]tea.KeyPressMsg{up}, 0}, {[]tea.KeyPressMsg{down, down, up}, 1}, {[]tea.KeyPressMsg{pageDown, down}, 11},
		{[]tea.KeyPressMsg{pageDown, pageDown, pageUp}, 10}, {[]tea.KeyPressMsg{end}, last}, {[]tea.KeyPressMsg{end, down, pageDown}, last},
		{[]tea.KeyPressMsg{end, pageUp, home}, 0}, {[]tea.KeyPressMsg{pageUp}, 0}, {[]tea.KeyPressMsg{{Code: 'x', Text: "x"}}, 0},
	} {
		m := press(model, tc.keys...)
		if got := shown(m); !slices.Equal(got, all[tc.first:tc.first+10]) {
			t.Errorf("after %v: got %q", tc.keys, got)
		}
		if want := fmt.Sprintf("q quits, arrows and page keys scroll: lines %d to %d of %d", tc.first+1, tc.first+10, len(all)); !strings.HasSuffix(m.View().Content, "\n"+want) {
			t.Errorf("after %v: no %q", tc.keys, want)
		}
	}
	bottom := press(model, end)
	tall, _ := bottom.Update(tea.WindowSizeMsg{Width: 120, Height: 1000})
	if got := shown(tall.(*Model)); !slices.Equal(got, all) || !strings.HasSuffix(tall.View().Content, "\nq quits") {
		t.Errorf("in a tall terminal: got %q", got)
	}
	small, _ := bottom.Update(tea.WindowSizeMsg{Width: 3, Height: 0})
	if got := shown(small.(*Model)); len(got) != 1 {
		t.Errorf("in a terminal without lines: got %q", got)
	}
	short, _ := bottom.Update(frameMsg{frame: &Frame{Doc: &status.Document{}}})
	if got := shown(short.(*Model)); len(got) != 5 {
		t.Errorf("after a short frame: got %q", got)
	}
}

// TestUpdate shows that one frame follows the other, and what ends the view.
func TestUpdate(t *testing.T) {
	frames, gone := 0, errors.New("gone")
	m := tea.Model(&Model{interval: time.Microsecond, next: func() (*Frame, error) {
		if frames++; frames > 2 {
			return nil, gone
		}
		return example(), nil
	}})
	next := m.Init()
	for i := range 3 {
		var msg tea.Msg
		m, next = m.Update(next()) // a frame
		if i < 2 {
			if m.(*Model).frame == nil || m.(*Model).err != nil {
				t.Errorf("frame %d: %+v", i, m)
			}
			m, next = m.Update(next()) // it is due
			continue
		}
		if msg = next(); msg != (tea.QuitMsg{}) || !errors.Is(m.(*Model).err, gone) {
			t.Errorf("after an error: got %v and %v", msg, m.(*Model).err)
		}
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		if _, cmd := m.Update(key); cmd == nil || cmd() != (tea.QuitMsg{}) {
			t.Errorf("%s does not quit", key)
		}
	}
}
