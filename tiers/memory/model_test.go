package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

const (
	page     = catalog.PageBytes
	capacity = 24 * page
	payer    = 7 // the user that has an account from time to time
)

// alone stands for what the engine has besides memory: names have no copies, and nothing writes records.
type alone struct{}

func (alone) DisownLocked(string, uint16)                   {}
func (alone) DropCopiesLocked(id index.ID, en *index.Entry) {}
func (alone) PromotingLocked(index.ID) string               { return "" }
func (alone) WriteRecord(index.ID, *os.File) error          { return nil }

// writer is the write side of a file.
type writer struct{ catalog.Writing }

func (*writer) HandlesLocked() int              { return 1 }
func (*writer) OpenLocked() bool                { return true }
func (*writer) MineLocked(state.Caller) bool    { return true }
func (*writer) Refresh(a state.Attr) state.Attr { return a }
func (*writer) Settle() error                   { return nil }
func (m *model) at(b *thing) *index.Entry       { return m.mem.Mu.Ix.At(b.id) }
func (m *model) bill(b *thing) room.Bill        { return m.mem.Mu.Bill(m.at(b)) }
func (m *model) apply(e catalog.Edit)           { m.mem.ApplyLocked(e) }
func (m *model) fail(format string, a ...any)   { m.errs = append(m.errs, fmt.Errorf(format, a...)) }
func (b *thing) charge() int64                  { return max(b.reserved, catalog.ChargeOf(b.size)) }
func (b *thing) raw() bool                      { return b.group == "p" || b.temp }
func (m *model) ranks(b *thing) bool            { return b.resident && b.committed && !b.pinned && !b.raw() }
func (m *model) pick(n uint32, fits func(*thing) bool) *thing {
	var list []*thing
	for _, b := range m.things {
		if fits(b) {
			list = append(list, b)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[int(n)%len(list)]
}

// thing is what the model knows of a file.
type thing struct {
	id                                             index.ID
	group                                          string
	payer, temp, committed, resident, pinned, open bool
	copied, queued, refused                        bool // in the tier; on the way there; never
	size, reserved, lease, expires, used           int64
	w                                              *writer
}

// model says which blocks go when there is no room: it goes through the orders of eviction, which it keeps as lists.
type model struct {
	mem    *Memory
	now    int64
	tier   *state.Secondary // nil: there is none
	lazy   bool             // the tier gets blocks when they leave memory
	busy   bool             // the tier's queue is full
	things []*thing         // that have a name
	orders map[string][]*thing
	quotas map[string]int64
	names  int
	gone   [3]uint64 // evicted, lost, expired
	errs   []error
}

// payerOrder is the order of the user's blocks, which are in the order of their group, too.
const payerOrder = "user 7"

func newModel(tier int) *model {
	m := &model{now: 1e15, orders: map[string][]*thing{}, quotas: map[string]int64{"q": 8 * page}}
	opts := state.Options{
		Primary: new(tiertest.Files), CapacityBytes: capacity, WriteTimeout: -1, LookupLease: time.Second,
		Groups: map[block.GroupID]state.GroupOptions{"p": {Pinned: true, QuotaBytes: 6 * page}, "q": {QuotaBytes: 8 * page}},
		Now:    func() time.Time { return time.Unix(0, m.now) },
	}
	if err := opts.Fill(); err != nil {
		panic(err)
	}
	st := state.New(opts)
	nm := names.New(st)
	m.mem = New(st, nm)
	nm.Copies, st.Recorder, m.mem.Clean = alone{}, alone{}, m.clean
	if err := m.mem.OpenRoom(); err != nil {
		panic(err)
	}
	st.MeterReuse()
	if m.lazy = tier == 2; tier > 0 {
		m.tier = &state.Secondary{Bit: 1, Opts: state.SecondaryOptions{Name: "tier"}, Lane: lane.New(lane.Options{Now: opts.Now})}
		st.Tiers = []*state.Secondary{m.tier}
		if m.lazy {
			st.Lazy, m.tier.Opts.Cascade = 1, state.CascadeOnEvict
		}
	}
	for _, g := range []string{"a", "b", "p", "q"} {
		m.apply(&catalog.CreatedDir{Attrs: catalog.Attrs{Mode: state.ModeDir | 0o755}, Parent: index.Root, Name: g})
	}
	return m
}

// clean is the Clean of the tier.
func (m *model) clean(id index.ID, en *index.Entry, _ bool) bool {
	switch {
	case en.Storing() != 0:
		return true
	case m.tier == nil || en.Flags()&index.FlagRefused != 0 || en.Tiers() != 0:
		return false
	case !m.busy:
		m.apply(catalog.Queued{ID: id, Bit: 1})
	}
	return true
}

// order returns the order of a block that all groups share, or that its group has because of its quota.
func (m *model) order(b *thing) string {
	if m.quotas[b.group] > 0 {
		return b.group
	}
	return ""
}

// leave takes a block out of the orders, but for one.
func (m *model) leave(b *thing, but string) {
	for o, list := range m.orders {
		if o != but {
			m.orders[o] = slices.DeleteFunc(list, func(x *thing) bool { return x == b })
		}
	}
}

// rank enters a block in its orders, or has it used last there.
func (m *model) rank(b *thing) {
	m.leave(b, "-")
	if !m.ranks(b) {
		return
	}
	m.orders[m.order(b)] = append(m.orders[m.order(b)], b)
	if b.payer && m.quotas[payerOrder] > 0 {
		m.orders[payerOrder] = append(m.orders[payerOrder], b)
	}
}

// ranked reports whether a block is in the orders.
func (m *model) ranked(b *thing) bool { return slices.Contains(m.orders[m.order(b)], b) }

// used returns what a group, the user or all files (an empty string) take.
func (m *model) used(of string) (n int64) {
	for _, b := range m.things {
		if b.resident && (of == "" || b.group == of || of == payerOrder && b.payer) {
			n += b.charge()
		}
	}
	return n
}

// search evicts blocks of an order until need bytes are gone.
func (m *model) search(order string, need int64, force bool) (freed int64) {
	list := slices.Clone(m.orders[order])
	skip := func(b *thing) {
		l := slices.DeleteFunc(m.orders[order], func(x *thing) bool { return x == b })
		m.orders[order] = append(l, b)
	}
	for _, b := range list {
		if freed >= need {
			break
		}
		cleans := m.tier != nil && !b.refused && !b.copied
		switch {
		case b.open || b.w != nil:
			skip(b)
		case m.lazy && cleans && !b.queued && !force:
			if m.busy {
				return freed // the queue is full
			}
			b.queued = true
			m.leave(b, "-")
		case b.queued && !force, cleans && !force: // it waits for its copy
			b.queued = b.queued || !m.busy
			skip(b)
		case b.queued: // by force, but for the copy under way
			skip(b)
		case b.lease > m.now && !b.copied && !force:
			skip(b)
		default:
			freed += max(b.charge(), 1)
			m.evict(b)
		}
	}
	return freed
}

// evict takes a block out of memory.
func (m *model) evict(b *thing) {
	m.gone[0]++
	m.leave(b, "-")
	if b.resident = false; !b.copied {
		if m.tier != nil {
			m.gone[1]++
		}
		m.drop(b)
	}
}

func (m *model) drop(b *thing) {
	m.leave(b, "-")
	m.things = slices.DeleteFunc(m.things, func(x *thing) bool { return x == b })
}

// fits makes room for n bytes, and says whether it could.
func (m *model) fits(group string, byPayer bool, n int64, force bool) bool {
	over := func(of string) bool { return m.quotas[of] > 0 && m.used(of)+n > m.quotas[of] }
	quotas := []string{group}
	if byPayer {
		quotas = append(quotas, payerOrder)
	}
	for _, of := range quotas {
		if over(of) && n <= m.quotas[of] {
			m.search(of, m.used(of)+n-m.quotas[of], force)
		}
	}
	if slices.ContainsFunc(quotas, over) || group == "p" && m.used("p")+n > 6*page {
		return false
	}
	if need := m.used("") + n - capacity; need > 0 {
		most := need
		if force && n > 0 {
			most = max(need, capacity/8)
		}
		freed := m.search("", most, force)
		for _, g := range []string{"q", "a", "b"} { // in the order of their numbers
			if m.quotas[g] > 0 && freed < need {
				freed += m.search(g, need-freed, force)
			}
		}
	}
	return m.used("")+n <= capacity
}

var kinds = []struct {
	name string
	do   func(m *model, s tiertest.Step)
}{
	{"create", (*model).create}, {"create", (*model).create}, {"create", (*model).create},
	{"reserve", (*model).reserve}, {"reserve", (*model).reserve}, {"reserve", (*model).reserve},
	{"commit", (*model).commit}, {"commit", (*model).commit}, {"commit", (*model).commit},
	{"open", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A, func(b *thing) bool { return b.committed && b.resident && !b.open && b.expires == 0 }); b != nil {
			b.open, b.used = true, m.now
			m.apply(catalog.Opened{ID: b.id, N: 1, Now: m.now})
			if m.ranks(b) {
				m.rank(b)
			}
		}
	}},
	{"close", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A, func(b *thing) bool { return b.committed && b.open && b.w == nil }); b != nil {
			b.open = false
			m.apply(catalog.Closed{ID: b.id})
			if !m.ranked(b) {
				m.rank(b)
			}
		}
	}},
	{"lease", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A, func(b *thing) bool { return b.committed }); b != nil {
			b.lease = m.now + int64(s.N%3)
			m.apply(catalog.Leased{ID: b.id, Until: b.lease})
		}
	}},
	{"copied", func(m *model, s tiertest.Step) {
		b := m.pick(s.A, func(b *thing) bool { return b.committed && b.resident && !b.raw() && b.w == nil })
		if b == nil || m.tier == nil {
			return
		}
		m.apply(catalog.Unqueued{ID: b.id, Bit: 1})
		if b.queued = false; s.N%4 == 0 {
			b.refused, b.copied = true, false
			m.apply(catalog.Lost{ID: b.id, Tiers: 1})
			m.apply(catalog.Refused{ID: b.id})
		} else {
			b.copied, b.refused = true, false
			m.apply(catalog.Copied{ID: b.id, Bit: 1})
		}
		if m.ranked(b) || !m.ranks(b) {
			return
		}
		var g state.Gone
		if b.copied && !b.open { // it was leaving
			m.evict(b)
			m.mem.Mu.Counters.Evicted++ // as package transfer counts it
			m.mem.EvictOneLocked(b.id, m.at(b), 0, &g)
		} else {
			m.rank(b)
			m.apply(catalog.Stays{ID: b.id})
		}
		m.mem.Finish(&g)
	}},
	{"arrive", func(m *model, s tiertest.Step) {
		b := m.pick(s.A, func(b *thing) bool { return !b.resident })
		if b == nil {
			return
		}
		var g state.Gone
		ok, _ := m.mem.RoomLocked(m.bill(b), b.charge(), false, &g)
		m.mem.Finish(&g)
		if want := m.fits(b.group, b.payer, b.charge(), false); ok != want {
			m.fail("room for a block of %d bytes: %v, want %v", b.size, ok, want)
		} else if ok && slices.Contains(m.things, b) {
			b.resident, b.used = true, m.now
			m.apply(catalog.Arrived{ID: b.id, Blob: m.blob(), Now: m.now})
			m.apply(catalog.Forgotten{ID: b.id, N: 1})
			m.rank(b)
		}
	}},
	{"pin", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A, func(b *thing) bool { return b.committed }); b != nil {
			if on := s.N%3 == 0; on != b.pinned {
				b.pinned = on
				m.apply(catalog.Pinned{ID: b.id, On: on})
				m.rank(b)
			}
		}
	}},
	{"time", func(m *model, s tiertest.Step) { m.now += int64(s.N % 3) }},
	{"busy", func(m *model, s tiertest.Step) { m.busy = s.N%3 == 0 }},
	{"expire", func(m *model, s tiertest.Step) {
		if b := m.pick(s.A, func(b *thing) bool { return b.committed && !b.open }); b != nil {
			b.expires = m.now + int64(s.N%3)
			m.apply(catalog.Expires{ID: b.id, At: b.expires})
		}
		var g state.Gone
		m.mem.ExpireLocked(&g)
		m.mem.Finish(&g)
		for _, b := range slices.Clone(m.things) {
			if b.expires != 0 && b.expires <= m.now {
				m.gone[2]++
				m.drop(b)
			}
		}
	}},
	{"quota", (*model).quota},
}

