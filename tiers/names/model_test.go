package names

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// elsewhere is what other nodes or a Finder have, by path. With asks it says nothing of a path that it was not asked about.
type elsewhere struct {
	driver.Tier
	has     map[string]driver.Located
	graves  map[string]uint64
	asks    bool
	asked   map[string]bool
	watched map[string]bool
	lost    []string // watched paths that are gone
}

func newElsewhere() *elsewhere {
	return &elsewhere{has: map[string]driver.Located{}, graves: map[string]uint64{}, asked: map[string]bool{}, watched: map[string]bool{}}
}

func (e *elsewhere) Unknown(p string) bool { return e.asks && !e.asked[p] }
func (e *elsewhere) Ask(_ context.Context, paths []string) {
	for _, p := range paths {
		e.asked[p] = true
	}
}

func (e *elsewhere) Locate(p string) (driver.Located, bool) {
	l, ok := e.has[p]
	return l, ok && !e.Unknown(p)
}

func (e *elsewhere) Watch(k block.Key)      { e.watched[k.Path()] = true }
func (e *elsewhere) Unwatch(k block.Key)    { delete(e.watched, k.Path()) }
func (e *elsewhere) Buried(p string) uint64 { return e.graves[p] }
func (e *elsewhere) Bury(graves []driver.Grave) {
	for _, g := range graves {
		e.graves[g.Path] = max(e.graves[g.Path], g.Seq)
		if l, ok := e.has[g.Path]; ok && l.Seq < g.Seq && l.IsDir() == g.Dir && !e.below(g.Path) {
			e.drop(g.Path)
		}
	}
}

func (e *elsewhere) drop(p string) {
	if delete(e.has, p); e.watched[p] {
		delete(e.watched, p)
		e.lost = append(e.lost, p)
	}
}

func (e *elsewhere) List(_ context.Context, dir string, fn func(string, *driver.Located) bool) error {
	for p, l := range e.has {
		if d, name := path.Split(p); strings.TrimSuffix(d, "/") == dir && !fn(name, &l) {
			return nil
		}
	}
	return nil
}

