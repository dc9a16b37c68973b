package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// model is what the names mean under the rules of writing, written without regard to how the engine
// does it. It learns from the events what was evicted, and predicts everything else.
type model struct {
	*lower
	rng   *rand.Rand
	clock aheadClock
	names map[string]*bytesOf // what has a name, hidden or not
	open  []*opening
	reads []*snapshot
	told  map[string]*copies // what the events say
	trace
}

// trace is what a random test has done.
type trace []string

func (tr *trace) logf(format string, args ...any) { *tr = append(*tr, fmt.Sprintf(format, args...)) }

// show prints its end.
func (tr trace) show(t testing.TB) {
	for _, line := range tr[max(0, len(tr)-60):] {
		t.Log(line)
	}
}

// bytesOf is a file.
type bytesOf struct {
	data    []byte
	kind    string // "block", "temp" or "plain"
	hidden  bool   // it has its name, but only its own process finds it there
	moved   bool   // hidden, and not even that: another process renamed it
	at      string // the name that it has; "": none any more
	owner   uint32
	handles []*opening
	changed bool // since its last commit
}

// opening is a file open for writing by a process.
type opening struct {
	f    *file
	of   *bytesOf
	proc uint32
}

// snapshot is a file open for reading.
type snapshot struct {
	f    *file
	name string
	of   *bytesOf
}

const (
	modelProcs = 3
	modelSize  = 3 * page // of a file, at most
)

// modelNames are names of each kind.
func modelNames() []string {
	names := []string{"g0/t.tmp", "g1/t.tmp", "g0/x.lock", "p/0", "p/1"}
	for i := range 10 {
		names = append(names, fmt.Sprintf("g%d/%d", i%2, i/2))
	}
	return names
}

func modelKind(name string) string {
	switch {
	case strings.HasSuffix(name, ".tmp"):
		return "temp"
	case strings.HasSuffix(name, ".lock"), strings.HasPrefix(name, "p/"):
		return "plain"
	}
	return "block"
}

func (m *model) name() string { all := modelNames(); return all[m.rng.IntN(len(all))] }

// proc returns a process, and one of its threads.
func (m *model) proc() (proc, tid uint32) {
	proc = uint32(1 + m.rng.IntN(modelProcs))
	return proc, 10*proc + uint32(m.rng.IntN(3))
}

func (m *model) data() []byte {
	p := make([]byte, 1+m.rng.IntN(page))
	for i := range p {
		p[i] = byte('a' + m.rng.IntN(26))
	}
	return p
}

// mine reports whether a process finds a file that others do not.
func (b *bytesOf) mine(proc uint32) bool {
	return !b.moved && (b.owner == proc || slices.ContainsFunc(b.handles, func(o *opening) bool { return o.proc == proc }))
}

// writtenBy reports whether a process has a file open for writing; not: any other.
func (b *bytesOf) writtenBy(proc uint32, not bool) bool {
	return slices.ContainsFunc(b.handles, func(o *opening) bool { return (o.proc == proc) != not })
}

// means returns what a name means to a process, nil: nothing.
func (m *model) means(proc uint32, name string) *bytesOf {
	if b := m.names[name]; b != nil && (!b.hidden || b.mine(proc)) {
		return b
	}
	return nil
}

// lose takes the name from a file.
func (m *model) lose(b *bytesOf) {
	if m.names[b.at] == b {
		delete(m.names, b.at)
	}
	b.at = ""
}

// take makes a new file, and takes the name from the file that has it.
func (m *model) take(proc uint32, name string) *bytesOf {
	if h := m.names[name]; h != nil {
		m.lose(h)
	}
	b := &bytesOf{kind: modelKind(name), owner: proc, at: name}
	b.hidden = b.kind == "block"
	m.names[name] = b
	return b
}

// commit makes a file what its name means to all.
func (m *model) commit(b *bytesOf) { b.hidden, b.moved, b.changed = false, false, false }