func (m *model) blob() uint64 {
	b, file, err := m.mem.Primary.Create()
	if err != nil {
		panic(err)
	}
	file.Close()
	return uint64(b)
}

// create makes a file, and opens it for writing.
func (m *model) create(s tiertest.Step) {
	if len(m.things) > 20 {
		return
	}
	m.names++
	b := &thing{group: []string{"a", "a", "b", "b", "q", "p"}[s.A%6], payer: s.B%3 == 0, temp: s.N%6 == 0, resident: true, used: m.now, w: new(writer)}
	name, uid := fmt.Sprint(m.names), uint32(1)
	if b.temp {
		name += ".tmp"
	}
	if b.payer {
		uid = payer
	}
	b.id = m.mem.ApplyLocked(&catalog.CreatedFile{
		Attrs:  catalog.Attrs{Mode: state.ModeRegular, UID: uid, Ctime: m.now, Atime: m.now},
		Parent: m.mem.Mu.Ix.Walk(b.group), Name: name, Blob: m.blob(),
	}).ID
	m.mem.AddFileLocked(b.id, b.w, &b.w.Writing)
	m.apply(catalog.Opened{ID: b.id, N: 1})
	b.open = true
	m.things = append(m.things, b)
}

// reserve makes room for more bytes of a file.
func (m *model) reserve(s tiertest.Step) {
	b := m.pick(s.A, func(b *thing) bool { return b.w != nil })
	if b == nil {
		return
	}
	n := int64(1+s.N%7) * page
	if s.N%50 == 0 {
		n = capacity + page
	}
	if s.B%3 > 0 {
		want := m.fits(b.group, b.payer, n, false)
		if got := m.mem.TryReserve(b.id, n); got != want {
			m.fail("TryReserve %d: %v, want %v", n, got, want)
		}
		if want {
			b.reserved += n
		}
		return
	}
	var want error
	switch hopeless := m.hopeless(b, n); {
	case hopeless != nil:
		want = hopeless
	case m.fits(b.group, b.payer, n, true):
		b.reserved += n
	case m.over(b, n):
		want = block.ErrQuota
	default:
		want = block.ErrNoSpace
	}
	if err := m.mem.Reserve(context.Background(), b.id, n, false); !errors.Is(err, want) {
		m.fail("Reserve %d in %s: %v, want %v", n, b.group, err, want)
	}
}

