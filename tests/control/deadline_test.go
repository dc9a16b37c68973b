package control

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// counter returns one of the engine's counters.
func counter(t testing.TB, d *harness.Daemon, name string) int {
	t.Helper()
	counters, _ := d.Status().Raw["counters"].(map[string]any)
	n, ok := counters[name].(float64)
	if !ok {
		t.Fatalf("status has no counter %s: %v", name, counters)
	}
	return int(n)
}

// TestOpenDeadline holds the device up. An open gives up after the deadline, later opens give up at once, and both
// are counted. The block stays on disk, and why gives the reason. Once the device is well, the open works.
func TestOpenDeadline(t *testing.T) {
	d, g := gateMount(t, harness.Options{Flags: []string{"--promotion-open-deadline", "200ms"}})
	coldBlocks(t, d, mib, "g/a", "g/b", "g/c")
	c := talk(t, d, "query")
	g.hold()
	within(t, "the open gives up", func() { wantMiss(t, d.Path("g/a")) })
	if got := counter(t, d, "deadline_exceeded_misses"); got != 1 {
		t.Errorf("deadline_exceeded_misses: got %d, want 1", got)
	}
	wantStates(t, c, "w", "g/a") // It is still on its way.
	harness.Poll(t, "the device counts as late", func() bool { return c.states("g/b") == "l" })
	before := counter(t, d, "deadline_predicted_misses")
	within(t, "the open of another one gives up", func() { wantMiss(t, d.Path("g/b")) })
	if got := counter(t, d, "deadline_predicted_misses"); got != before+1 {
		t.Errorf("deadline_predicted_misses: got %d, want %d", got, before+1)
	}
	if got := c.why("g/b")[0]; got.Verdict != "deadline" {
		t.Errorf("why: got %+v, want deadline", got)
	}
	g.release()
	for _, key := range []string{"g/a", "g/b", "g/c"} {
		harness.Poll(t, key+" can be read", func() bool {
			b, err := readBlock(d.Path(key))
			return err == nil && string(b) == string(pattern(key, mib))
		})
		if got := tierOf(d.Path(key)); got != "memory,disk" {
			t.Errorf("%s: in %q, want it in memory and on disk", key, got)
		}
		if got := c.why(key)[0]; got.Verdict != "present" {
			t.Errorf("why %s: got %+v, want present", key, got)
		}
	}
	if s := d.Status().Secondary(t, "disk"); s.Corrupt+s.IOErrors+s.PromoteCorrupt+s.PromoteAbsent != 0 {
		t.Errorf("a slow device was taken for a bad one: %+v", s)
	}
}

// TestOpenDeadlineGroups shows that a group may have a deadline of its own, or be without one,
// and that the one of the configuration holds for the rest.
func TestOpenDeadlineGroups(t *testing.T) {
	d, g := gateMount(t, harness.Options{
		Config: "promotion: {open_deadline: 10m}\ngroups: {hasty: {open_deadline: 100ms}}\n",
	})
	coldBlocks(t, d, 64*kib, "hasty/a", "hasty/b", "patient/a", "patient/b")
	c := talk(t, d, "query")
	g.hold()
	read := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path("patient/a"))
		read <- err
	}()
	g.await(t)
	within(t, "the open of the hasty group gives up", func() { wantMiss(t, d.Path("hasty/a")) })
	harness.Poll(t, "the hasty group's are late", func() bool { return c.states("hasty/b") == "l" })
	wantStates(t, c, "wld", "patient/a", "hasty/b", "patient/b")
	select {
	case err := <-read:
		t.Errorf("the open of the patient group is back already: %v", err)
	default:
	}
	g.release()
	must(t, "the open of the patient group", receive(t, "the read", read))
}

// TestQueryDeadline shows deadline_ms of queries: what the device will not give in time is
// late, which is a miss, in exists and longest_hit, in JSON and in binary; 0 is none; the
// deadline of the configuration holds where the query has none.
func TestQueryDeadline(t *testing.T) {
	d, g := gateMount(t, harness.Options{Config: "groups: {hasty: {open_deadline: 50ms}}\n"})
	coldBlocks(t, d, 64*kib, append(keysOf("g", hashes(4)), keysOf("hasty", hashes(2))...)...)
	put(t, d.Path("g", hash(0)), []byte("hot"))
	c := talk(t, d, "query")
	ask := func(extra obj) existsAnswer {
		t.Helper()
		q := obj{"group": "g", "hashes": hashes(5), "lease": false}
		for k, v := range extra {
			q[k] = v
		}
		return c.exists(q)
	}
	if got := ask(obj{"deadline_ms": 600_000}); got.States != "mddd." {
		t.Errorf("a device that is well: got %q", got.States)
	}
	g.hold()
	read := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path("g", hash(3)))
		read <- err
	}()
	g.await(t)
	var last existsAnswer
	defer func() {
		if t.Failed() {
			t.Logf("last answer %+v; disk %+v", last, d.Status().Secondary(t, "disk"))
		}
	}()
	harness.Poll(t, "the device counts as late", func() bool {
		last = ask(obj{"deadline_ms": 50})
		return last.States == "mllw."
	})
	if got := ask(obj{"deadline_ms": 50}); got.Late != 2 || got.Hits != 1 || got.Pending != 1 || got.Misses != 1 || got.Prefix != 1 {
		t.Errorf("got %+v", got)
	}
	if got := c.binaryExists(binaryRequest{flags: noLease, group: "g", hashes: hashes(5), deadline: 50}); got.States != "mllw." {
		t.Errorf("in binary: got %q", got.States)
	}
	for _, none := range []obj{{}, {"deadline_ms": 0}, {"deadline_ms": 3_600_000}} {
		if got := ask(none); got.States != "mddw." {
			t.Errorf("%v: got %q, want none to be late", none, got.States)
		}
	}
	wantStates(t, c, "ll", "hasty/"+hash(0), "hasty/"+hash(1))
	if got := c.exists(obj{"group": "hasty", "hashes": hashes(2), "deadline_ms": 0, "lease": false}); got.States != "dd" {
		t.Errorf("no deadline instead of the group's: got %q", got.States)
	}
	spec := specOf([]layer{{"g", "full", 0}})
	hit := c.longestHit(obj{"spec": spec, "hashes": hashes(4), "deadline_ms": 50, "lease": false})
	if hit.Tokens != 16 || hit.Late == 0 {
		t.Errorf("longest_hit: got %+v, want one block, and late ones", hit)
	}
	g.release()
	must(t, "read", receive(t, "the read", read))
	harness.Poll(t, "nothing is late any more", func() bool { return ask(obj{"deadline_ms": 600_000}).States == "mddm." })
}

// TestQueryDeadlineSize shows that a block which is too large to come in time by what the
// device has given so far is late, though the device has nothing to do.
func TestQueryDeadlineSize(t *testing.T) {
	d, _ := gateMount(t, harness.Options{})
	coldBlocks(t, d, 16*mib, "g/a", "g/b")
	wantBytes(t, d.Path("g/a"), pattern("g/a", 16*mib)) // The device has been seen.
	c := talk(t, d, "query")
	for deadline, want := range map[int]string{1: "ml.", 600_000: "md."} {
		got := c.exists(obj{"keys": []string{"g/a", "g/b", "g/c"}, "deadline_ms": deadline, "lease": false})
		if got.States != want {
			t.Errorf("within %d ms: got %q, want %q", deadline, got.States, want)
		}
	}
}