// below reports whether others have something in a directory.
func (e *elsewhere) below(dir string) bool {
	for p := range e.has {
		if strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// found is elsewhere as a Finder: it has blocks alone, and directories follow from them.
type found struct{ *elsewhere }

func (f found) Find(p string) (l driver.Located, ok bool) {
	if l, ok = f.has[p]; ok {
		return l, true
	}
	for at, x := range f.has {
		if strings.HasPrefix(at, p+"/") && x.Seq > l.Seq {
			l, ok = driver.Located{Seq: x.Seq, Mode: state.ModeDir | 0o755}, true
		}
	}
	return l, ok
}

// writer is the write side of a private file.
type writer struct {
	catalog.Writing
	owner state.Process
}

func (*writer) HandlesLocked() int                { return 1 }
func (*writer) OpenLocked() bool                  { return true }
func (w *writer) MineLocked(by state.Caller) bool { return w.owner == by.Proc() }
func (*writer) Refresh(a state.Attr) state.Attr   { return a }
func (*writer) Settle() error                     { return nil }

// thing is a file or directory of this node.
type thing struct {
	dir     bool
	owner   uint32 // of a file that only this process finds; 0: all find it
	seq     uint64
	size    int64
	expires int64
}

// hold is a reference by the kernel.
type hold struct {
	id   index.ID
	path string
}

// model says what names mean: this node's things, else the latest that others have.
type model struct {
	nm    *Names
	now   int64
	own   map[string]*thing
	used  map[string]uint64 // directories of other nodes that were looked up, and have entries, with their versions
	far   *elsewhere        // nil: there are no other nodes
	find  *elsewhere        // nil: there is no Finder
	holds []hold
	told  map[index.ID]bool // names that kernels are to forget
	errs  []error
}

var (
	modelDirs  = []string{"d", "e", "d/s"}
	modelFiles = []string{"d/a", "d/b", "e/a", "d/s/a", "d/s/b", "e/s"}
)

const modelTime = int64(1e15)

var why = outcome.Cause{Reason: outcome.ReasonUnlink}

func newModel(far, asks, find bool) *model {
	m := &model{now: modelTime, own: map[string]*thing{}, used: map[string]uint64{}, told: map[index.ID]bool{}}
	opts := state.Options{
		Primary: new(tiertest.Files), CapacityBytes: 1 << 30,
		Now:        func() time.Time { return time.Unix(0, m.now) },
		Invalidate: func(_ state.Process, _, id index.ID, _ string) { m.told[id] = true },
	}
	if err := opts.Fill(); err != nil {
		panic(err)
	}
	st := state.New(opts)
	st.Ctx, st.Recorder = context.Background(), m
	var err error
	if st.Mu.Room, err = room.New(room.Options{CapacityBytes: 1 << 30, Policy: "lru"}); err != nil {
		panic(err)
	}
	st.MeterReuse()
	m.nm = New(st)
	m.nm.Copies = m
	if find {
		m.find = newElsewhere()
		s := m.addTier("bucket")
		s.Finder, st.Finders = found{m.find}, []*state.Secondary{s}
	}
	if far {
		m.far = newElsewhere()
		st.Remote, st.Far = m.addTier("peers"), m.far
		st.Mu.Remote = st.Remote.Bit
		if m.far.asks = asks; asks {
			st.Asker = m.far
		}
	}
	return m
}

// addTier adds a tier that does nothing.
func (m *model) addTier(name string) *state.Secondary {
	n := len(m.nm.Tiers)
	s := &state.Secondary{N: n, Bit: 1 << n, Opts: state.SecondaryOptions{Name: name}, Lane: lane.New(lane.Options{})}
	m.nm.Tiers = append(m.nm.Tiers, s)
	return s
}

// The model stands for the copies of blocks, and for the records.

func (m *model) WriteRecord(index.ID, *os.File) error { return nil }
func (m *model) PromotingLocked(index.ID) string      { return "" }
func (m *model) DisownLocked(p string, known uint16) {
	if m.find != nil && known&1 == 0 {
		delete(m.find.has, p)
	}
}

func (m *model) DropCopiesLocked(id index.ID, en *index.Entry) {
	if m.find != nil && en.Tiers()&1 != 0 {
		delete(m.find.has, m.nm.Mu.Ix.Path(id))
	}
	m.nm.ClearTiersLocked(id, en, en.Tiers(), 0)
}

func (m *model) fail(format string, a ...any) { m.errs = append(m.errs, fmt.Errorf(format, a...)) }

func parent(p string) string { return strings.TrimSuffix(path.Dir(p), ".") }

func by(proc uint32) state.Caller { return state.Caller{Thread: proc * 10, Process: proc} }

// means returns what a path means to a process: a thing of this node, or what others have.
func (m *model) means(proc uint32, p string) (dir, ok bool, seq uint64) {
	if p == "" {
		return true, true, 0
	}
	if dir, ok, _ := m.means(proc, parent(p)); !dir || !ok {
		return false, false, 0
	}
	if t := m.own[p]; t != nil {
		return t.dir, (t.owner == 0 || t.owner == proc) && (t.expires == 0 || t.expires > m.now), t.seq
	}
	if l, ok := m.others(p); ok {
		return l.IsDir(), true, l.Seq
	}
	return false, false, 0
}

// others returns the latest that others have.
func (m *model) others(p string) (l driver.Located, ok bool) {
	if m.far != nil {
		l, ok = m.far.has[p]
	}
	if m.find != nil {
		if x, has := (found{m.find}).Find(p); has && (!ok || x.Seq >= l.Seq && !(l.IsDir() && x.IsDir())) && (m.far == nil || x.Seq >= m.far.graves[p]) {
			return x, true
		}
	}
	return l, ok
}

// lookup walks a path as the kernel does. The caller has one reference to the result.
func (m *model) lookup(proc uint32, p string) (a state.Attr, err error) {
	a.ID = index.Root
	if p == "" {
		return a, nil
	}
	for _, name := range strings.Split(p, "/") {
		dir := a.ID
		a, _, err = m.nm.Lookup(dir, name, by(proc))
		m.nm.Forget(dir, 1)
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// dir returns the directory of a path, 0 if there is none.
func (m *model) dir(p string) index.ID {
	a, err := m.lookup(1, parent(p))
	if err != nil || a.ID != index.Root && a.Mode&state.ModeDir == 0 {
		if err == nil {
			m.nm.Forget(a.ID, 1)
		}
		return 0
	}
	return a.ID
}

// ours notes that a directory and those above are this node's own.
func (m *model) ours(p string) {
	for p = parent(p); p != ""; p = parent(p) {
		if delete(m.used, p); m.own[p] == nil {
			m.own[p] = &thing{dir: true}
		}
	}
}

// locked calls fn with the lock, and does then what is left to do.
func (m *model) locked(fn func(g *state.Gone)) {
	var g state.Gone
	m.nm.Mu.Lock()
	fn(&g)
	m.nm.Mu.Unlock()
	m.nm.Finish(&g)
}

func (m *model) want(what string, got, want error) {
	if !errors.Is(got, want) || (got == nil) != (want == nil) {
		m.fail("%s: %v, want %v", what, got, want)
	}
}

func pick(n uint32, from []string) string { return from[int(n)%len(from)] }

var kinds = []struct {
	name string
	do   func(m *model, s tiertest.Step)
}{
	{"mkdir", (*model).mkdir}, {"mkdir", (*model).mkdir}, {"create", (*model).create}, {"create", (*model).create}, {"commit", (*model).commit},
	{"commit", (*model).commit}, {"unlink", (*model).unlink}, {"rmdir", (*model).rmdir}, {"hold", (*model).hold}, {"forget", (*model).forget},
	{"time", func(m *model, s tiertest.Step) {
		m.now += int64(s.N % 4)
		if m.far != nil && s.A%2 == 0 {
			m.far.asked = map[string]bool{}
		}
	}},
	{"others store", (*model).others_}, {"others store", (*model).others_}, {"others lose", (*model).lose}, {"supersede", (*model).supersede},
	{"expire", func(m *model, s tiertest.Step) {
		p := pick(s.A, modelFiles)
		if t := m.own[p]; t != nil && !t.dir && t.owner == 0 {
			t.expires = m.now + int64(s.N%4)
			m.nm.ApplyLocked(catalog.Expires{ID: m.nm.Mu.Ix.Walk(p), At: t.expires})
		}
	}},
}

func (m *model) mkdir(s tiertest.Step) {
	p := pick(s.A, modelDirs)
	_, there, _ := m.means(2, p)
	id := m.dir(p)
	if id == 0 {
		return
	}
	defer m.nm.Forget(id, 1)
	if a, err := m.lookup(2, p); err == nil { // the kernel asks first
		m.nm.Forget(a.ID, 1)
	}
	want := error(nil)
	if there || m.own[p] != nil {
		want = block.ErrExist
	}
	a, err := m.nm.Mkdir(id, path.Base(p), 0o755, 0, 0, by(2).Proc())
	m.want("mkdir "+p, err, want)
	if err == nil {
		m.ours(p)
		m.own[p] = &thing{dir: true}
		m.nm.Forget(a.ID, 1)
	}
}

// create makes a file that only its process finds.
func (m *model) create(s tiertest.Step) {
	p, proc := pick(s.A, modelFiles), 1+s.B%2
	id := m.dir(p)
	if id == 0 {
		return
	}
	defer m.nm.Forget(id, 1)
	if a, err := m.lookup(proc, p); err == nil {
		m.nm.Forget(a.ID, 1)
	}
	m.locked(func(g *state.Gone) {
		was := m.grave(p)
		m.nm.DropExpiredLocked(id, path.Base(p), g)
		if t := m.own[p]; t != nil && t.expires > 0 && t.expires <= m.now {
			if got := m.grave(p); m.far != nil && got != max(was, t.seq+1) {
				m.fail("%s expired in version %d: versions below %d are void, below %d before", p, t.seq, got, was)
			}
			delete(m.own, p)
		}
		m.want("check "+p, m.nm.CheckNewLocked(id, path.Base(p)), nil)
		if _, ok := m.others(p); ok || m.own[p] != nil {
			return
		}
		blob, file, _ := m.nm.Primary.Create()
		file.Close()
		m.own[p] = &thing{owner: proc}
		w := &writer{owner: by(proc).Proc()}
		e := m.nm.ApplyLocked(&catalog.CreatedFile{Attrs: catalog.Attrs{Mode: state.ModeRegular}, Parent: id, Name: path.Base(p), Blob: uint64(blob)}).ID
		m.nm.AddFileLocked(e, w, &w.Writing)
	})
}

// grave returns the number below which the versions that other nodes have of a path are void.
func (m *model) grave(p string) uint64 {
	if m.far == nil {
		return 0
	}
	return m.far.graves[p]
}

// commit has all find a file.
func (m *model) commit(s tiertest.Step) {
	p := pick(s.A, modelFiles)
	t := m.own[p]
	if t == nil || t.owner == 0 {
		return
	}
	m.locked(func(g *state.Gone) {
		id := m.nm.Mu.Ix.Walk(p)
		en := m.nm.Mu.Ix.At(id)
		t.owner, t.size = 0, int64(s.N%5000)
		m.nm.ApplyLocked(catalog.Committed{ID: id, Size: t.size, Seq: m.nm.NextSeqLocked()})
		begun := uint64(m.now) - uint64(s.B%3)
		m.nm.PublishedLocked(id, en, begun, s.N%2 == 0, g)
		m.nm.DropFileLocked(id)
		t.seq = en.Seq()
		if m.far == nil {
			return
		}
		if l, ok := m.far.Locate(p); ok && l.Seq >= t.seq {
			m.fail("commit %s: version %d, others have %d", p, t.seq, l.Seq)
		} else if voids := s.N%2 == 0 || ok && l.Seq <= begun; voids != (len(g.Graves) == 1) || voids && (g.Graves[0].Seq > t.seq || g.Graves[0].Seq != min(begun, t.seq-1)+1) {
			m.fail("commit %s, version %d begun at %d: graves %v", p, t.seq, begun, g.Graves)
		}
	})
	m.ours(p)
}

func (m *model) unlink(s tiertest.Step) {
	p, proc := pick(s.A, modelFiles), 1+s.B%2
	dir, there, _ := m.means(proc, p)
	id := m.dir(p)
	if id == 0 {
		return
	}
	if a, err := m.lookup(proc, p); err == nil {
		defer m.nm.Forget(a.ID, 1)
	}
	if there && !dir {
		m.locked(func(g *state.Gone) {
			got, _ := m.nm.ResolveLocked(id, path.Base(p), by(proc), g)
			if got == 0 {
				m.fail("unlink %s: not found", p)
				return
			}
			m.nm.UnlinkLocked(got, why, by(proc).Proc(), g)
		})
		if l, ok := m.others(p); ok && (m.own[p] == nil || l.Seq <= m.own[p].seq) {
			m.fail("unlink %s: others still have it", p)
		}
		delete(m.own, p)
	}
	m.nm.Forget(id, 1)
}

func (m *model) rmdir(s tiertest.Step) {
	p := pick(s.A, append(slices.Clone(modelDirs), "e/s"))
	dir, there, _ := m.means(1, p)
	id := m.dir(p)
	if id == 0 {
		return
	}
	defer m.nm.Forget(id, 1)
	if a, err := m.lookup(1, p); err == nil {
		m.nm.Forget(a.ID, 1)
	}
	want := error(nil)
	var private []string
	for at, t := range m.own {
		switch {
		case parent(at) != p:
		case t.owner != 0 && t.owner != 1:
			private = append(private, at)
		default:
			want = block.ErrNotEmpty
		}
	}
	switch {
	case !there && m.own[p] == nil:
		want = block.ErrNotFound
	case m.own[p] != nil && !m.own[p].dir || !dir:
		want = block.ErrNotDir
	case m.far != nil && m.far.below(p) && (m.far.has[p] != driver.Located{}):
		want = block.ErrNotEmpty
	case slices.ContainsFunc(slices.Collect(maps.Keys(m.used)), func(u string) bool { return parent(u) == p }):
		want = block.ErrNotEmpty
	}
	err := m.nm.Rmdir(context.Background(), id, path.Base(p), by(1))
	m.want("rmdir "+p, err, want)
	if err == nil {
		delete(m.own, p)
		delete(m.used, p)
		for _, at := range private {
			delete(m.own, at)
		}
		if m.far != nil && m.far.graves[p] == 0 {
			m.fail("rmdir %s: no grave", p)
		}
	}
}

// hold looks a path up, and keeps the reference.
func (m *model) hold(s tiertest.Step) {
	p := pick(s.A, append(slices.Clone(modelFiles), modelDirs...))
	if a, err := m.lookup(1+s.B%2, p); err == nil {
		m.holds = append(m.holds, hold{a.ID, p})
	}
}

func (m *model) forget(s tiertest.Step) {
	if len(m.holds) == 0 {
		return
	}
	i := int(s.A) % len(m.holds)
	h := m.holds[i]
	m.holds = slices.Delete(m.holds, i, i+1)
	linked := m.nm.Mu.Ix.Linked(h.id)
	if a := m.nm.Attr(h.id); (a.Nlink == 0) == linked {
		m.fail("%s, with a name %v: %+v", h.path, linked, a)
	}
	m.nm.Forget(h.id, 1)
	if still := slices.ContainsFunc(m.holds, func(x hold) bool { return x.id == h.id }); !linked && m.nm.Mu.Ix.Valid(h.id) != still {
		m.fail("%s has no name; its entry is there: %v", h.path, !still)
	}
}

// others_ has other nodes, or who shares the Finder's storage, store a block or make a directory.
func (m *model) others_(s tiertest.Step) {
	to := m.far
	if to == nil || m.find != nil && s.N%2 == 0 {
		to = m.find
	}
	if to == nil {
		return
	}
	p, l := pick(s.A, modelFiles), driver.Located{Mode: state.ModeRegular | 0o644, Size: int64(s.N % 9000), Seq: uint64(m.now) + uint64(s.B%4)}
	if s.N%5 == 0 && to == m.far {
		p, l = pick(s.A, modelDirs), driver.Located{Mode: state.ModeDir | 0o755, Seq: l.Seq}
	}
	for d := p; ; d = parent(d) {
		if x, ok := to.has[d]; ok && (d == p || !x.IsDir()) || l.Seq <= to.graves[d] {
			return // they have another thing there, or it is void
		}
		if d == "" {
			break
		}
	}
	if to == m.find {
		if m.far != nil && l.Seq < m.far.graves[p] || to.below(p) {
			return
		}
		to.has[p] = l
		return
	}
	to.has[p] = l
	for d := parent(p); d != ""; d = parent(d) {
		if _, ok := to.has[d]; !ok {
			to.has[d] = driver.Located{Mode: state.ModeDir | 0o755, Seq: l.Seq}
		}
	}
}

// lose has other nodes lose what they have at a path.
func (m *model) lose(s tiertest.Step) {
	if m.far == nil {
		return
	}
	p := pick(s.A, append(slices.Clone(modelFiles), modelDirs...))
	if l, ok := m.far.has[p]; ok && !(l.IsDir() && m.far.below(p)) {
		m.far.drop(p)
	}
}

// supersede has another node remove or replace a name of this node.
func (m *model) supersede(s tiertest.Step) {
	p := pick(s.A, append(slices.Clone(modelFiles), modelDirs...))
	t := m.own[p]
	if m.far == nil || t == nil || t.owner != 0 {
		return
	}
	id := m.nm.Mu.Ix.Walk(p)
	held := slices.ContainsFunc(m.holds, func(h hold) bool { return h.id == id })
	was := m.nm.Mu.Ix.At(id).Seq()
	seq := was - 1 + uint64(s.N%3)
	m.far.Bury([]driver.Grave{{Path: p, Dir: t.dir, Seq: seq}})
	full := m.nm.Mu.Ix.Children(id) > 0
	m.nm.Supersede(p, t.dir, seq)
	switch now := m.nm.Mu.Ix.Walk(p); {
	case was >= seq || full:
		if theirs := m.nm.Mu.Ix.At(id).Tiers() != 0; now != id || was < seq && !theirs && m.nm.Mu.Ix.At(id).Seq() < seq {
			m.fail("supersede %s, version %d, by %d: entry %d, version %d", p, was, seq, now, m.nm.Mu.Ix.At(id).Seq())
		}
	default:
		delete(m.own, p)
		if held && !m.told[id] {
			m.fail("supersede %s: no kernel was told", p)
		}
	}
}

// settle delivers what other nodes have lost, as package transfer does.
func (m *model) settle() {
	for m.far != nil && len(m.far.lost) > 0 {
		p := m.far.lost[0]
		m.far.lost = m.far.lost[1:]
		m.locked(func(g *state.Gone) {
			id := m.nm.Mu.Ix.Walk(p)
			if id == 0 {
				return
			}
			en, up := m.nm.Mu.Ix.At(id), m.nm.Mu.Ix.Parent(id)
			if en.IsDir() {
				m.nm.LostDirLocked(id, en, g)
			} else if en.Tiers()&m.nm.Remote.Bit != 0 {
				m.nm.ClearTiersLocked(id, en, m.nm.Remote.Bit, outcome.ReasonUnavailable)
				m.nm.DropNameLocked(id, en, why, g)
			}
			m.nm.SettleParentLocked(up, g)
		})
	}
}

// keep follows the loss of directories by other nodes: one in use stays, as this node's own.
func (m *model) keep() {
	for p := range m.used {
		if l, ok := m.far.has[p]; ok && l.IsDir() {
			continue
		}
		seq := m.used[p]
		full := slices.ContainsFunc(slices.Collect(maps.Keys(m.own)), func(at string) bool { return parent(at) == p })
		if delete(m.used, p); (m.far.graves[p] <= seq || full) && m.own[p] == nil {
			m.own[p] = &thing{dir: true}
			m.ours(p)
		}
	}
}

// absorb follows look-ups of all names: directories of other nodes are in use from then on, and what a Finder has is this
// node's.
func (m *model) absorb() {
	for _, p := range slices.Concat([]string{"d", "e", "d/s", "e/s"}, modelFiles) {
		if dir, ok, seq := m.means(1, p); ok && m.own[p] == nil {
			l, isFar := driver.Located{}, false
			if m.far != nil {
				l, isFar = m.far.has[p]
			}
			switch {
			case isFar && l.Seq == seq && l.IsDir() == dir:
				if dir {
					m.used[p] = seq
				}
			default:
				m.own[p] = &thing{dir: dir, seq: seq, size: m.find.has[p].Size}
				m.ours(p)
			}
		}
	}
}

// check compares what all names mean with the model.
func (m *model) check() error {
	m.settle()
	m.keep()
	m.nm.SettleStrays(m.nm.SettleStrays(nil))
	type answer struct {
		dir, ok bool
		size    int64
	}
	all := slices.Concat(modelDirs, modelFiles)
	for proc := uint32(1); proc <= 2; proc++ {
		for _, p := range all {
			dir, ok, seq := m.means(proc, p)
			var want answer
			if ok {
				want = answer{dir, true, catalog.PageBytes}
				if t := m.own[p]; !dir && t != nil {
					want.size = t.size
				} else if l, _ := m.others(p); !dir {
					want.size = l.Size
				}
			}
			var got answer
			a, err := m.lookup(proc, p)
			if err == nil {
				got = answer{a.Mode&state.ModeDir != 0, true, a.Size}
				if e := m.nm.Mu.Ix.At(a.ID).Seq(); !dir && seq != 0 && e != seq {
					return fmt.Errorf("%s: version %d, want %d", p, e, seq)
				}
				m.nm.Forget(a.ID, 1)
			}
			if got != want || err != nil && !errors.Is(err, block.ErrNotFound) {
				return fmt.Errorf("process %d looks up %s: %+v, %v, want %+v", proc, p, got, err, want)
			}
		}
		m.absorb()
	}
	if err := m.places(all); err != nil {
		return err
	}
	m.nm.SettleStrays(m.nm.SettleStrays(nil))
	if err := m.entries(); err != nil {
		return err
	}
	return errors.Join(m.errs...)
}

// places compares the answers about many names at a time.
func (m *model) places(all []string) error {
	var paths [][]byte
	for _, p := range all {
		paths = append(paths, []byte(p))
	}
	out := make([]Place, len(paths))
	m.nm.Presences(paths, PresenceOptions{}, out)
	for i, p := range all {
		dir, ok, _ := m.means(1, p)
		want := driver.Miss
		if t := m.own[p]; t != nil && t.owner != 0 {
			want = driver.Pending
		} else if ok && !dir {
			want = driver.Hit
		}
		if out[i].Presence != want || out[i].Dir != (ok && dir) {
			return fmt.Errorf("presence of %s: %+v, want %v", p, out[i], want)
		}
	}
	return nil
}

// entries checks that only this node's things and directories in use have entries, and what is held.
func (m *model) entries() error {
	left := map[string]bool{}
	m.nm.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
		left[m.nm.Mu.Ix.Path(id)] = true
		return true
	})
	for p := range m.own {
		if !left[p] {
			return fmt.Errorf("%s has no entry", p)
		}
		delete(left, p)
	}
	for p := range left {
		if m.used[p] == 0 && !slices.ContainsFunc(m.holds, func(h hold) bool { return h.path == p || strings.HasPrefix(h.path, p+"/") }) {
			return fmt.Errorf("%s has an entry, and is not this node's", p)
		}
	}
	for _, d := range append([]string{""}, modelDirs...) {
		id := m.nm.Mu.Ix.Walk(d)
		if id == 0 || !m.nm.Mu.Ix.At(id).IsDir() {
			continue
		}
		var got, want []string
		for _, e := range m.nm.ReadDir(id, 0, 0, by(1), nil) {
			if p := strings.TrimPrefix(d+"/"+e.Name, "/"); m.own[p] != nil {
				got = append(got, p)
			}
		}
		for p := range m.own {
			if _, ok, _ := m.means(1, p); ok && parent(p) == d {
				want = append(want, p)
			}
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			return fmt.Errorf("directory %q lists %q, want %q", d, got, want)
		}
	}
	return nil
}

// TestModel makes, removes and looks up names in random ways, on one node, beside other nodes that do the same, and over a
// Finder. What a name means is what a model says that has a table of what this node has, and of what others have.
func TestModel(t *testing.T) {
	var list []string
	for _, k := range kinds {
		list = append(list, k.name)
	}
	for _, tc := range []struct {
		name            string
		far, asks, find bool
	}{
		{"alone", false, false, false}, {"nodes", true, false, false}, {"nodes that are asked", true, true, false}, {"a Finder", false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tiertest.RunSteps(t, 20, 200, list, func(steps []tiertest.Step) (int, error) {
				m := newModel(tc.far, tc.asks, tc.find)
				defer m.nm.Primary.Close(false)
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