// limits are the quotas of those who pay for a file.
func (m *model) limits(b *thing) []string {
	of := []string{b.group}
	if b.payer {
		of = append(of, payerOrder)
	}
	return slices.DeleteFunc(of, func(of string) bool { return m.quotas[of] == 0 })
}

func (m *model) over(b *thing, n int64) bool {
	return slices.ContainsFunc(m.limits(b), func(of string) bool { return m.used(of)+n > m.quotas[of] })
}

func (m *model) hopeless(b *thing, n int64) error {
	switch {
	case b.charge()+n > capacity:
		return block.ErrTooLarge
	case slices.ContainsFunc(m.limits(b), func(of string) bool { return b.charge()+n > m.quotas[of] }), b.group == "p" && m.used("p")+n > 6*page:
		return block.ErrQuota
	}
	return nil
}

// commit ends the writing of a file.
func (m *model) commit(s tiertest.Step) {
	b := m.pick(s.A, func(b *thing) bool { return b.w != nil })
	if b == nil {
		return
	}
	b.size = max(0, b.reserved-int64(s.N%3)*1000)
	if b.raw() {
		m.apply(catalog.Seated{ID: b.id, Seq: m.mem.NextSeqLocked()})
		m.apply(catalog.Rewritten{ID: b.id, Size: b.size, Mtime: m.now})
	} else {
		m.apply(catalog.Committed{ID: b.id, Size: b.size, Mtime: m.now, Seq: m.mem.NextSeqLocked()})
	}
	m.apply(catalog.Trimmed{ID: b.id})
	m.mem.DropFileLocked(b.id)
	m.apply(catalog.Closed{ID: b.id})
	b.committed, b.open, b.w, b.reserved, b.used = true, false, nil, 0, m.now
	m.rank(b)
}

