package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

const page = catalog.PageBytes

// writer is the write side of a file.
type writer struct{ catalog.Writing }

func (*writer) HandlesLocked() int              { return 1 }
func (*writer) OpenLocked() bool                { return true }
func (*writer) MineLocked(state.Caller) bool    { return true }
func (*writer) Refresh(a state.Attr) state.Attr { return a }
func (*writer) Settle() error                   { return nil }

// noRecords writes no records.
type noRecords struct{}

func (noRecords) WriteRecord(index.ID, *os.File) error { return nil }

// world is memory with names and tiers, without files that processes open.
type world struct {
	*Transfer
	nm    *names.Names
	mem   *memory.Memory
	tiers []*tiertest.Reference
	end   func()
}

// newWorld makes a world with tiers of these modes below memory.
func newWorld(o state.Options, ref tiertest.ReferenceOptions, modes ...state.CascadeMode) *world {
	w := &world{}
	for i, mode := range modes {
		r := tiertest.OpenReference(ref)
		w.tiers = append(w.tiers, r)
		o.Secondaries = append(o.Secondaries, state.SecondaryOptions{Name: fmt.Sprint("tier", i), Tier: r, Cascade: mode})
	}
	files := new(tiertest.Files)
	o.Primary = files
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 64 * page
	}
	if err := o.Fill(); err != nil {
		panic(err)
	}
	st := state.New(o)
	w.nm = names.New(st)
	w.mem = memory.New(st, w.nm)
	w.Transfer = New(st, w.nm, w.mem)
	w.nm.Copies, w.mem.Clean, st.Recorder = w.Transfer, w.CleanLocked, noRecords{}
	if err := w.mem.OpenRoom(); err != nil {
		panic(err)
	}
	w.AddSecondaries()
	st.MeterReuse()
	st.Ctx, st.Cancel = context.WithCancel(context.Background())
	for _, s := range st.Tiers {
		st.Work.Go(func() { s.Run(st.Ctx) })
	}
	w.ApplyLocked(&catalog.CreatedDir{Attrs: catalog.Attrs{Mode: state.ModeDir | 0o755}, Parent: index.Root, Name: "g"})
	w.end = func() {
		w.Mu.Lock()
		w.Mu.Closed = true
		for _, s := range w.Tiers {
			s.StopLocked()
		}
		w.Mu.Unlock()
		st.Cancel()
		st.Work.Wait()
		if err := w.CloseTiers(context.Background()); err != nil {
			panic(err)
		}
		files.Close(false)
	}
	return w
}

// locked calls fn with the lock, and does then what is left to do.
func (w *world) locked(fn func(g *state.Gone)) {
	var g state.Gone
	w.Mu.Lock()
	fn(&g)
	w.Mu.Unlock()
	w.Finish(&g)
}

// put makes a block, or gives one other bytes in place.
func (w *world) put(name string, data []byte) (id index.ID) {
	dir := w.Mu.Ix.Walk("g")
	w.locked(func(*state.Gone) {
		if id = w.Mu.Ix.Lookup(dir, name); id == 0 {
			blob, file, _ := w.Primary.Create()
			file.Close()
			id = w.ApplyLocked(&catalog.CreatedFile{Attrs: catalog.Attrs{Mode: state.ModeRegular | 0o644}, Parent: dir, Name: name, Blob: uint64(blob)}).ID
		}
		s := new(writer)
		w.AddFileLocked(id, s, &s.Writing)
	})
	file, err := w.Primary.Open(driver.BlobID(w.Mu.Ix.At(id).Blob()))
	if err == nil {
		err = errors.Join(file.Truncate(int64(len(data))), write(file, data), file.Close())
	}
	if err != nil {
		panic(err)
	}
	w.locked(func(*state.Gone) {
		en := w.Mu.Ix.At(id)
		w.StaleCopiesLocked(id, en)
		w.ApplyLocked(catalog.Committed{ID: id, Size: int64(len(data)), Mtime: w.Now(), Seq: w.NextSeqLocked()})
		w.ApplyLocked(catalog.Trimmed{ID: id})
		w.DropFileLocked(id)
		w.CascadeLocked(id, en)
	})
	return id
}