// opened follows an open for writing that found b. trunc: O_TRUNC.
func (m *model) opened(proc uint32, name string, b *bytesOf, trunc bool) *bytesOf {
	switch {
	case !trunc:
		return b
	case b.kind == "block" && !b.hidden, b.kind == "temp" && b.writtenBy(proc, true):
		return m.take(proc, name)
	}
	b.changed = true // its time of last write at least
	b.data = nil
	if b.kind == "temp" {
		b.owner = proc
	}
	return b
}

// begin opens a file for writing.
func (m *model) begin() {
	name := m.name()
	proc, tid := m.proc()
	if len(m.open) >= 5 {
		m.end(m.rng.IntN(len(m.open)))
		return
	}
	how := []string{"open", "open trunc", "create", "create trunc", "create trunc"}[m.rng.IntN(5)]
	trunc := strings.HasSuffix(how, "trunc")
	m.logf("%d %s %s", tid, how, name)
	b := m.means(proc, name)
	f, err := m.openHow(tid, name, strings.HasPrefix(how, "create"), trunc)
	if b == nil && how[0] == 'o' {
		m.want(how+" "+name, err, block.ErrNotFound)
		return
	}
	m.want(how+" "+name, err, nil)
	if err != nil {
		return
	}
	held := m.names[name]
	switch {
	case b != nil:
		b = m.opened(proc, name, b, trunc)
	case held == nil, trunc:
		b = m.take(proc, name)
	default:
		b = held // it joins the process that hides it
	}
	o := &opening{f, b, proc}
	b.handles, m.open = append(b.handles, o), append(m.open, o)
	m.absorb()
}

func (m *model) openHow(tid uint32, name string, create, trunc bool) (*file, error) {
	if create && trunc {
		return m.openOrCreate(tid, name)
	}
	f, err := m.openWrite(context.Background(), tid, name, trunc)
	if create && errors.Is(err, block.ErrNotFound) {
		f, err = m.create(tid, name, false, false)
	}
	return f, err
}

// write writes into an open file, at any place.
func (m *model) write() {
	if len(m.open) == 0 {
		return
	}
	o := m.open[m.rng.IntN(len(m.open))]
	b, data := o.of, m.data()
	off := m.rng.IntN(len(b.data) + 1)
	if off+len(data) > modelSize {
		off = 0
	}
	m.logf("%d write %s %d at %d", o.f.tid, b.at, len(data), off)
	_, err := o.f.h.WriteAt(context.Background(), data, int64(off))
	m.want("write "+b.at, err, nil)
	b.data = append(append(bytes.Clone(b.data[:off]), data...), b.data[min(off+len(data), len(b.data)):]...)
	b.changed = true
	m.absorb()
}

// shorten truncates an open file.
func (m *model) shorten() {
	if len(m.open) == 0 {
		return
	}
	o := m.open[m.rng.IntN(len(m.open))]
	b := o.of
	n := 0
	if len(b.data) > 0 && m.rng.IntN(2) == 0 {
		n = m.rng.IntN(len(b.data))
	}
	m.logf("%d truncate %s %d", o.f.tid, b.at, n)
	m.want("truncate "+b.at, o.f.h.Truncate(context.Background(), int64(n)), nil)
	b.changed = true
	b.data = b.data[:n]
	m.absorb()
}

// finish closes a file, or has its process killed.
func (m *model) finish() {
	if len(m.open) > 0 {
		m.end(m.rng.IntN(len(m.open)))
	}
}

func (m *model) end(i int) {
	o := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	how := []string{"close", "close", "close", "kill", "abandon"}[m.rng.IntN(5)]
	m.logf("%d %s %s", o.f.tid, how, o.of.at)
	switch how {
	case "abandon":
		o.f.abandon()
	default:
		m.want(how+" "+o.of.at, o.f.flush(closer{killed: how == "kill"}), nil)
		o.f.release()
	}
	m.closed(o, how != "close")
	m.absorb()
}

// closed follows the end of a handle.
func (m *model) closed(o *opening, killed bool) {
	b := o.of
	b.handles = slices.DeleteFunc(b.handles, func(x *opening) bool { return x == o })
	last := len(b.handles) == 0
	switch {
	case b.at == "":
	case b.kind != "block" || !b.hidden: // in place
		b.changed = b.changed && !last
	case o.proc != b.owner && !last, b.writtenBy(b.owner, false):
		return
	case killed && !last:
		b.owner = b.handles[0].proc
	case killed:
		m.lose(b)
	default:
		m.commit(b)
	}
	if last && b.kind != "temp" {
		b.owner = 0 // it is nobody's any more
	}
}

