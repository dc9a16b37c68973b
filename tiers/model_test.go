package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// model is what the names mean: the blocks that everybody sees, and the files
// that one process is writing. It learns from the events what was evicted or has
// expired, and predicts everything else.
type model struct {
	*lower
	rng    *rand.Rand
	now    atomic.Int64 // nanoseconds ahead of the real clock
	blocks map[string][]byte
	own    map[string]*draft // by process and name
	reads  []*snapshot
	trace  []string
	told   map[string]*copies // what the events say
}

// draft is a file being written under its final name.
type draft struct {
	f    *file
	data []byte
	idle bool // a block only opened for writing: its process sees what all see
}

// snapshot is a file open for reading and the bytes it has to show.
type snapshot struct {
	f    *file
	name string
	data []byte
}

const modelProcs = 3

func draftKey(tid uint32, name string) string { return fmt.Sprint(tid, name) }

// name returns one of a few names in two groups.
func (m *model) name() string { return fmt.Sprintf("g%d/%d", m.rng.IntN(2), m.rng.IntN(5)) }

// free returns a process that is not writing under any of the names.
func (m *model) free(names ...string) (uint32, bool) {
	tid := uint32(10 * (1 + m.rng.IntN(modelProcs)))
	for _, n := range names {
		if m.own[draftKey(tid, n)] != nil {
			return 0, false
		}
	}
	return tid, true
}

func (m *model) data() []byte {
	p := make([]byte, 1+m.rng.IntN(3*page))
	for i := range p {
		p[i] = byte('a' + m.rng.IntN(26))
	}
	return p
}