func write(file *os.File, data []byte) error {
	_, err := file.WriteAt(data, 0)
	return err
}

// bytesOf returns the bytes that memory has of an entry.
func (w *world) bytesOf(id index.ID) ([]byte, error) {
	file, err := w.Primary.Open(driver.BlobID(w.Mu.Ix.At(id).Blob()))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

// thing is a block of the model.
type thing struct {
	name string
	id   index.ID
	data []byte
	open int  // promotions that have not been given back
	lost bool // a tier has lost this version

	unaware bool // and nobody has asked it since
	rotten  bool // a tier had a bad copy: the one that took its place may not be durable yet
}

// reading is a promotion of a block.
type reading struct {
	b    *thing
	seq  uint64
	done chan error
}

// model says which blocks there are, with which bytes, and that one is in memory unless it was evicted.
type model struct {
	*world
	blocks  []*thing // that have a name
	reads   []*reading
	syncs   []*reading
	release []func() // holds of the tiers
	errs    []error
}

func (m *model) fail(format string, a ...any) { m.errs = append(m.errs, fmt.Errorf(format, a...)) }

var modelNames = []string{"a", "b", "c", "d"}

func (m *model) of(name string) *thing {
	if i := slices.IndexFunc(m.blocks, func(b *thing) bool { return b.name == name }); i >= 0 {
		return m.blocks[i]
	}
	return nil
}

func (m *model) pick(n uint32) *thing {
	if len(m.blocks) == 0 {
		return nil
	}
	return m.blocks[int(n)%len(m.blocks)]
}

func (m *model) nonresident(b *thing) bool { return !m.Mu.Ix.At(b.id).InMemory() }

// busy reports whether a call about a block is under way.
func (m *model) busy(b *thing) bool {
	return slices.ContainsFunc(slices.Concat(m.reads, m.syncs), func(r *reading) bool { return r.b == b })
}

func (m *model) drop(b *thing) {
	m.blocks = slices.DeleteFunc(m.blocks, func(x *thing) bool { return x == b })
}

func data(s tiertest.Step) []byte {
	return bytes.Repeat([]byte{byte(s.A), byte(s.B), byte(s.N)}, 1+int(s.N%2000))
}

var kinds = []struct {
	name string
	do   func(m *model, s tiertest.Step)
}{
	{"put", (*model).putAny}, {"put", (*model).putAny}, {"put", (*model).putAny},
	{"unlink", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A); b != nil {
			m.locked(func(g *state.Gone) {
				m.nm.UnlinkLocked(b.id, outcome.Cause{Reason: outcome.ReasonUnlink}, state.Process{}, g)
			})
			m.drop(b)
		}
	}},
	{"rename", (*model).rename}, {"rename", (*model).rename},
	{"evict", (*model).evict}, {"evict", (*model).evict}, {"evict", (*model).evict},
	{"read", (*model).read}, {"read", (*model).read}, {"read", (*model).read},
	{"close", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A); b != nil && b.open > 0 {
			b.open--
			m.nm.CloseRead(b.id)
		}
	}},
	{"sync", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A); b != nil && !b.lost {
			r := &reading{b, m.Mu.Ix.At(b.id).Seq(), make(chan error, 1)}
			m.syncs = append(m.syncs, r)
			m.locked(func(*state.Gone) { m.ApplyLocked(catalog.Referred{ID: b.id}) })
			go func() { r.done <- m.AfterCommit(context.Background(), nil, b.id, true) }()
		}
	}},
	{"hold", func(m *model, s tiertest.Step) {
		m.release = append(m.release, m.tiers[int(s.A)%len(m.tiers)].Hold([]tiertest.Op{tiertest.OpLoad, tiertest.OpStore}[s.N%2]))
	}},
	{"release", func(m *model, s tiertest.Step) { m.free() }}, {"release", func(m *model, s tiertest.Step) { m.free() }},
	{"damage", (*model).damage},
	{"attributes", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A); b != nil {
			m.locked(func(*state.Gone) {
				en := m.Mu.Ix.At(b.id)
				a := catalog.AttrsOf(b.id, en)
				a.Mode = uint16(state.ModeRegular | 0o600 + s.N%64)
				m.ApplyLocked(&a)
				m.UpdateCopiesLocked(b.id, en, m.KeyLocked(b.id), false)
			})
		}
	}},
	{"may evict", func(m *model, s tiertest.Step) {
		b := m.pick(s.A)
		if b == nil || b.lost {
			return
		}
		t := int(s.B) % len(m.tiers)
		h := host{e: m.Transfer, s: m.Tiers[t]}
		key, en := m.KeyLocked(b.id), m.Mu.Ix.At(b.id)
		only := m.nonresident(b) && en.Tiers() == h.s.Bit
		if only { // and it is promised
			m.locked(func(*state.Gone) { m.ApplyLocked(catalog.Leased{ID: b.id, Until: m.Now() + 1}) })
		}
		ok := h.MayEvict(key)
		if ok {
			b.lost = true
			m.tiers[t].Remove([]block.Key{key})
		}
		if only && ok {
			m.fail("%s may leave the only tier that has it", b.name)
		}
	}},
}

