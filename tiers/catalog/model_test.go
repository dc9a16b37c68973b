package catalog

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/pattern"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// thing is what the model knows of an entry. Nothing in it is derived.
type thing struct {
	dir, linked, committed, pinned, leaving bool

	parent  index.ID
	name    string
	blob    uint64
	tiers   uint16
	storing uint16
	size    int64
	charge  int64 // with w
	w       *Writing
	opens   uint32
	refs    uint32
	uid     uint32
	cgroup  uint16
	used    bool
	marks   uint16 // other flags
	seq     uint64
	lease   int64
	expires int64
	user    block.UserAttrs
	unread  bool
}

// model says what a Catalog must say, by going through all entries each time.
type model struct {
	c      Catalog
	things map[index.ID]*thing
	sizes  map[block.GroupID][]int64 // of blocks, in the order in which groups have learned them
	n      uint64                    // the last number given out

	heard, want []Fact // since the last step
}

// hears notes that a follower hears about an entry, if that is a block.
func (m *model) hears(id index.ID, t *thing, what What, tier uint16, why outcome.Reason) {
	if t.at() && !m.plainOrTemp(t) {
		m.want = append(m.want, Fact{ID: id, What: what, Tier: tier, Why: outcome.Cause{Reason: why}})
	}
}

// The user and the control group that have an account.
const (
	payer  = 7
	cgroup = "/pod"
)

func newModel() *model {
	m := &model{things: map[index.ID]*thing{}, sizes: map[block.GroupID][]int64{}}
	m.c = New(pattern.New(pattern.Temp), pattern.New(pattern.Plain), Attrs{Mode: dirMode})
	m.c.Remote, m.c.Kernels = 4, true
	m.c.Follow = func(f Fact) {
		if !m.c.Ix.Linked(f.ID) {
			panic(fmt.Sprintf("%+v: the name is gone", f))
		}
		m.heard = append(m.heard, f)
	}
	var err error
	m.c.Room, err = room.New(room.Options{
		CapacityBytes: 1 << 40, Policy: "lru", Groups: map[block.GroupID]room.GroupOptions{
			"p": {Pinned: true}, "q": {QuotaBytes: 1 << 30},
		},
	})
	if err == nil {
		_, _, err = m.c.Room.OpenAccount(room.Holder{UID: payer}, 1<<30, false)
	}
	if err == nil {
		_, _, err = m.c.Room.OpenAccount(room.Holder{Cgroup: cgroup}, 1<<30, true)
	}
	if err != nil {
		panic(err)
	}
	m.things[index.Root] = &thing{dir: true, linked: true, committed: true}
	return m
}

const dirMode = 0o040755

func (m *model) next() uint64 { m.n++; return m.n }

// temp reports whether names in a directory are temporary.
func (m *model) temp(dir index.ID) bool {
	for ; dir != index.Root; dir = m.things[dir].parent {
		if m.things[dir].name == "tmp" {
			return true
		}
	}
	return false
}

// group returns the group of a file with a parent.
func (m *model) group(t *thing) block.GroupID {
	id, name := t.parent, ""
	for ; id != index.Root; id = m.things[id].parent {
		name = m.things[id].name
	}
	return block.GroupID(name)
}

// A step makes an Edit.
type step = tiertest.Step

// learn has the group of a file know its size.
func (m *model) learn(t *thing) { m.sizes[m.group(t)] = append(m.sizes[m.group(t)], t.size) }

// told reports whether kernels may have cached what one of them changes of an entry.
func (m *model) told(id index.ID, t *thing) bool {
	temp := m.temp(t.parent) || t.name == "x.tmp"
	if t.dir {
		temp = m.temp(id)
	}
	return t.refs > 0 && t.committed && !temp
}