// quota gives a group or the user another quota, or takes it away.
func (m *model) quota(s tiertest.Step) {
	of := []string{"a", "q", payerOrder}[s.A%3]
	q := Quota{Kind: QuotaGroup, Name: of, Bytes: int64(s.N%5) * 3 * page}
	if of == payerOrder {
		q.Kind, q.Name = QuotaUser, fmt.Sprint(payer)
	}
	was, is := m.quotas[of], q.Bytes
	if of == "q" && is == 0 {
		is = 8 * page // as configured
	}
	unknown := m.mem.Mu.Room.Find(block.GroupID(of)) == nil
	err := m.mem.Accounts().SetQuota(context.Background(), q)
	if refused := was == 0 && is == 0 && unknown; (err != nil) != refused {
		m.fail("quota %+v: %v", q, err)
	}
	m.quotas[of] = is
	if (was == 0) != (is == 0) { // the blocks go to another order, the least recently used first
		mine := slices.DeleteFunc(slices.Clone(m.things), func(b *thing) bool {
			return of == payerOrder && !b.payer || of != payerOrder && (b.group != of || !m.ranked(b) && !slices.Contains(m.orders[""], b) && !slices.Contains(m.orders[of], b))
		})
		slices.SortFunc(mine, func(a, b *thing) int { return int(a.id) - int(b.id) })
		if is > 0 || of != payerOrder {
			slices.SortStableFunc(mine, func(a, b *thing) int { return int(a.used - b.used) })
		}
		for _, b := range mine {
			m.rank(b)
		}
	}
	if is > 0 {
		for n := int64(1); n > 0 && m.used(of) > is; {
			n = m.search(of, m.used(of)-is, false)
		}
	}
}