// damage has the first tier lose a copy of a block that the other one has, too.
func (m *model) damage(s tiertest.Step) {
	b := m.pick(s.A)
	if b == nil || len(m.tiers) == 1 || b.lost || m.Mu.Ix.At(b.id).Tiers() != 3 {
		return
	}
	b.rotten = true
	key := m.KeyLocked(b.id)
	switch {
	case s.N%3 == 0:
		m.tiers[0].Corrupt(key)
		b.lost = true
	case s.N%3 == 1 && m.nonresident(b):
		m.tiers[0].Remove([]block.Key{key}) // it does not tell
		b.lost, b.unaware = true, true
	default:
		b.lost = m.nonresident(b) // else it gets another copy
		m.tiers[0].Corrupt(key)
		m.tiers[0].Scrub()
	}
}

// free ends the holds.
func (m *model) free() {
	for _, fn := range m.release {
		fn()
	}
	m.release = nil
}

func (m *model) putAny(s tiertest.Step) {
	name := modelNames[int(s.A)%len(modelNames)]
	b := m.of(name)
	if b != nil && (m.nonresident(b) || s.B%2 == 0 || m.BegunLocked(b.id, m.Mu.Ix.At(b.id)) != 0) { // a new file
		m.locked(func(g *state.Gone) {
			m.nm.DropNameLocked(b.id, m.Mu.Ix.At(b.id), outcome.Cause{Reason: outcome.ReasonReplaced}, g)
		})
		m.drop(b)
		b = nil
	}
	if b == nil {
		b = &thing{name: name}
		m.blocks = append(m.blocks, b)
	}
	b.data, b.lost, b.unaware = data(s), false, false
	b.id = m.put(name, b.data)
}

// rename gives a block another name, which another block may have.
func (m *model) rename(s tiertest.Step) {
	b := m.pick(s.A)
	to := modelNames[int(s.B)%len(modelNames)]
	if b == nil || b.name == to {
		return
	}
	m.locked(func(g *state.Gone) {
		if t := m.of(to); t != nil {
			m.nm.DropNameLocked(t.id, m.Mu.Ix.At(t.id), outcome.Cause{Reason: outcome.ReasonReplaced}, g)
			m.drop(t)
		}
		en, key := m.Mu.Ix.At(b.id), m.KeyLocked(b.id)
		if en.Synced() {
			m.RemoveCopiesLocked(b.id, en)
		}
		was := en.Seq()
		m.ApplyLocked(&catalog.Renamed{ID: b.id, Parent: m.Mu.Ix.Parent(b.id), Name: to, Now: m.Now(), Seq: m.NextSeqLocked()})
		m.RenumberedLocked(b.id, was)
		m.CascadeLocked(b.id, en)
		m.UpdateCopiesLocked(b.id, en, key, true)
	})
	b.name = to
}