func (m *model) logf(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

// absorb applies the evictions that an operation brought about. They made room
// for what it stored, so they come before that.
func (m *model) absorb() {
	m.settle()
	for m.event < m.e.Events().Next() {
		var buf [64]tiers.Event
		n, _, err := m.e.Events().Read(context.Background(), m.event, buf[:])
		if err != nil {
			m.t.Fatal(err)
		}
		for _, ev := range buf[:n] {
			follow(m.told, ev)
			m.logf("  %s %s", ev.Tier, describe(ev))
			gone := ev.Kind == tiers.BlockEvicted || ev.Kind == tiers.BlockRemoved && ev.Reason == "expired"
			if name := ev.Key.Path(); gone && m.told[name] == nil {
				delete(m.blocks, name)
			}
		}
		m.event += uint64(n)
	}
}

// settle waits until the secondary tiers have nothing to do.
func (m *model) settle() {
	if len(m.refs) > 0 {
		m.quiesce()
	}
}

// want compares the kind of an error.
func (m *model) want(what string, err, want error) {
	m.t.Helper()
	if (err == nil) != (want == nil) || !errors.Is(err, want) {
		m.t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// put writes a whole file in one step.
func (m *model) put() {
	name := m.name()
	if tid, ok := m.free(name); ok {
		data := m.data()
		m.logf("%d put %s %d", tid, name, len(data))
		m.want("put "+name, m.world.put(tid, name, data), nil)
		m.absorb()
		m.blocks[name] = data
	}
}

// rewrite changes the beginning of a block without truncating it.
func (m *model) rewrite() {
	name := m.name()
	tid, ok := m.free(name)
	if !ok {
		return
	}
	if m.idle(name) {
		return // if they share it, what is written now is committed when they close it
	}
	m.logf("%d rewrite %s", tid, name)
	old := m.blocks[name]
	f := m.open(tid, name)
	if f == nil {
		return
	}
	head := m.data()
	if m.rng.IntN(3) == 0 {
		head = nil // only opened
	} else if _, err := f.h.WriteAt(context.Background(), head, 0); err != nil {
		m.t.Errorf("rewrite %s: %v", name, err)
	}
	m.want("close "+name, f.close(), nil)
	m.absorb()
	if head != nil {
		m.blocks[name] = append(bytes.Clone(head), old[min(len(head), len(old)):]...)
	}
}

// open opens a block for writing without truncating it, nil if there is none.
func (m *model) open(tid uint32, name string) *file {
	var want error
	if m.blocks[name] == nil {
		want = block.ErrNotFound
	}
	f, err := m.openWrite(context.Background(), tid, name, false)
	m.want("open "+name, err, want)
	return f
}

// idle reports whether the block of a name is open for writing, and not written.
func (m *model) idle(name string) bool {
	if m.blocks[name] == nil {
		return false
	}
	id := resolve(m.t, m.world, name).ID
	for _, d := range m.own {
		if d.idle && d.f.id == id {
			return true
		}
	}
	return false
}

// idleOpen opens a block for writing; a later step closes it, unwritten.
func (m *model) idleOpen() {
	name := m.name()
	tid, ok := m.free(name)
	if !ok || len(m.own) > 4 {
		return
	}
	m.logf("%d open %s", tid, name)
	f := m.open(tid, name)
	m.absorb()
	if f != nil {
		m.own[draftKey(tid, name)] = &draft{f: f, idle: true}
	}
}

// idleClose ends what idleOpen began.
func (m *model) idleClose(tid uint32, name string) {
	k := draftKey(tid, name)
	m.logf("%d close %s", tid, name)
	m.want("close "+name, m.own[k].f.close(), nil)
	m.absorb()
	delete(m.own, k)
}

// begin starts a file that later steps finish.
func (m *model) begin() {
	name := m.name()
	tid, ok := m.free(name)
	if !ok || len(m.own) > 4 {
		return
	}
	m.logf("%d begin %s", tid, name)
	f, err := m.openOrCreate(tid, name)
	m.want("begin "+name, err, nil)
	if err == nil {
		m.own[draftKey(tid, name)] = &draft{f: f}
		m.grow(tid, name)
	}
}

// grow writes more of a file; finish closes it.
func (m *model) grow(tid uint32, name string) {
	d := m.own[draftKey(tid, name)]
	data := m.data()
	m.logf("%d write %s %d at %d", tid, name, len(data), len(d.data))
	_, err := d.f.h.WriteAt(context.Background(), data, int64(len(d.data)))
	m.want("write "+name, err, nil)
	d.data = append(d.data, data...)
}

func (m *model) finish(tid uint32, name string) {
	k := draftKey(tid, name)
	m.logf("%d finish %s", tid, name)
	killed := m.rng.IntN(5) == 0
	m.want("finish "+name, m.own[k].f.flush(closer{killed: killed}), nil)
	m.own[k].f.release()
	m.absorb()
	if !killed {
		m.blocks[name] = m.own[k].data
	}
	delete(m.own, k)
}

// goOn takes up one of the files that are being written.
func (m *model) goOn() {
	name := m.name()
	for p := range uint32(modelProcs) {
		tid := 10 * (p + 1)
		switch d := m.own[draftKey(tid, name)]; {
		case d == nil:
		case d.idle:
			m.idleClose(tid, name)
		case len(d.data) < 3*page && m.rng.IntN(2) == 0:
			m.grow(tid, name)
		default:
			m.finish(tid, name)
		}
	}
}

// rename moves a block, or a file written under a temporary name.
func (m *model) rename() {
	from, to := m.name(), m.name()
	tid, ok := m.free(from, to)
	if !ok || from == to {
		return
	}
	data := m.blocks[from]
	temp := m.rng.IntN(2) == 0
	if temp {
		from, data = from+".tmp", m.data()
		m.want("write "+from, m.world.put(tid, from, data), nil)
	}
	m.logf("%d rename %s %s", tid, from, to)
	m.absorb()
	if data != nil && !temp {
		data = m.blocks[from]
	}
	err := m.world.rename(tid, from, to, false)
	if data == nil {
		m.want("rename "+from, err, block.ErrNotFound)
		return
	}
	m.want("rename "+from+" "+to, err, nil)
	m.absorb()
	delete(m.blocks, from)
	m.blocks[to] = data
}

func (m *model) unlink() {
	name := m.name()
	tid, ok := m.free(name)
	if !ok {
		return
	}
	m.logf("%d unlink %s", tid, name)
	var want error
	if m.blocks[name] == nil {
		want = block.ErrNotFound
	}
	m.want("unlink "+name, m.world.unlink(tid, name), want)
	delete(m.blocks, name)
	m.absorb()
}

// hold opens a block for reading and keeps it open, or closes one.
func (m *model) hold() {
	if len(m.reads) > 3 {
		r := m.reads[0]
		m.reads = m.reads[1:]
		m.logf("close %s", r.name)
		if p, err := r.f.read(); err != nil || !bytes.Equal(p, r.data) {
			m.t.Errorf("%s, open for reading: got %d bytes, %v, want %d", r.name, len(p), err, len(r.data))
		}
		m.want("close "+r.name, r.f.close(), nil)
		return
	}
	name := m.name()
	if tid, ok := m.free(name); ok && m.blocks[name] != nil {
		m.logf("%d hold %s", tid, name)
		f, err := m.openRead(tid, name)
		m.want("hold "+name, err, nil)
		if err == nil {
			m.reads = append(m.reads, &snapshot{f, name, m.blocks[name]})
		}
	}
}

// expire gives a block a time to live and lets time pass.
func (m *model) expire() {
	name := m.name()
	if m.blocks[name] == nil {
		return
	}
	m.logf("expire %s", name)
	a := resolve(m.t, m.world, name)
	m.want("ttl", m.e.SetTTL(a.ID, time.Second), nil)
	m.now.Add(int64(2 * time.Second))
	m.e.Expire()
	delete(m.blocks, name)
	m.absorb()
}

// compare reads every name as every process.
func (m *model) compare() {
	for g := range 2 {
		for n := range 5 {
			name := fmt.Sprintf("g%d/%d", g, n)
			if len(m.refs) > 0 {
				m.absorb() // reading another one has brought that up, and made room for it
			}
			for p := range uint32(modelProcs) {
				tid := 10 * (p + 1)
				want := m.blocks[name]
				if d := m.own[draftKey(tid, name)]; d != nil && !d.idle {
					want = d.data
				}
				got, err := m.get(tid, name)
				if err != nil {
					got = nil
				}
				if !bytes.Equal(got, want) || (err == nil) != (want != nil) {
					m.t.Errorf("process %d reads %s: got %d bytes, %v, want %d", tid, name, len(got), err, len(want))
				}
			}
		}
	}
}

// drop evicts a block from one of its tiers.
func (m *model) drop() {
	name := m.name()
	if m.idle(name) {
		return // it would wait in vain for the close
	}
	tier := append([]string{"memory"}, tierNames[:len(m.refs)]...)[m.rng.IntN(len(m.refs)+1)]
	m.logf("evict %s from %s", name, tier)
	_, err := m.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: tier, Paths: []string{name}, Force: m.rng.IntN(4) == 0})
	m.want("evict "+name, err, nil)
	m.absorb()
}

// modelSetups are the engines of TestModel. Those with secondary tiers have enough
// memory for all that can be open, so that nothing is missed for want of it.
var modelSetups = []stormSetup{
	{o: tiers.Options{CapacityBytes: 1024 * page}},
	{o: tiers.Options{CapacityBytes: 64 * page}},
	{o: tiers.Options{CapacityBytes: 64 * page, Policy: "arc"}},
	{o: tiers.Options{CapacityBytes: 64 * page, Policy: "s3fifo"}},
	{o: tiers.Options{CapacityBytes: 128 * page, Groups: map[block.GroupID]tiers.GroupOptions{"g1": {QuotaBytes: 48 * page}}}},
	{o: tiers.Options{CapacityBytes: 128 * page, Groups: map[block.GroupID]tiers.GroupOptions{"g0": {BlockBytes: 3 * page}}, HeadroomBytes: 16 * page}},
	{o: tiers.Options{CapacityBytes: 64 * page}, refs: []tiertest.ReferenceOptions{{}}},
	{o: tiers.Options{CapacityBytes: 64 * page, Policy: "s3fifo"}, refs: []tiertest.ReferenceOptions{{CapacityBytes: 12 * page, Direct: true}}},
	{o: tiers.Options{CapacityBytes: 64 * page, PromoteOnLookup: true, Secondaries: []tiers.SecondaryOptions{{Cascade: tiers.CascadeSync}, {}}},
		refs: []tiertest.ReferenceOptions{{CapacityBytes: 6 * page}, {CapacityBytes: 20 * page}}},
}

// TestModel: for one caller at a time the engine does what a simple model does,
// whatever the policy, the capacity, the quota and the tiers below; and all accounts
// are right at every moment, and back at zero at the end (A22, A29).
func TestModel(t *testing.T) {
	seed := seed(t)
	for i, row := range modelSetups {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m := &model{
				rng: rand.New(rand.NewPCG(seed, uint64(i))), blocks: map[string][]byte{}, own: map[string]*draft{},
				told: map[string]*copies{},
			}
			o := row.o
			o.Now = func() time.Time { return time.Now().Add(time.Duration(m.now.Load())) }
			var refs []*tiertest.Reference
			for _, r := range row.refs {
				refs = append(refs, tiertest.NewReference(t, r))
			}
			m.lower = openLower(t, shmDir(t), o, refs...)
			must(t, m.mkdir("g0"), m.mkdir("g1"))
			steps := []func(){m.put, m.put, m.rewrite, m.begin, m.goOn, m.goOn, m.rename, m.unlink, m.hold, m.hold, m.expire, m.idleOpen}
			n := 400
			if len(refs) > 0 {
				steps, n = append(steps, m.drop, m.drop), 200
			}
			for range n {
				steps[m.rng.IntN(len(steps))]()
				m.compare()
				m.audit()
				if t.Failed() {
					for _, line := range m.trace[max(0, len(m.trace)-60):] {
						t.Log(line)
					}
					break
				}
			}
			m.end()
		})
	}
}

// end closes and removes everything and checks that nothing is left.
func (m *model) end() {
	for _, d := range m.own {
		d.f.close()
	}
	for _, r := range m.reads {
		r.f.close()
	}
	m.now.Add(int64(24 * time.Hour))
	m.e.Expire()
	removeAll(m.t, m.world, "")
	m.settle()
	m.noBlobs()
	st := m.e.Stats()
	for i, r := range m.refs {
		if got := holds(r); got != "[]" {
			m.t.Errorf("%s holds %s after all was removed", tierNames[i], got)
		}
	}
	if st.UsedBytes != 0 || st.PinnedBytes != 0 || st.Blocks != 0 || st.Hollow != 0 || st.Names != 0 || st.Writing != 0 {
		m.t.Errorf("left after all was removed: %+v", st)
	}
	m.close(false)
}