// mustTell panics unless a Change says what kernels are to forget: the name that an entry had, and its attributes.
func mustTell(ch Change, t thing, left, aged bool) {
	want := Name{}
	if left {
		want = Name{t.parent, t.name}
	}
	if ch.Left != want || ch.Aged != aged {
		panic(fmt.Sprintf("kernels are told %+v %v, want %+v %v", ch.Left, ch.Aged, want, aged))
	}
}

// pick returns one of the entries that fit, in the order of their numbers; 0: none does.
func (m *model) pick(n uint32, fits func(t *thing) bool) (index.ID, *thing) {
	var ids []index.ID
	for id, t := range m.things {
		if fits(t) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	slices.Sort(ids)
	id := ids[int(n)%len(ids)]
	return id, m.things[id]
}

func anyFile(t *thing) bool { return !t.dir }

func (t *thing) live() bool     { return !t.dir && t.linked }
func (t *thing) resident() bool { return t.blob != 0 || t.w != nil }
func (t *thing) at() bool       { return t.live() && t.committed }

// freeName returns a directory and a name in it that nothing has; 0: there is none.
func (m *model) freeName(s step, names ...string) (index.ID, string) {
	dir, _ := m.pick(s.A, func(t *thing) bool { return t.dir && t.linked })
	name := names[int(s.B)%len(names)]
	if m.c.Ix.Lookup(dir, name) != 0 {
		return 0, ""
	}
	return dir, name
}

var fileNames = []string{"a", "b", "c", "x.tmp", "y.lock"}

// plainOrTemp reports whether a file is no block.
func (m *model) plainOrTemp(t *thing) bool { return m.nameFlags(t) != 0 || m.group(t) == "p" }

func (m *model) nameFlags(t *thing) (flags uint16) {
	if m.temp(t.parent) || t.name == "x.tmp" {
		flags |= index.FlagTemp
	}
	if t.name == "y.lock" {
		flags |= index.FlagPlain
	}
	return flags
}

// kinds are the steps. Each makes an Edit, and notes in the model what the Edit says.
var kinds = []struct {
	name string
	do   func(m *model, s step)
}{
	{"create", func(m *model, s step) {
		parent, name := m.freeName(s, fileNames...)
		if parent == 0 {
			return
		}
		t := &thing{linked: true, parent: parent, name: name, blob: m.next(), uid: s.N % 9, pinned: s.N%5 == 0, w: &Writing{}, cgroup: uint16(s.N % 2 * 2)}
		ch := m.c.Apply(&CreatedFile{Attrs: Attrs{Mode: modeRegular, UID: t.uid, Ctime: 5}, Parent: parent, Name: name, Blob: t.blob, Pinned: t.pinned, Cgroup: t.cgroup})
		m.c.Apply(Begun{ch.ID, t.w})
		m.things[ch.ID] = t
	}},
	{"create in tiers", func(m *model, s step) {
		parent, name := m.freeName(s, "a", "b", "c")
		if parent == 0 || m.temp(parent) {
			return
		}
		t := &thing{linked: true, committed: true, parent: parent, name: name, tiers: 1 << (s.N % 3), size: int64(s.N % 9000), uid: s.N % 9, pinned: s.N%4 == 0, seq: m.next()}
		if t.unread = s.N%3 == 0; s.N%3 == 1 {
			t.user = "some"
		}
		if s.N%7 == 0 {
			t.expires = int64(m.next())
		}
		ch := m.c.Apply(&CreatedFile{Attrs: Attrs{Mode: modeRegular, UID: t.uid}, Parent: parent, Name: name, Tiers: t.tiers, Size: t.size, Seq: t.seq, Pinned: t.pinned, Expires: t.expires, News: s.N%2 == 0, User: t.user, Unread: t.unread})
		if m.things[ch.ID] = t; s.N%2 == 0 {
			m.hears(ch.ID, t, Kept, t.tiers, 0)
		}
		if t.tiers != 4 {
			m.learn(t)
		}
	}},
	{"mkdir", func(m *model, s step) {
		parent, name := m.freeName(s, "g", "p", "q", "tmp")
		if parent == 0 {
			return
		}
		t := &thing{dir: true, linked: true, committed: true, parent: parent, name: name, refs: 1, tiers: uint16(s.N % 2 * 4), blob: uint64(s.N % 3)}
		ch := m.c.Apply(&CreatedDir{Attrs: Attrs{Mode: dirMode}, Parent: parent, Name: name, Refs: 1, Tiers: t.tiers, Blob: t.blob})
		m.things[ch.ID] = t
	}},
	{"adopt", func(m *model, s step) {
		parent, name := m.freeName(s, fileNames...)
		if parent == 0 {
			return
		}
		t := &thing{linked: true, committed: true, parent: parent, name: name, size: int64(s.N % 9000), uid: s.N % 9, pinned: s.N%4 == 0, seq: m.next(), blob: m.next()}
		first := m.c.Apply(Found{Parent: parent, Name: name, Blob: 99})
		if ch := m.c.Apply(Found{ID: first.ID, Blob: t.blob}); ch.Blob != 99 {
			panic(fmt.Sprint("found again: earlier file ", ch.Blob))
		}
		m.c.Apply(&Adopted{Attrs: Attrs{ID: first.ID, Mode: modeRegular, UID: t.uid}, Name: name, Seq: t.seq, Size: t.size, Pinned: t.pinned})
		m.things[first.ID] = t
		if !m.plainOrTemp(t) {
			m.learn(t)
		}
	}},
	{"commit", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool { return t.live() && t.w != nil && !m.plainOrTemp(t) })
		if t == nil {
			return
		}
		size, was := int64(s.N%20000), t.committed
		t.committed, t.size, t.seq, t.marks, t.leaving = true, size, m.next(), t.marks&(index.FlagSynced|index.FlagTouched), false
		grew := max(0, ChargeOf(size)-t.charge)
		t.charge += grew
		m.learn(t)
		m.hears(id, t, Kept, 0, 0)
		ch := m.c.Apply(Committed{ID: id, Size: size, Seq: t.seq})
		mustTell(ch, *t, false, was && m.told(id, t))
		if ch.Grew != grew || (ch.Was != Uncounted) != was || ch.Is != Resident {
			panic(fmt.Sprintf("commit: %+v, grew %d", ch, grew))
		}
	}},
	{"seat", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.live() && !t.committed && m.plainOrTemp(t) }); t != nil {
			t.committed, t.seq = true, m.next()
			m.c.Apply(Seated{id, t.seq})
		}
	}},
	{"rewrite", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.at() && t.w != nil && m.plainOrTemp(t) }); t != nil {
			t.size = int64(s.N % 20000)
			t.charge = max(t.charge, ChargeOf(t.size))
			t.marks &^= index.FlagSum
			mustTell(m.c.Apply(Rewritten{ID: id, Size: t.size}), *t, false, m.told(id, t))
			mustTell(m.c.Apply(Aged{id}), *t, false, m.told(id, t))
		}
	}},
	{"reserve", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return !t.dir }); t != nil {
			n := int64(s.N%5) * PageBytes
			if t.w != nil { // else it has ended while a write waited
				t.charge += n
			}
			m.c.Apply(Reserved{id, n})
		}
	}},
	{"write", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return !t.dir && t.w == nil && t.blob != 0 }); t != nil {
			t.w, t.charge = &Writing{}, ChargeOf(t.size)
			m.c.Apply(Begun{id, t.w})
		}
	}},
	{"end", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.w != nil }); t != nil {
			t.charge = ChargeOf(t.size)
			m.c.Apply(Trimmed{id})
			if s.N%2 == 0 {
				t.w = nil
				m.c.Apply(Ended{id})
			}
		}
	}},
	{"evict", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return m.movable(t) && t.tiers != 0 && t.opens == 0 && t.w == nil }); t != nil {
			var blob uint64
			if s.N%2 == 0 {
				m.c.Apply(Leaving{ID: id})
			}
			blob, t.blob, t.leaving = t.blob, 0, false
			m.hears(id, t, Dropped, 0, outcome.ReasonCapacity)
			if ch := m.c.Apply(Evicted{ID: id, Why: outcome.Cause{Reason: outcome.ReasonCapacity}}); ch.Blob != blob || ch.Was != Resident || ch.Is != Nonresident {
				panic(fmt.Sprintf("evict: %+v, file %d", ch, blob))
			}
		}
	}},
	{"leave", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return m.movable(t) && t.opens == 0 && t.w == nil }); t != nil {
			t.leaving = true
			m.c.Apply(Leaving{ID: id})
		}
	}},
	{"stay", func(m *model, s step) {
		if id, t := m.pick(s.A, anyFile); t != nil {
			t.leaving = false
			if s.N%2 == 0 {
				m.c.Apply(Stays{id})
			} else {
				m.c.Apply(Reranked{id})
			}
		}
	}},
	{"arrive", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.at() && !t.resident() && t.tiers != 0 }); t != nil {
			t.blob, t.opens, t.refs = m.next(), t.opens+s.N%3, t.refs+1
			m.c.Apply(Arrived{ID: id, Blob: t.blob, N: s.N % 3})
			m.hears(id, t, Kept, 0, outcome.ReasonPromoted)
		}
	}},
	{"copied", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.at() && !m.plainOrTemp(t) }); t != nil {
			bit := uint16(1) << (s.N % 3)
			m.c.Apply(Queued{id, bit})
			m.c.Apply(Unqueued{id, bit})
			m.c.Apply(Copied{ID: id, Bit: bit, Keeps: s.N%2 == 0, Sum: block.Checksum{Sum: 3, Valid: s.N%5 == 0}, Old: s.N%4 == 0})
			if s.N%4 != 0 {
				m.hears(id, t, Kept, bit, 0)
			}
			t.tiers |= bit
			t.storing &^= bit
			t.marks &^= index.FlagRefused | index.FlagOnceSeen
			if s.N%2 == 0 {
				t.marks &^= index.FlagSynced
			}
			if s.N%5 == 0 {
				t.marks |= index.FlagSum
			}
		}
	}},
	{"lost", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool { return t.linked && t.tiers|t.storing != 0 && (t.dir || t.resident()) })
		if t == nil {
			return
		}
		bits := uint16(s.N % 8)
		x := Lost{ID: id, Tiers: bits, Storing: bits, Promise: s.N%2 == 0, Why: outcome.Reason(s.B % 2)}
		m.c.Apply(x)
		if x.Why != 0 {
			m.hears(id, t, Dropped, bits, x.Why)
		}
		t.used = t.used && t.tiers&bits&4 == 0
		t.tiers, t.storing = t.tiers&^bits, t.storing&^bits
		if s.N%2 == 0 {
			t.marks &^= index.FlagSynced
		}
	}},
	{"marks", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool { return t.at() })
		if t == nil {
			return
		}
		for _, x := range []struct {
			e    Edit
			flag uint16
		}{{Refused{id}, index.FlagRefused}, {Seen{id, true}, index.FlagOnceSeen}, {Touched{id, true}, index.FlagTouched}, {Synced{id}, index.FlagSynced}, {Summed{id, 1}, index.FlagSum}} {
			if m.c.Apply(x.e); true {
				t.marks |= x.flag
			}
			if s.N%3 == 0 {
				break
			}
		}
		if s.N%2 == 0 {
			m.c.Apply(Touched{id, false})
			m.c.Apply(Seen{id, false})
			t.marks &^= index.FlagTouched | index.FlagOnceSeen
		}
	}},
	{"use a directory", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.dir && t.linked && t.tiers&4 != 0 }); t != nil {
			t.used = true
			m.c.Apply(Used{id})
		}
	}},
	{"open", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return !t.dir && t.blob != 0 }); t != nil {
			if t.opens == 0 {
				t.leaving = false
			}
			t.opens++
			m.c.Apply(Opened{ID: id, N: 1, Now: int64(s.N % 2), Lent: s.N%3 == 0})
		}
	}},
	{"close", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.opens > 0 }); t != nil {
			if t.opens--; t.opens == 0 {
				t.leaving = false
			}
			m.c.Apply(Closed{id})
		}
	}},
	{"refer", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return !t.dir || t.linked }); t != nil {
			t.refs, t.lease = t.refs+1, int64(s.N)+1
			if s.B%2 == 0 {
				m.c.Apply(LookedUp{id, t.lease})
				return
			}
			m.c.Apply(Referred{id})
			m.c.Apply(Leased{id, t.lease})
		}
	}},
	{"forget", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.refs > 0 }); t != nil && id != index.Root {
			n := s.N % 3
			t.refs -= min(n, t.refs)
			m.c.Apply(Forgotten{id, uint64(n)})
		}
	}},
	{"pin", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.live() }); t != nil {
			t.pinned, t.leaving = s.N%2 == 0, false
			m.c.Apply(Pinned{id, t.pinned})
		}
	}},
	{"attributes", func(m *model, s step) {
		if id, t := m.pick(s.A, anyFile); t != nil {
			a := AttrsOf(id, m.c.Ix.At(id))
			was := t.uid
			t.uid = s.N % 9
			a.UID, a.Use = t.uid, s.N%2 == 0
			if (was == payer) != (t.uid == payer) {
				t.leaving = false
			}
			m.c.Apply(&a)
			m.c.Apply(Times{id, 3, 4})
		}
	}},
	{"another cgroup", func(m *model, s step) {
		if id, t := m.pick(s.A, anyFile); t != nil {
			en := m.c.Ix.At(id)
			to := uint16(s.N % 2 * 2)
			if t.cgroup != to {
				t.leaving = false
			}
			t.cgroup = to
			m.c.Apply(Billed{id, en.Group(), [2]uint16{en.Accounts()[OfUser], to}})
		}
	}},
	{"version", func(m *model, s step) {
		if id, t := m.pick(s.A, func(t *thing) bool { return t.linked }); t != nil {
			t.seq = m.next()
			t.expires = int64(s.N % 3)
			m.c.Apply(Versioned{ID: id, Seq: t.seq, Own: true})
			m.c.Apply(Expires{id, t.expires})
		}
	}},
	{"attributes of processes", func(m *model, s step) {
		if id, t := m.pick(s.A, anyFile); t != nil {
			t.user, t.unread = "", false
			if s.N%3 > 0 {
				t.user = block.UserAttrs(fmt.Sprint(s.N))
			}
			m.c.Apply(Attributed{ID: id, User: t.user})
		}
	}},
	{"restart", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool {
			return t.at() && t.opens == 0 && t.resident() && t.tiers|t.storing == 0 && !m.plainOrTemp(t)
		})
		if t == nil {
			return
		}
		blob, told := t.blob, m.told(id, t)
		m.hears(id, t, Gone, 0, outcome.ReasonReplaced)
		t.committed, t.leaving, t.blob, t.w, t.charge, t.size, t.lease, t.marks, t.cgroup = false, false, m.next(), nil, 0, 0, 0, t.marks&index.FlagSynced, 0
		t.user, t.unread = "", false
		ch := m.c.Apply(Restarted{ID: id, Blob: t.blob, Now: 6, Why: outcome.Cause{Reason: outcome.ReasonReplaced}})
		mustTell(ch, *t, t.refs > 0, told)
		if ch.Blob != blob || ch.Was != Resident || ch.Is != Uncounted {
			panic(fmt.Sprintf("restart: %+v, file %d", ch, blob))
		}
		t.w = &Writing{}
		m.c.Apply(Begun{id, t.w})
	}},
	{"remove", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool { return t.live() })
		if t == nil {
			return
		}
		m.c.Apply(Lost{ID: id, Tiers: t.tiers, Storing: t.storing})
		x := Removed{ID: id, Asked: s.N%2 == 0, Evicted: s.N%3 == 0, Why: outcome.Cause{Reason: outcome.ReasonUnlink}}
		what := Gone
		if x.Evicted {
			what = Dropped
		}
		m.hears(id, t, what, 0, outcome.ReasonUnlink)
		mustTell(m.c.Apply(x), *t, t.refs > 0 && (s.N%2 != 0 || m.told(id, t)), false)
		t.linked, t.pinned, t.leaving, t.tiers, t.storing = false, false, false, 0, 0
	}},
	{"rmdir", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool { return t.dir && t.linked })
		if id == index.Root || t == nil || m.c.Ix.Children(id) > 0 {
			return
		}
		m.c.Apply(Lost{ID: id, Tiers: t.tiers})
		ch := m.c.Apply(Removed{ID: id, Asked: s.N%2 == 0})
		mustTell(ch, *t, t.refs > 0 && (s.N%2 != 0 || m.told(id, t)), false)
		if ch.Blob != t.blob {
			panic(fmt.Sprintf("rmdir: %+v, file %d", ch, t.blob))
		}
		t.linked, t.used, t.tiers, t.blob = false, false, 0, 0
	}},
	{"reap", func(m *model, s step) {
		id, t := m.pick(s.A, func(t *thing) bool { return !t.linked && t.opens == 0 })
		if t == nil {
			return
		}
		m.c.Apply(Reaped{id})
		if t.blob, t.w, t.charge, t.size = 0, nil, 0, 0; t.refs == 0 {
			delete(m.things, id)
		}
	}},
	{"rename", func(m *model, s step) {
		id, t := m.pick(s.N, func(t *thing) bool { return t.live() && t.w != nil })
		parent, name := m.freeName(s, fileNames...)
		if t == nil || parent == 0 {
			return
		}
		to := *t
		to.parent, to.name = parent, name
		x := Renamed{ID: id, Parent: parent, Name: name, Now: 7, Seq: m.next()}
		switch block := !m.plainOrTemp(&to); {
		case block && !m.plainOrTemp(t):
		case block:
			x.Becomes, to.committed = Private+Becomes(s.N%2), false
		default:
			x.Becomes, x.Size, to.committed, to.size = Shown, min(t.size, t.charge), true, min(t.size, t.charge)
			if t.committed && !m.plainOrTemp(t) {
				x.Becomes = Withdrawn
				m.hears(id, t, Gone, 0, outcome.ReasonRenamed)
			}
		}
		to.seq, to.leaving = x.Seq, false
		from, told := *t, m.told(id, t)
		*t = to
		// The group is another Edit, before, because there may be no room in it.
		en := m.c.Ix.At(id)
		m.c.Apply(Billed{id, m.c.GroupOf(parent), en.Accounts()})
		ch := m.c.Apply(&x)
		mustTell(ch, from, told, false)
		if ch.Hidden != (x.Becomes == Hidden && t.refs > 0) {
			panic(fmt.Sprintf("rename: %+v", ch))
		}
	}},
	{"rename a directory", func(m *model, s step) {
		id, t := m.pick(s.N, func(t *thing) bool { return t.dir && t.linked && t.parent != 0 })
		parent, name := m.freeName(s, "g", "p", "q", "tmp")
		if t == nil || parent == 0 || m.c.Ix.Within(parent, id) {
			return
		}
		// A block stays a block: its name does not decide that again.
		if m.temp(parent) || name == "tmp" || m.temp(id) {
			return
		}
		from, told := *t, m.told(id, t)
		t.parent, t.name, t.seq = parent, name, m.next()
		for below, u := range m.things {
			if u.live() && m.c.Ix.Within(below, id) && m.c.Room.Group(m.c.Ix.At(below).Group()).Name() != m.group(u) {
				u.leaving = false
			}
		}
		mustTell(m.c.Apply(&Renamed{ID: id, Parent: parent, Name: name, Now: 8, Seq: t.seq}), from, told, false)
	}},
}