// evict takes a block out of memory that a tier has, or is to get.
func (m *model) evict(s tiertest.Step) {
	b := m.pick(s.A)
	if b == nil || m.nonresident(b) || m.Mu.Ix.At(b.id).Opens() > 0 || m.busy(b) {
		return
	}
	m.locked(func(g *state.Gone) {
		en := m.Mu.Ix.At(b.id)
		switch {
		case en.Tiers() != 0 && en.Storing() == 0:
			m.mem.EvictOneLocked(b.id, en, outcome.ReasonCapacity, g)
		case en.Tiers()|en.Storing() == 0 && m.Lazy != 0 && s.N%2 == 0:
			if !m.CleanLocked(b.id, en, true) && en.Flags()&index.FlagRefused == 0 {
				m.fail("%s has no copy, and none is made", b.name)
			} else {
				m.ApplyLocked(catalog.Leaving{ID: b.id})
			}
		}
	})
}

// read brings a block into memory.
func (m *model) read(s tiertest.Step) {
	b := m.pick(s.A)
	if b == nil || !m.nonresident(b) {
		return
	}
	r := &reading{b, m.Mu.Ix.At(b.id).Seq(), make(chan error, 1)}
	m.locked(func(*state.Gone) { m.ApplyLocked(catalog.Referred{ID: b.id}) })
	m.reads = append(m.reads, r)
	switch s.N % 3 {
	case 0:
		go func() { r.done <- m.Promote(context.Background(), b.id, Want{}) }()
	case 1:
		go func() { r.done <- m.Promote(context.Background(), b.id, Want{Own: true}) }()
	default:
		m.PromoteLater(b.id, time.Hour, false, func(_ *os.File, err error) { r.done <- err })
	}
}

// ended follows the calls that have ended.
func (m *model) ended() {
	m.reads = slices.DeleteFunc(m.reads, func(r *reading) bool {
		select {
		case err := <-r.done:
			m.wasRead(r, err)
			return true
		default:
			return false
		}
	})
	m.syncs = slices.DeleteFunc(m.syncs, func(r *reading) bool {
		select {
		case err := <-r.done:
			m.synced(r, err)
			return true
		default:
			return false
		}
	})
}

func (m *model) wasRead(r *reading, err error) {
	defer m.nm.Forget(r.b.id, 1)
	named := m.of(r.b.name) == r.b
	switch {
	case err == nil && named && !m.nonresident(r.b):
		r.b.open, r.b.unaware = r.b.open+1, false
		if got, err := m.bytesOf(r.b.id); err != nil || !bytes.Equal(got, r.b.data) {
			m.fail("%s is in memory with %d bytes, %v; want %d", r.b.name, len(got), err, len(r.b.data))
		}
	case err == nil && named:
		m.fail("%s was read, and is not in memory", r.b.name)
	case err == nil:
		m.nm.CloseRead(r.b.id)
	case named && m.nonresident(r.b), !errors.Is(err, state.ErrStale) && named:
		m.fail("read of %s: %v", r.b.name, err)
	}
}

func (m *model) synced(r *reading, err error) {
	defer m.nm.Forget(r.b.id, 1)
	if err != nil {
		m.fail("sync of %s: %v", r.b.name, err)
		return
	}
	if en := m.Mu.Ix.At(r.b.id); r.b.rotten || m.of(r.b.name) != r.b || en.Seq() != r.seq || en.Tiers()&1 == 0 {
		return
	}
	after := m.tiers[0].Reopen() // as after a power cut
	defer after.Close(context.Background())
	has := make([]driver.Presence, 1)
	if after.Lookup(context.Background(), []block.Key{m.KeyLocked(r.b.id)}, has) != nil || has[0] != driver.Hit {
		m.fail("%s was synced, and a power cut loses it", r.b.name)
	}
}