// check compares memory with the model.
func (m *model) check() error {
	st := m.mem.State
	for _, b := range m.things {
		if !st.Mu.Ix.Valid(b.id) {
			return fmt.Errorf("file %d of %s is gone", b.id, b.group)
		}
		en := m.at(b)
		if got := en.InMemory(); got != b.resident || (en.Storing() != 0) != b.queued || en.Ranked() != m.ranked(b) {
			return fmt.Errorf("file %d of %s: in memory %v, on the way %v, in the orders %v; want %+v, %v", b.id, b.group, got, en.Storing() != 0, en.Ranked(), *b, m.ranked(b))
		}
	}
	resident, nonresident := st.Mu.Blocks()
	files := 0
	for _, b := range m.things {
		if b.resident {
			files++
		}
		if b.committed && b.resident {
			resident--
		} else if !b.resident {
			nonresident--
		}
	}
	if got := st.Primary.(*tiertest.Files).Len(); got != files || resident != 0 || nonresident != 0 {
		return fmt.Errorf("%d files, want %d; %d blocks too many, %d nonresident ones", got, files, resident, nonresident)
	}
	for _, g := range m.mem.Accounts().Groups() {
		if want := m.used(string(g.Name)); g.Name != "" && g.UsedBytes != want {
			return fmt.Errorf("group %q: %d bytes, want %d", g.Name, g.UsedBytes, want)
		}
	}
	c := &st.Mu.Counters
	if got := [3]uint64{c.Evicted, c.Lost, c.Expired}; st.Mu.Room.Used() != m.used("") || got != m.gone {
		return fmt.Errorf("%d bytes, want %d; evicted, lost, expired %d, want %d", st.Mu.Room.Used(), m.used(""), got, m.gone)
	}
	return errors.Join(m.errs...)
}

// TestModel fills memory in random ways. What goes, and what finds no room, is what a model says that keeps the orders
// of eviction as lists.
func TestModel(t *testing.T) {
	var list []string
	for _, k := range kinds {
		list = append(list, k.name)
	}
	for tier := range 3 {
		t.Run(tierKinds[tier], func(t *testing.T) {
			tiertest.RunSteps(t, 20, 300, list, func(steps []tiertest.Step) (int, error) {
				m := newModel(tier)
				defer m.mem.Primary.Close(false)
				for i, s := range steps {
					kinds[s.Kind].do(m, s)
					if err := m.check(); err != nil {
						return i + 1, err
					}
				}
				return len(steps), nil
			})
		})
	}
}

// tierKinds are what is below memory.
var tierKinds = []string{"nothing", "a tier that gets all blocks", "a tier that gets what leaves memory"}