// movable reports whether memory may evict a block, as far as its entry says.
func (m *model) movable(t *thing) bool { return m.evictable(t) && !t.leaving }

func (m *model) evictable(t *thing) bool {
	return t.at() && t.resident() && !t.pinned && !m.plainOrTemp(t)
}

// account is what a group or an account must say.
type account struct{ used, pins int64 }

// check compares the catalog with the model.
func (m *model) check() error {
	var blocks, nonresident, used, pinned int64
	var ranked, dirs, users int
	var dirFiles int64
	groups, files, accounts := map[block.GroupID]account{}, map[block.GroupID]int{}, map[uint16]account{}
	for id, t := range m.things {
		en := m.c.Ix.At(id)
		if err := m.compare(id, en, t); err != nil {
			return err
		}
		if t.used {
			dirs++
		}
		if t.dir {
			dirFiles += min(int64(t.blob), 1)
			continue
		}
		if t.user != "" {
			users++
		}
		cost := int64(0)
		switch {
		case t.w != nil:
			cost = t.charge
		case t.blob != 0:
			cost = ChargeOf(t.size)
		}
		used += cost
		if t.resident() && (t.opens > 0 || !m.evictable(t)) {
			pinned += cost
		}
		if m.movable(t) && m.group(t) != "q" {
			ranked++
		}
		switch {
		case t.at() && t.resident():
			blocks++
		case t.at():
			nonresident++
		}
		pins := int64(0)
		if t.pinned {
			if pins = ChargeOf(t.size); t.w != nil {
				pins = t.charge
			}
		}
		g := m.c.Room.Group(en.Group()).Name()
		groups[g] = account{groups[g].used + cost, groups[g].pins + pins}
		files[g]++
		for _, n := range en.Accounts() {
			accounts[n] = account{accounts[n].used + cost, accounts[n].pins + pins}
		}
	}
	if len(m.c.user) != users {
		return fmt.Errorf("attributes of %d files, want %d", len(m.c.user), users)
	}
	if !slices.Equal(m.heard, m.want) {
		return fmt.Errorf("followers heard %+v, want %+v", m.heard, m.want)
	}
	m.heard, m.want = nil, nil
	b, h := m.c.Blocks()
	got := []int64{b, h, m.c.Room.Used(), m.c.Room.Pinned(), int64(m.c.UsedDirs()), int64(m.c.Room.Shared().Len()), m.c.DirFiles()}
	if want := []int64{blocks, nonresident, used, pinned, int64(dirs), int64(ranked), dirFiles}; !slices.Equal(got, want) {
		return fmt.Errorf("blocks, nonresident, used, pinned, used directories, ranked, files of directories: %v, want %v", got, want)
	}
	if b2, h2 := m.c.Census(); b2 != b || h2 != h {
		return fmt.Errorf("census %d and %d, counters %d and %d", b2, h2, b, h)
	}
	for g := range m.c.Room.Groups() {
		pins, _ := g.Pins()
		if got := (account{g.Used(), pins}); got != groups[g.Name()] || g.Files() != files[g.Name()] {
			return fmt.Errorf("group %q: %+v of %d files, want %+v of %d", g.Name(), got, g.Files(), groups[g.Name()], files[g.Name()])
		}
	}
	for name, sizes := range m.sizes {
		if got, want := m.c.Room.Find(name).BlockBytes(), slices.Max(sizes[max(0, len(sizes)-16):]); got != want {
			return fmt.Errorf("group %q: blocks of %d bytes, want %d", name, got, want)
		}
	}
	for n := uint16(1); n <= 2; n++ {
		a := m.c.Room.Account(n)
		pins, _ := a.Pins()
		if got := (account{a.Used(), pins}); got != accounts[n] {
			return fmt.Errorf("account %d: %+v, want %+v", n, got, accounts[n])
		}
	}
	return nil
}