// check compares what the tiers hold with what the engine believes. Where no tier is held, everything has ended.
func (m *model) check() error {
	synctest.Wait()
	m.ended()
	for _, b := range m.blocks {
		if !m.Mu.Ix.Valid(b.id) || !m.Mu.Ix.Linked(b.id) || m.Mu.Ix.Path(b.id) != "g/"+b.name {
			return fmt.Errorf("%s is gone", b.name)
		}
		if !m.nonresident(b) {
			if got, err := m.bytesOf(b.id); err != nil || !bytes.Equal(got, b.data) {
				return fmt.Errorf("%s: %d bytes in memory, %v; want %d", b.name, len(got), err, len(b.data))
			}
		}
	}
	var used int64
	for id := index.Root; id < m.Mu.Ix.End(); id++ {
		if m.Mu.Ix.Valid(id) && m.Mu.Ix.At(id).IsRegular() {
			used += m.Mu.Charge(id, m.Mu.Ix.At(id))
		}
	}
	if len(m.release) > 0 {
		return errors.Join(m.errs...)
	}
	if len(m.reads)+len(m.syncs) > 0 {
		return fmt.Errorf("%d reads and %d syncs do not end", len(m.reads), len(m.syncs))
	}
	if n := len(m.promotions) + len(m.orphans); n > 0 || m.Mu.Room.Used() != used {
		return fmt.Errorf("%d promotions do not end; %d bytes are used, want %d", n, m.Mu.Room.Used(), used)
	}
	for _, b := range m.blocks {
		if got := m.Mu.Ix.At(b.id).Opens(); got != uint32(b.open) {
			return fmt.Errorf("%s: %d handles, want %d", b.name, got, b.open)
		}
	}
	for i, s := range m.Tiers {
		if err := m.compare(i, s); err != nil {
			return err
		}
	}
	return errors.Join(m.errs...)
}

// compare checks that a tier holds the blocks that it is believed to hold, and those that it is to get.
func (m *model) compare(i int, s *state.Secondary) error {
	holds := map[string]driver.Held{}
	m.tiers[i].Blocks(func(h *driver.Held) bool { holds[h.Key.Path()] = *h; return true })
	for _, b := range m.blocks {
		en := m.Mu.Ix.At(b.id)
		h, ok := holds["g/"+b.name]
		delete(holds, "g/"+b.name)
		switch {
		case en.Storing() != 0:
			return fmt.Errorf("%s is still on its way to %b", b.name, en.Storing())
		case ok != (en.Tiers()&s.Bit != 0) && !b.unaware:
			return fmt.Errorf("%s has %s: %v; believed: %v", s.Opts.Name, b.name, ok, !ok)
		case !ok && s.Opts.Cascade == state.CascadeAsync && !m.nonresident(b) && !b.lost:
			return fmt.Errorf("%s did not get %s", s.Opts.Name, b.name)
		case ok && h.Size != int64(len(b.data)), ok && h.Attrs.Seq != en.Seq(), ok && h.Attrs.Mode != uint32(en.Mode()&0o7777):
			return fmt.Errorf("%s has of %s %d bytes, version %d, mode %o; want %d, %d, %o", s.Opts.Name, b.name, h.Size, h.Attrs.Seq, h.Attrs.Mode, len(b.data), en.Seq(), en.Mode()&0o7777)
		}
	}
	for name := range holds {
		return fmt.Errorf("%s has %s, which is gone", s.Opts.Name, name)
	}
	return nil
}

// TestModel stores, evicts, reads, renames and removes blocks in random ways, while tiers take their time, or have lost
// copies. When all is quiet the tiers hold what the engine believes, and reads bring the bytes of the block (A13, A14, A16).
func TestModel(t *testing.T) {
	var list []string
	for _, k := range kinds {
		list = append(list, k.name)
	}
	for _, modes := range [][]state.CascadeMode{
		{state.CascadeAsync}, {state.CascadeAsync, state.CascadeAsync}, {state.CascadeOnEvict}, {state.CascadeOff, state.CascadeAsync},
	} {
		t.Run(fmt.Sprint(modes), func(t *testing.T) {
			tiertest.RunSteps(t, 10, 150, list, func(steps []tiertest.Step) (n int, err error) {
				synctest.Test(t, func(t *testing.T) { n, err = play(steps, modes) })
				return n, err
			})
		})
	}
}

// play makes the steps in a new world.
func play(steps []tiertest.Step, modes []state.CascadeMode) (n int, err error) {
	m := &model{world: newWorld(state.Options{LookupLease: -1}, tiertest.ReferenceOptions{}, modes...)}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		m.free()
		synctest.Wait()
		m.end()
	}()
	for i, s := range steps {
		kinds[s.Kind].do(m, s)
		if err := m.check(); err != nil {
			return i + 1, err
		}
	}
	m.free()
	return len(steps), m.check()
}