// sync calls fsync on an open file.
func (m *model) sync() {
	if len(m.open) == 0 {
		return
	}
	o := m.open[m.rng.IntN(len(m.open))]
	b := o.of
	if len(b.data) == 0 {
		return // there is nothing to keep
	}
	m.logf("%d fsync %s", o.f.tid, b.at)
	m.want("fsync "+b.at, m.e.Fsync(context.Background(), o.f.id), nil)
	if b.at != "" && b.kind == "block" {
		m.commit(b)
		m.kept(b)
	}
	m.absorb()
}

// kept checks that a tier has what was synced.
func (m *model) kept(b *bytesOf) {
	if len(m.refs) == 0 || len(b.data) == 0 {
		return
	}
	if h, ok := held(m.refs[0])[b.at]; !ok || h.Size != int64(len(b.data)) || h.Sum.Valid && h.Sum != block.Sum(b.data) {
		m.t.Errorf("%s: fsync has returned, but the tier has %v, %d bytes, not %d", b.at, ok, h.Size, len(b.data))
	}
}

// put writes a whole file in one step.
func (m *model) put() {
	name := m.name()
	proc, tid := m.proc()
	if b := m.means(proc, name); b == nil && m.names[name] != nil || b != nil && len(b.handles) > 0 || modelKind(name) == "plain" {
		return // that is begin's
	}
	data := m.data()
	m.logf("%d put %s %d", tid, name, len(data))
	m.want("put "+name, m.world.put(tid, name, data), nil)
	b := m.means(proc, name)
	if b == nil {
		b = m.take(proc, name)
	} else {
		b = m.opened(proc, name, b, true)
	}
	o := &opening{of: b, proc: proc}
	b.handles, b.data = append(b.handles, o), data
	m.closed(o, false)
	m.absorb()
}

// rename moves what a name means to a process.
func (m *model) rename() {
	from, to := m.name(), m.name()
	proc, tid := m.proc()
	b := m.means(proc, from)
	m.logf("%d rename %s %s", tid, from, to)
	err := m.world.rename(tid, from, to, false)
	if b == nil {
		m.want("rename "+from, err, block.ErrNotFound)
		return
	}
	m.want("rename "+from+" "+to, err, nil)
	m.absorb()
	if from == to {
		return
	}
	kind, was := modelKind(to), b.kind
	m.lose(b)
	if h := m.names[to]; h != nil {
		m.lose(h)
	}
	b.at, b.kind, m.names[to] = to, kind, b
	if i := slices.IndexFunc(b.handles, func(o *opening) bool { return o.proc != proc }); kind == "block" && i >= 0 && (was != "block" || b.hidden) {
		b.hidden, b.moved, b.owner = true, true, b.handles[i].proc // its close commits it
		return
	}
	if kind == "plain" && len(b.handles) == 0 {
		b.owner = 0
	}
	if kind != "block" || b.hidden || was != "block" {
		m.commit(b)
	}
}

// unlink removes what a name means to a process.
func (m *model) unlink() {
	name := m.name()
	proc, tid := m.proc()
	m.logf("%d unlink %s", tid, name)
	b := m.means(proc, name)
	var want error
	if b == nil {
		want = block.ErrNotFound
	}
	m.want("unlink "+name, m.world.unlink(tid, name), want)
	m.absorb()
	if b != nil {
		m.lose(b)
	}
}

// hold opens a file for reading and keeps it open, or closes one.
func (m *model) hold() {
	if len(m.reads) > 3 {
		r := m.reads[0]
		m.reads = m.reads[1:]
		m.logf("close %s", r.name)
		if p, err := r.f.read(); err != nil || !bytes.Equal(p, r.of.data) {
			m.t.Errorf("%s, open for reading: got %d bytes, %v, want %d", r.name, len(p), err, len(r.of.data))
		}
		m.want("close "+r.name, r.f.close(), nil)
		return
	}
	name := m.name()
	proc, tid := m.proc()
	if b := m.means(proc, name); b != nil {
		m.logf("%d hold %s", tid, name)
		f, err := m.openRead(tid, name)
		m.want("hold "+name, err, nil)
		if err == nil {
			m.reads = append(m.reads, &snapshot{f, name, b})
		}
	}
}