// compare compares an entry with what the model knows of it.
func (m *model) compare(id index.ID, en *index.Entry, t *thing) error {
	type row struct {
		Linked, Committed, Ranked, Pinned, Used bool
		Name                                    uint16
		Marks                                   uint16
		Blob, Seq                               uint64
		Tiers, Storing                          uint16
		Size, Lease, Expires                    int64
		Opens, Refs                             uint32
		Accounts                                [2]uint16
		Group                                   block.GroupID
		User                                    block.UserAttrs
		Unread                                  bool
	}
	const marks = index.FlagSum | index.FlagRefused | index.FlagOnceSeen | index.FlagTouched | index.FlagSynced
	got := row{
		m.c.Ix.Linked(id), en.Committed(), en.Ranked(), en.Pinned(), en.Used(), en.Flags() & (index.FlagTemp | index.FlagPlain),
		en.Flags() & marks, en.Blob(), en.Seq(), en.Tiers(), en.Storing(), en.Size(), en.Lease(), m.c.Ix.Expires(id), en.Opens(), en.Lookups(), en.Accounts(), "",
		m.c.UserAttrs(id, en), en.Flags()&index.FlagUnread != 0,
	}
	want := row{
		t.linked, t.committed, m.movable(t), t.pinned, t.used, 0,
		t.marks, t.blob, t.seq, t.tiers, t.storing, t.size, t.lease, t.expires, t.opens, t.refs, [2]uint16{}, "",
		t.user, t.unread,
	}
	if !t.dir {
		got.Group = m.c.Room.Group(en.Group()).Name()
		if want.Accounts[OfCgroup] = t.cgroup; t.uid == payer {
			want.Accounts[OfUser] = 1
		}
		want.Group = got.Group
		if t.linked {
			want.Group = m.group(t)
			if want.Name = m.nameFlags(t); t.blob == 0 && t.w == nil {
				want.Name, got.Name = 0, 0
			}
		} else {
			want.Name, got.Name = 0, 0
		}
	} else if t.linked && m.temp(id) {
		want.Name = index.FlagTemp
	} else if !t.linked {
		got.Name = 0
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("entry %d, %q: %+v, want %+v", id, t.name, got, want)
	}
	return nil
}

// play makes the steps. It returns how many it made, and what is wrong then.
func play(steps []step) (n int, err error) {
	m := newModel()
	for i, s := range steps {
		kinds[s.Kind].do(m, s)
		if err := m.check(); err != nil {
			return i + 1, err
		}
	}
	return len(steps), nil
}

// TestModel makes random Edits. After each the catalog says what a model says that derives everything anew from what
// happened.
func TestModel(t *testing.T) {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	tiertest.RunSteps(t, 20, 400, names, play)
}

// TestAllocations: an Edit is never moved to the heap.
func TestAllocations(t *testing.T) {
	m := newModel()
	id := m.c.Apply(&CreatedFile{Attrs: Attrs{Mode: modeRegular}, Parent: index.Root, Name: "a", Tiers: 1}).ID
	attrs := AttrsOf(id, m.c.Ix.At(id))
	n := testing.AllocsPerRun(100, func() {
		m.c.Apply(LookedUp{id, 1})
		m.c.Apply(Opened{ID: id, N: 1, Now: 1})
		m.c.Apply(Touched{id, true})
		m.c.Apply(Closed{id})
		m.c.Apply(&Attrs{ID: id, Mode: attrs.Mode, Mtime: 1})
		m.c.Apply(Forgotten{id, 1})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
