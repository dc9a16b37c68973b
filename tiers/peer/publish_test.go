package peer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
)

// settled waits until all events have been handled, and returns the state in the records, by hash:
// the version, 0 for released.
func (a *cell) settled(t *testing.T) (records []feed.Record, state map[uint64]uint64) {
	t.Helper()
	eventually(t, "all events announced", a.log.reached)
	records, state = a.node.appended(), map[uint64]uint64{}
	for _, r := range records {
		state[r.Hash] = r.Seq
	}
	return records, state
}

func eventOf(kind event.Kind, path, from string) event.Event {
	ev := event.Event{Kind: kind, Key: keyOf(path)}
	if from != "" {
		ev.From = keyOf(from)
	}
	return ev
}

// TestPublish shows that events become records of the present state of their names. Events from
// before the start do not, nor those of copies on other nodes. A name is announced once however
// many events there were, and a rename under both names.
func TestPublish(t *testing.T) {
	a := openCell(t, 0, nil, stillClock())
	a.log.add(eventOf(event.Stored, "early", ""))
	a.engine.put(tiers.Holding{Path: "early", Seq: 1}, nil)
	a.engine.put(tiers.Holding{Path: "g/x", Seq: 7, UID: 4}, payload(10, 1))
	a.engine.put(tiers.Holding{Path: "g", Seq: 3, Mode: modeDir | 0o755}, nil)
	a.engine.put(tiers.Holding{Path: "new", Seq: 8}, nil)
	a.begin(t)
	a.log.add(
		eventOf(event.DirCreated, "g", ""), eventOf(event.Stored, "g/x", ""), eventOf(event.Evicted, "g/x", ""),
		event.Event{Kind: event.Stored, Key: keyOf("copied"), Tier: "peer"}, // a copy on another node
		eventOf(event.Stored, "g/x", ""), eventOf(event.Removed, "g/y", ""), eventOf(event.Renamed, "new", "old"))
	records, state := a.settled(t)
	want := map[uint64]uint64{hashOf("g"): 3, hashOf("g/x"): 7, hashOf("g/y"): 0, hashOf("new"): 8, hashOf("old"): 0}
	if fmt.Sprint(state) != fmt.Sprint(want) || len(records) != len(want) {
		t.Errorf("records %+v", records)
	}
	for _, r := range records {
		switch {
		case r.Hash == hashOf("g/x") && (r.Op != feed.Hold || r.Size != 10 || r.UID != 4 || !r.Memory || r.Mode != modeRegular|0o644),
			r.Hash == hashOf("g") && (r.Op != feed.Hold || r.Mode != modeDir|0o755),
			r.Hash == hashOf("old") && r.Op != feed.Release:
			t.Errorf("record %+v", r)
		}
	}
	a.engine.remove("g/x")
	a.log.add(eventOf(event.Removed, "g/x", ""))
	if _, state := a.settled(t); state[hashOf("g/x")] != 0 {
		t.Error("the removal was not announced")
	}
	if a.node.resyncs != 0 {
		t.Errorf("%d resyncs", a.node.resyncs)
	}
}

// TestPublishGap shows that after a gap in the log everything is announced again, and that the
// publisher continues after it.
func TestPublishGap(t *testing.T) {
	a := newCell(t, 0, nil)
	a.log.add(eventOf(event.Stored, "x", ""))
	a.settled(t)
	a.log.lose(1000, eventOf(event.Stored, "y", ""))
	a.settled(t)
	if a.node.resyncs != 1 {
		t.Errorf("%d resyncs, want 1", a.node.resyncs)
	}
	a.engine.put(tiers.Holding{Path: "z", Seq: 5}, nil)
	a.log.add(eventOf(event.Stored, "z", ""))
	if _, state := a.settled(t); state[hashOf("z")] != 5 {
		t.Error("nothing is announced after the gap")
	}
	if d := a.Stats().Detail.(*Detail); d.Resyncs != 1 || d.Published != 2 {
		t.Errorf("Stats: %+v", d)
	}
}

// TestPublishDirRenamed shows that everything below a renamed directory is announced under both
// names, at any depth and in any number.
func TestPublishDirRenamed(t *testing.T) {
	a := openCell(t, 0, nil, stillClock())
	var names []string
	for i := range dirBatch + 20 {
		names = append(names, fmt.Sprintf("/f%04d", i))
	}
	names = append(names, "/sub/deep/f", "/sub/g")
	for _, dir := range []string{"", "/sub", "/sub/deep"} {
		a.engine.put(tiers.Holding{Path: "to" + dir, Seq: 2, Mode: modeDir | 0o755}, nil)
	}
	for _, name := range names {
		a.engine.put(tiers.Holding{Path: "to" + name, Seq: 7}, nil)
	}
	a.engine.put(tiers.Holding{Path: "from/sub/g", Seq: 9}, nil) // made since then
	a.begin(t)
	a.log.add(eventOf(event.DirRenamed, "to", "from"))
	_, state := a.settled(t)
	for _, name := range append(names, "/sub", "/sub/deep", "") {
		want := map[bool]uint64{true: 9, false: 0}[name == "/sub/g"]
		if old, ok := state[hashOf("from"+name)]; !ok || old != want {
			t.Errorf("from%s: announced %v as %d, want %d", name, ok, old, want)
		}
		if state[hashOf("to"+name)] == 0 {
			t.Errorf("to%s: not announced", name)
		}
	}
}

// TestPublishDirRenamedThenRemoved shows that a file that leaves a renamed directory before the
// publisher has looked into it is released under its old name, too, and that overlapping renames
// lead to a snapshot.
func TestPublishDirRenamedThenRemoved(t *testing.T) {
	a := openCell(t, 0, nil, stillClock())
	a.engine.put(tiers.Holding{Path: "to", Seq: 2, Mode: modeDir | 0o755}, nil)
	a.engine.put(tiers.Holding{Path: "to/stays", Seq: 3}, nil)
	a.begin(t)
	a.log.add(eventOf(event.DirRenamed, "to", "from"), eventOf(event.Removed, "to/gone", ""))
	records, _ := a.settled(t)
	gone := func(r feed.Record) bool { return r.Hash == hashOf("from/gone") && r.Op == feed.Release }
	if !slices.ContainsFunc(records, gone) {
		t.Errorf("from/gone was not released: %+v", records)
	}
	if a.node.resyncs != 0 {
		t.Errorf("%d resyncs", a.node.resyncs)
	}
	for i, second := range [][2]string{{"to", "third"}, {"third", "from/x"}, {"to/a", "to/b"}} {
		before := a.node.resyncs
		a.log.add(eventOf(event.DirRenamed, "to", "from"), eventOf(event.DirRenamed, second[1], second[0]))
		a.settled(t)
		if a.node.resyncs != before+1 {
			t.Errorf("row %d: %d resyncs, want one more than %d", i, a.node.resyncs, before)
		}
	}
	before := a.node.resyncs
	a.log.add(eventOf(event.DirRenamed, "a2", "a1"), eventOf(event.DirRenamed, "b2", "b1"), eventOf(event.DirRenamed, "to2", "to1"))
	if a.settled(t); a.node.resyncs != before {
		t.Error("renames that do not cross led to a snapshot")
	}
}