// expire gives a block a time to live and lets time pass.
func (m *model) expire() {
	name := m.name()
	b := m.names[name]
	if b == nil || b.kind != "block" || b.hidden || len(b.handles) > 0 {
		return
	}
	m.logf("expire %s", name)
	m.want("ttl", m.e.SetTTL(resolve(m.t, m.world, name).ID, time.Second), nil)
	m.clock.add(2 * time.Second)
	m.e.Expire()
	m.lose(b)
	m.absorb()
}

// drop evicts a block from one of its tiers.
func (m *model) drop() {
	name := m.name()
	if b := m.names[name]; b != nil && len(b.handles) > 0 || modelKind(name) != "block" {
		return // it would wait in vain for the close
	}
	tier := append([]string{"memory"}, tierNames[:len(m.refs)]...)[m.rng.IntN(len(m.refs)+1)]
	m.logf("evict %s from %s", name, tier)
	_, err := m.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: tier, Paths: []string{name}, Force: m.rng.IntN(4) == 0})
	m.want("evict "+name, err, nil)
	m.absorb()
}

// absorb applies the evictions that an operation brought about.
func (m *model) absorb() {
	if len(m.refs) > 0 {
		m.quiesce()
	}
	for m.event < m.e.Events().Next() {
		var buf [64]event.Event
		n, _, err := m.e.Events().Read(context.Background(), m.event, buf[:])
		if err != nil {
			m.t.Fatal(err)
		}
		for _, ev := range buf[:n] {
			follow(m.told, ev)
			m.logf("  %s %s", ev.Tier, describe(ev))
			name := ev.Key.Path()
			if b := m.names[name]; ev.Kind == event.Evicted && m.told[name] == nil && b != nil && b.kind == "block" {
				m.lose(b)
			}
		}
		m.event += uint64(n)
	}
}

// want compares the kind of an error.
func (m *model) want(what string, err, want error) {
	m.t.Helper()
	if (err == nil) != (want == nil) || !errors.Is(err, want) {
		m.t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// compare reads every name as every process.
func (m *model) compare() {
	for _, name := range modelNames() {
		for p := range uint32(modelProcs) {
			if len(m.refs) > 0 {
				m.absorb() // reading another one has brought that up, and made room for it
			}
			tid := 10*(p+1) + uint32(m.rng.IntN(3))
			got, err := m.get(tid, name)
			switch b := m.means(p+1, name); {
			case b == nil:
				m.want(fmt.Sprintf("%d reads %s", tid, name), err, block.ErrNotFound)
			case err != nil || !bytes.Equal(got, b.data):
				m.t.Errorf("%d reads %s: got %d bytes, %v, want %d", tid, name, len(got), err, len(b.data))
			}
		}
	}
}

// modelSetups are the engines of TestModel. Those with secondary tiers have enough
// memory for all that can be open, so that nothing is missed for want of it.
var modelSetups = []stormSetup{
	{o: state.Options{CapacityBytes: 1024 * page}},
	{o: state.Options{CapacityBytes: 64 * page}},
	{o: state.Options{CapacityBytes: 64 * page, Policy: "arc"}},
	{o: state.Options{CapacityBytes: 64 * page, Policy: "s3fifo"}},
	{o: state.Options{CapacityBytes: 128 * page, Groups: map[block.GroupID]state.GroupOptions{"g1": {QuotaBytes: 48 * page}}}},
	{o: state.Options{CapacityBytes: 128 * page, Groups: map[block.GroupID]state.GroupOptions{"g0": {BlockBytes: 3 * page}}, HeadroomBytes: 16 * page}},
	{o: state.Options{CapacityBytes: 64 * page}, refs: []tiertest.ReferenceOptions{{}}},
	{o: state.Options{CapacityBytes: 64 * page, Policy: "s3fifo"}, refs: []tiertest.ReferenceOptions{{CapacityBytes: 12 * page, Direct: true}}},
	{o: state.Options{CapacityBytes: 64 * page, PromoteOnLookup: true, Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeSync}, {}}},
		refs: []tiertest.ReferenceOptions{{CapacityBytes: 6 * page}, {CapacityBytes: 20 * page}}},
	{o: state.Options{CapacityBytes: 64 * page}, refs: []tiertest.ReferenceOptions{{}}, found: true},
	{o: state.Options{CapacityBytes: 64 * page}, refs: []tiertest.ReferenceOptions{{CapacityBytes: 12 * page}, {}}, found: true},
}

// TestModel: the engine does what the rules of writing say, whatever three processes open, write, close,
// sync, rename and remove, and whenever they are killed, whatever the policy, the capacity, the quota and
// the tiers below; all accounts are right at every moment, and back at zero at the end (A22, A29); and
// after a crash there is what rule 5 says.
//
// The model was seen to find each of these, put into the engine on purpose or met there: two processes
// that create one name before either writes share a file, and so with a temporary name; a kill commits;
// a rename commits what another process still writes; who has joined delays the owner's commit; a rename out of a
// pinned group commits nothing, and one that waits for another's close keeps its group; a block that is renamed keeps
// its copies under the old name.
func TestModel(t *testing.T) {
	seed := seed(t)
	for i, row := range modelSetups {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m := &model{
				rng: rand.New(rand.NewPCG(seed, uint64(i))), names: map[string]*bytesOf{},
				told: map[string]*copies{},
			}
			m.run(t, row)
		})
	}
}

func (m *model) run(t *testing.T, row stormSetup) {
	o := row.o
	o.Now = m.clock.now
	o.Groups = maps.Clone(o.Groups)
	if o.Groups == nil {
		o.Groups = map[block.GroupID]state.GroupOptions{}
	}
	o.Groups["p"] = state.GroupOptions{Pinned: true}
	var refs []*tiertest.Reference
	for _, r := range row.refs {
		refs = append(refs, tiertest.NewReference(t, r))
	}
	if row.found {
		o.Secondaries = []state.SecondaryOptions{{Tier: tiertest.Finding{Reference: refs[0]}}}
	}
	dir := shmDir(t)
	m.lower = openLower(t, dir, o, refs...)
	must(t, m.mkdir("g0"), m.mkdir("g1"), m.mkdir("p"))
	steps := []func(){
		m.put, m.put, m.begin, m.begin, m.begin, m.write, m.write, m.write, m.shorten, m.finish, m.finish, m.finish, m.sync,
		m.rename, m.rename, m.unlink, m.hold, m.hold, m.expire,
	}
	n := 400
	if len(refs) > 0 {
		steps, n = append(steps, m.drop, m.drop), 200
	}
	for range n {
		steps[m.rng.IntN(len(steps))]()
		m.compare()
		m.audit()
		if t.Failed() {
			m.show(t)
			break
		}
	}
	if len(refs) == 0 && !t.Failed() && m.rng.IntN(2) == 0 {
		m.crashed(dir, o)
		return
	}
	m.over()
}

// crashed has the engine die, and checks what the next one finds.
func (m *model) crashed(dir string, o state.Options) {
	for _, r := range m.reads {
		r.f.bytes.Close()
	}
	m.crash()
	n := open(m.t, dir, o)
	defer n.close(false)
	for _, name := range modelNames() {
		got, err := n.get(40, name)
		switch b := m.names[name]; {
		case b == nil, b.hidden, b.kind == "block" && b.changed:
			m.want("after the crash, "+name, err, block.ErrNotFound)
		case err != nil || !bytes.Equal(got, b.data):
			m.t.Errorf("after the crash, %s: got %d bytes, %v, want %d", name, len(got), err, len(b.data))
		}
	}
	if m.t.Failed() {
		m.show(m.t)
	}
}

// over closes and removes everything and checks that nothing is left.
func (m *model) over() {
	for _, o := range m.open {
		o.f.close()
	}
	for _, r := range m.reads {
		r.f.close()
	}
	m.clock.add(24 * time.Hour)
	m.e.Expire()
	m.lower.end()
}
