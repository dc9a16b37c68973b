package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// A kernel whose names, references and files are used by one goroutine at a time may be told
// at any time.

// dentry is a name in a directory, as a kernel keeps it.
type dentry struct {
	parent index.ID
	name   string
}

// kernel is what one kernel keeps: names and attributes for as long as it is not told that
// they have changed, and the references that it was given.
type kernel struct {
	m     *mounts
	n     uint32
	names map[dentry]index.ID
	attrs map[index.ID]state.Attr
	refs  map[index.ID]uint64
	mu    sync.Mutex
	inbox []dentry // of what it was told and has not yet heard; without a name: attributes of parent
	procs uint32
	open  []*written
}

// written is a file that a kernel has open for writing.
type written struct {
	*file
	path string
	data []byte
	lost bool // its name was renamed, removed or taken by a rename
}

// mounts is an engine with some kernels, and what its names mean.
type mounts struct {
	*world
	rng    *rand.Rand
	live   []*kernel
	made   uint32
	blocks map[string][]byte
	dirs   map[string]bool
	evicts bool // blocks may go by themselves
	trace
}

func (m *mounts) mount() {
	m.made++
	m.live = append(m.live, &kernel{m: m, n: m.made, names: map[dentry]index.ID{}, attrs: map[index.ID]state.Attr{}, refs: map[index.ID]uint64{}})
}

func (m *mounts) invalidate(by state.Process, parent, id index.ID, name string) {
	d := dentry{parent, name}
	if name == "" {
		d.parent = id
	}
	for _, k := range m.live {
		if k.n == by.Kernel {
			continue // it knows
		}
		k.mu.Lock()
		k.inbox = append(k.inbox, d)
		k.mu.Unlock()
	}
}

// hear has a kernel act on what it was told.
func (k *kernel) hear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.inbox {
		if d.name == "" {
			delete(k.attrs, d.parent)
		} else {
			delete(k.names, d)
		}
	}
	k.inbox = nil
}

// process returns a thread of a new process.
func (k *kernel) process() uint32 {
	k.procs++
	return thread(k.n, 10*k.procs)
}

// look finds one name: in what the kernel keeps, unless it is to look again.
func (k *kernel) look(tid uint32, parent index.ID, name string, again bool) (index.ID, error) {
	d := dentry{parent, name}
	if id, ok := k.names[d]; ok && !again {
		return id, nil
	}
	delete(k.names, d)
	a, err := k.m.e.Lookup(parent, name, by(tid))
	if err != nil {
		if a.Stable {
			k.m.t.Errorf("%s: its absence may be kept", name)
		}
		return 0, err
	}
	k.refs[a.ID]++
	delete(k.attrs, a.ID)
	if a.Stable {
		k.names[d], k.attrs[a.ID] = a.ID, a
	}
	return a.ID, nil
}

func (k *kernel) walk(tid uint32, p string, again bool) (id index.ID, err error) {
	id = index.Root
	for _, c := range strings.Split(p, "/") {
		if c == "." {
			continue
		}
		if id, err = k.look(tid, id, c, again); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// try does something with a path, once more with all of it looked up again if that was stale.
func (k *kernel) try(fn func(again bool) error) (err error) {
	for tries := range 3 {
		if err = fn(tries > 0); !errors.Is(err, state.ErrStale) {
			return err
		}
	}
	return err
}

// read reads a file.
func (k *kernel) read(p string) (data []byte, err error) {
	tid := k.process()
	err = k.try(func(again bool) error {
		id, err := k.walk(tid, p, again)
		if err != nil {
			return err
		}
		f, err := k.m.openReadBy(by(tid), tid, id)
		if err != nil {
			return err
		}
		if data, err = f.read(); err != nil {
			return err
		}
		k.m.e.Ref(id) // what release gives back is the kernel's
		f.release()
		return nil
	})
	return data, err
}

// begin opens a file for writing, as open(2) with O_CREAT and, unless keep is set, O_TRUNC.
func (k *kernel) begin(p string, keep bool) (w *written, err error) {
	tid := k.process()
	err = k.try(func(again bool) error {
		dir, err := k.walk(tid, path.Dir(p), again)
		if err != nil {
			return err
		}
		var h *openfile.Handle
		id, err := k.look(tid, dir, path.Base(p), again)
		if err == nil {
			h, err = k.m.e.OpenWrite(context.Background(), id, by(tid), openfile.WriteOptions{Truncate: !keep})
		} else if errors.Is(err, block.ErrNotFound) && !keep {
			var a state.Attr
			a, h, err = k.m.e.Create(context.Background(), openfile.CreateOptions{Parent: dir, Name: path.Base(p), Mode: 0o644, By: by(tid), Truncate: true})
			if id = a.ID; err == nil {
				k.refs[id]++
			}
		}
		if err == nil {
			w = &written{file: &file{w: k.m.world, tid: tid, id: id, h: h}, path: p}
		}
		return err
	})
	return w, err
}

// end closes a file, or ends it as that of a kernel that is gone.
func (k *kernel) end(w *written, killed bool) {
	k.m.e.Ref(w.id) // what release gives back is the kernel's
	if killed {
		w.abandon()
		return
	}
	if err := w.close(); err != nil {
		k.m.t.Errorf("close %s: %v", w.path, err)
	}
	k.m.settleEvicted()
	if !w.lost && !w.plain() {
		k.m.blocks[w.path] = w.data
	}
}

// plain reports whether all see what is written as it is written.
func (w *written) plain() bool { return path.Dir(w.path) == "raw" || strings.HasSuffix(w.path, ".tmp") }

// taken follows that a name was renamed, removed or taken: what is open of it is an unlinked file.
func (m *mounts) taken(p string) {
	for _, k := range m.live {
		for _, w := range k.open {
			w.lost = w.lost || w.path == p
		}
	}
}

// opened reports whether a file of that name is open for writing.
func (m *mounts) opened(p string) bool {
	return slices.ContainsFunc(m.live, func(k *kernel) bool {
		return slices.ContainsFunc(k.open, func(w *written) bool { return w.path == p })
	})
}

// die ends a kernel: nobody is left who uses its mount.
func (k *kernel) die() {
	for _, w := range k.open {
		k.end(w, true)
	}
	for id, n := range k.refs {
		k.m.e.Forget(id, n)
	}
}

// settleEvicted drops what was evicted.
func (m *mounts) settleEvicted() {
	for p := range m.blocks {
		if _, err := m.e.Resolve(context.Background(), p); err != nil && m.evicts {
			delete(m.blocks, p)
		}
	}
}

func (m *mounts) dir() string { return []string{"d0", "d1", "d2", "raw"}[m.rng.IntN(4)] }

func (m *mounts) file() string { return fmt.Sprintf("%s/%d", m.dir(), m.rng.IntN(3)) }

func (m *mounts) any() *kernel {
	k := m.live[m.rng.IntN(len(m.live))]
	if m.rng.IntN(2) == 0 {
		k.hear()
	}
	return k
}

func (m *mounts) data() []byte {
	return fill(fmt.Sprint(1+m.rng.IntN(2*page)), string(rune('a'+m.rng.IntN(26))))
}

// want checks an error.
func (m *mounts) want(what string, err, want error) bool {
	if !errors.Is(err, want) {
		m.t.Errorf("%s: got %v, want %v", what, err, want)
	}
	return err == nil
}

// wantDir is the error of what needs the directory of a path.
func (m *mounts) wantDir(p string) error {
	if !m.dirs[path.Dir(p)] {
		return block.ErrNotFound
	}
	return nil
}

func (m *mounts) write() {
	k, p := m.any(), m.file()
	keep := m.rng.IntN(3) == 0
	want := m.wantDir(p)
	if keep && m.blocks[p] == nil {
		want = block.ErrNotFound
	}
	m.logf("%d write %s, keep %v", k.n, p, keep)
	w, err := k.begin(p, keep)
	m.settleEvicted()
	if !m.want("open "+p, err, want) {
		return
	}
	if !keep && !w.plain() { // the name is private from now on
		m.taken(p)
		delete(m.blocks, p)
	}
	w.data = m.data()
	if _, err := w.h.WriteAt(context.Background(), w.data, 0); err != nil {
		m.t.Errorf("write %s: %v", p, err)
	}
	if old := m.blocks[p]; keep && len(old) > len(w.data) {
		w.data = append(w.data, old[len(w.data):]...)
	}
	if w.plain() {
		m.blocks[p] = w.data
	}
	if !keep && len(k.open) < 2 && m.rng.IntN(3) == 0 {
		m.logf("%d keeps %s open", k.n, p)
		k.open = append(k.open, w)
		return
	}
	k.end(w, false)
}

// finish closes what write has left open.
func (m *mounts) finish() {
	k := m.any()
	if len(k.open) > 0 {
		m.logf("%d closes %s", k.n, k.open[0].path)
		k.end(k.open[0], false)
		k.open = k.open[1:]
	}
}

// writeTemp writes a block under a temporary name and renames it.
func (m *mounts) writeTemp() {
	k, p := m.any(), m.file()
	m.logf("%d write and rename %s", k.n, p)
	w, err := k.begin(p+".tmp", false)
	if !m.want("open "+p+".tmp", err, m.wantDir(p)) {
		return
	}
	w.path, w.data = p+".tmp", m.data()
	_, err = w.h.WriteAt(context.Background(), w.data, 0)
	m.want("write "+p, err, nil)
	k.end(w, false)
	delete(m.blocks, p+".tmp")
	m.want("rename "+p, k.rename(w.tid, p+".tmp", p), nil)
	m.settleEvicted()
	m.taken(p)
	m.blocks[p] = w.data
}

// rename moves a name, and what the kernel keeps of it.
func (k *kernel) rename(tid uint32, from, to string) error {
	return k.try(func(again bool) error {
		fromDir, err := k.walk(tid, path.Dir(from), again)
		if err != nil {
			return err
		}
		toDir, err := k.walk(tid, path.Dir(to), again)
		if err != nil {
			return err
		}
		if _, err := k.look(tid, fromDir, path.Base(from), again); err != nil {
			return err
		}
		k.look(tid, toDir, path.Base(to), again)
		err = k.m.e.Rename(context.Background(), openfile.RenameOptions{
			Parent: fromDir, Name: path.Base(from), NewParent: toDir, NewName: path.Base(to), By: by(tid),
		})
		if err == nil {
			a, b := dentry{fromDir, path.Base(from)}, dentry{toDir, path.Base(to)}
			delete(k.names, b)
			if id, ok := k.names[a]; ok {
				delete(k.names, a)
				k.names[b] = id
			}
		}
		return err
	})
}

// move renames a block. All have heard of what was before, and hear of this: else they would
// take the names for what they were.
func (m *mounts) move() {
	from, to := m.file(), m.file()
	if from == to || path.Dir(from) == "raw" && m.opened(from) {
		return // a plain file that its owner writes is renamed with its close
	}
	m.hear()
	k := m.any()
	m.logf("%d rename %s %s", k.n, from, to)
	want := m.wantDir(to)
	if m.blocks[from] == nil {
		want = block.ErrNotFound
	}
	if m.want("rename "+from+" "+to, k.rename(k.process(), from, to), want) {
		m.blocks[to] = m.blocks[from]
		delete(m.blocks, from)
		m.taken(from)
		m.taken(to)
	}
	m.settleEvicted()
	m.hear()
}

// moveDir renames a directory, with all that is in it and written in it.
func (m *mounts) moveDir() {
	from, to := m.dir(), m.dir()
	if from == to || from == "raw" || to == "raw" || !m.dirs[from] || m.dirs[to] {
		return
	}
	m.hear()
	k := m.any()
	m.logf("%d rename directory %s %s", k.n, from, to)
	m.want("rename "+from+" "+to, k.rename(k.process(), from, to), nil)
	m.dirs[from], m.dirs[to] = false, true
	for p, data := range m.blocks {
		if path.Dir(p) == from {
			delete(m.blocks, p)
			m.blocks[to+"/"+path.Base(p)] = data
		}
	}
	for _, k := range m.live {
		for _, w := range k.open {
			if path.Dir(w.path) == from {
				w.path = to + "/" + path.Base(w.path)
			}
		}
	}
	m.hear()
}

func (m *mounts) makeDir() {
	d := m.dir()
	if m.dirs[d] {
		return
	}
	k := m.any()
	m.logf("%d mkdir %s", k.n, d)
	a, err := m.e.Mkdir(index.Root, d, 0o755, 0, 0, state.Process{})
	if m.want("mkdir "+d, err, nil) {
		k.refs[a.ID]++
		k.names[dentry{index.Root, d}], k.attrs[a.ID] = a.ID, a
		m.dirs[d] = true
	}
}

func (m *mounts) removeDir() {
	d := m.dir()
	if !m.dirs[d] || d == "raw" {
		return
	}
	for _, k := range m.live {
		for _, w := range k.open {
			if path.Dir(w.path) == d {
				return
			}
		}
	}
	var want error
	for p := range m.blocks {
		if path.Dir(p) == d {
			want = block.ErrNotEmpty
		}
	}
	k := m.any()
	m.logf("%d rmdir %s", k.n, d)
	if m.want("rmdir "+d, m.e.Rmdir(context.Background(), index.Root, d, by(thread(k.n, 10))), want) {
		delete(k.names, dentry{index.Root, d})
		m.dirs[d] = false
	}
}

func (m *mounts) remove() {
	k, p := m.any(), m.file()
	m.logf("%d unlink %s", k.n, p)
	var want error
	if m.blocks[p] == nil {
		want = block.ErrNotFound
	}
	if m.want("unlink "+p, k.unlink(p), want) {
		m.taken(p)
	}
	delete(m.blocks, p)
}

func (k *kernel) unlink(p string) error {
	tid := k.process()
	return k.try(func(again bool) error {
		dir, err := k.walk(tid, path.Dir(p), again)
		if err != nil {
			return err
		}
		if _, err = k.look(tid, dir, path.Base(p), again); err == nil {
			err = k.m.e.Unlink(dir, path.Base(p), by(tid))
		}
		delete(k.names, dentry{dir, path.Base(p)})
		return err
	})
}

// setAttr changes a mode, or a size.
func (m *mounts) setAttr() {
	p := m.file()
	data := m.blocks[p]
	if m.rng.IntN(3) == 0 {
		p, data = path.Dir(p), nil
	}
	m.hear()
	k := m.any()
	id, err := k.walk(k.process(), p, false)
	if err != nil {
		return
	}
	if data != nil && m.rng.IntN(2) == 0 {
		n := 1 + m.rng.IntN(len(data))
		m.logf("%d truncate %s %d", k.n, p, n)
		if err := m.e.TruncateName(context.Background(), id, by(10), int64(n)); m.want("truncate", err, nil) {
			m.blocks[p] = data[:n]
		}
		return
	}
	mode := uint32(0o600 + m.rng.IntN(64))
	m.logf("%d chmod %s %o", k.n, p, mode)
	_, err = m.e.SetAttr(id, tiers.Change{Mode: &mode})
	m.want("chmod "+p, err, nil)
}

// restart has one kernel go, and another one come.
func (m *mounts) restart() {
	if m.rng.IntN(4) > 0 {
		return
	}
	k := m.live[0]
	m.logf("%d dies", k.n)
	m.live = m.live[1:]
	k.die()
	m.mount()
}

func (m *mounts) hear() {
	for _, k := range m.live {
		k.hear()
	}
}

// compare has each kernel read everything, before it has heard the news and after it, and
// checks that what it keeps is true then.
func (m *mounts) compare() {
	m.settleEvicted()
	for range 2 {
		for _, k := range m.live {
			for _, d := range []string{"d0", "d1", "d2", "raw"} {
				for i := range 3 {
					p := fmt.Sprintf("%s/%d", d, i)
					got, err := k.read(p)
					want, there := m.blocks[p]
					if there && (err != nil || !bytes.Equal(got, want)) || !there && !errors.Is(err, block.ErrNotFound) {
						m.t.Errorf("mount %d reads %s: got %.20q, %d bytes, %v; want %.20q, %d bytes, %v", k.n, p, got, len(got), err, want, len(want), there)
					}
				}
			}
		}
		m.hear()
	}
	for _, k := range m.live {
		k.check()
	}
}

// check compares what a kernel keeps with what it would be told now.
func (k *kernel) check() {
	stranger := thread(1000, 10)
	for d, id := range k.names {
		if d.parent != index.Root && k.m.e.Attr(d.parent).Nlink == 0 {
			continue // no path leads there
		}
		a, err := k.m.e.Lookup(d.parent, d.name, by(stranger))
		if err != nil || a.ID != id {
			k.m.t.Errorf("mount %d takes %v for %d, but it is %d, %v", k.n, d, id, a.ID, err)
		}
		if err != nil {
			continue
		}
		k.m.forget(a.ID)
		kept, ok := k.attrs[id]
		if !ok || !a.Stable || a.Changing {
			continue
		}
		if kept.Mode != a.Mode || kept.UID != a.UID || kept.Size != a.Size || kept.Nlink != a.Nlink || a.Mode&0o170000 != 0o040000 && kept.Mtime != a.Mtime {
			k.m.t.Errorf("mount %d keeps of %v %+v, but it is %+v", k.n, d, kept, a)
		}
	}
}

// TestKernelsModel: whatever two kernels do, each reads at once what the other has committed,
// even before it has heard of it; what it keeps is true when it has; and a kernel that dies
// commits nothing and leaves nothing behind.
func TestKernelsModel(t *testing.T) {
	seed := seed(t)
	for i, capacity := range []int64{4096 * page, 24 * page} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m := &mounts{
				rng: rand.New(rand.NewPCG(seed, uint64(i))), blocks: map[string][]byte{}, dirs: map[string]bool{"raw": true}, evicts: i > 0,
			}
			clock := newTestClock() // a look-up holds until its open, however long that takes
			m.world = open(t, shmDir(t), state.Options{
				CapacityBytes: capacity, Kernels: true, Invalidate: m.invalidate, Now: clock.now,
				Groups: map[block.GroupID]state.GroupOptions{"raw": {Pinned: true}},
			})
			m.mount()
			m.mount()
			must(t, m.mkdir("raw"))
			steps := []func(){
				m.write, m.write, m.write, m.writeTemp, m.writeTemp, m.finish, m.move, m.moveDir, m.makeDir, m.makeDir, m.removeDir, m.remove, m.setAttr, m.restart,
			}
			for range 600 {
				steps[m.rng.IntN(len(steps))]()
				clock.add(10 * time.Millisecond)
				if m.rng.IntN(3) == 0 {
					m.compare()
				}
				m.audit()
				if t.Failed() {
					m.show(t)
					break
				}
			}
			for _, k := range m.live {
				k.die()
			}
			m.live = nil
			clock.add(24 * time.Hour) // versions that were never opened take their time
			m.e.Expire()
			(&lower{world: m.world}).end()
		})
	}
}

// TestKernelsStorm: kernels that write, replace, rename, remove and read the same names at the
// same time, and die over it, read only whole blocks and leave nothing behind.
func TestKernelsStorm(t *testing.T) {
	seed := seed(t)
	m := &mounts{}
	clock := newTestClock()
	m.world = open(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Kernels: true, Invalidate: m.invalidate, Now: clock.now})
	must(t, m.mkdir("g"))
	for range 6 {
		m.mount()
	}
	var wg sync.WaitGroup
	for i, k := range m.live {
		wg.Go(func() { k.storm(rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	wg.Wait()
	m.audit()
	for _, k := range m.live {
		k.hear()
		k.check()
	}
	for _, k := range m.live {
		k.die()
	}
	clock.add(24 * time.Hour) // versions that were never opened take their time
	m.e.Expire()
	(&lower{world: m.world}).end()
}

// storm does all kinds of things to a few names; what it leaves open goes with its kernel.
func (k *kernel) storm(rng *rand.Rand) {
	for n := range 300 {
		if rng.IntN(2) == 0 {
			k.hear()
		}
		p := fmt.Sprintf("g/%d", rng.IntN(4))
		var err error
		switch rng.IntN(8) {
		case 0:
			err = k.rename(k.process(), p, fmt.Sprintf("g/%d", rng.IntN(4)))
		case 1:
			err = k.unlink(p)
		case 2, 3, 4:
			var data []byte
			if data, err = k.read(p); err == nil {
				if _, bad := check(0, data); bad != nil {
					k.m.t.Errorf("mount %d reads %s: %v", k.n, p, bad)
				}
			}
		default:
			err = k.store(p, payload(0, uint64(n), 24+rng.IntN(page)), rng.IntN(6))
		}
		if err != nil && !errors.Is(err, block.ErrNotFound) && !errors.Is(err, state.ErrStale) {
			k.m.t.Errorf("mount %d: %v", k.n, err)
		}
	}
}

// store writes a block: how 0 leaves half of it open, 1 replaces in place, the rest renames.
func (k *kernel) store(p string, data []byte, how int) error {
	at := p
	if how > 1 {
		at = fmt.Sprintf("%s.%d.tmp", p, k.n)
	}
	w, err := k.begin(at, false)
	if err != nil {
		return err
	}
	if how == 0 && len(k.open) < 2 {
		_, err = w.h.WriteAt(context.Background(), data[:12], 0)
		k.open = append(k.open, w)
		return err
	}
	k.m.e.Ref(w.id)
	if _, err = w.h.WriteAt(context.Background(), data, 0); err == nil && how == 2 {
		w.abandon()
		return k.unlink(at)
	}
	if err = errors.Join(err, w.close()); err == nil && how > 1 {
		err = k.rename(w.tid, at, p)
	}
	return err
}

// thread is a thread of a process of a mount, as by takes it apart.
func thread(mount, tid uint32) uint32 { return mount<<22 | tid }

// told records the calls of Invalidate: names, with @ and the number of the mount that knows, if one does.
type told struct{ calls []string }

func (k *told) invalidate(by state.Process, parent, id index.ID, name string) {
	switch {
	case name != "" && parent != 0 && by.Kernel != 0:
		k.calls = append(k.calls, fmt.Sprintf("%s@%d", name, by.Kernel))
	case name != "" && parent != 0:
		k.calls = append(k.calls, name)
	case name == "" && parent == 0:
		k.calls = append(k.calls, "attrs")
	default:
		k.calls = append(k.calls, fmt.Sprintf("parent %d, name %q of %d", parent, name, id))
	}
}

// take returns the calls since the last one.
func (k *told) take() []string {
	calls := k.calls
	k.calls = nil
	return calls
}

// TestKernelsNotices: what one kernel asked for is told to all where there are several, and that a name is not there is
// not to be kept, because another one can make it. Where there is one, not even one call is made for what it asked for.
func TestKernelsNotices(t *testing.T) {
	for _, several := range []bool{false, true} {
		var k told
		w := open(t, shmDir(t), state.Options{Kernels: several, Invalidate: k.invalidate})
		if a, err := w.lookup(10, "a"); kind(err) != "ErrNotFound" || a.Stable == several {
			t.Errorf("several %v: %v, stable %v", several, err, a.Stable)
		}
		f := w.write(thread(1, 10), "a", "bytes")
		must(t, f.close(), w.put(10, "b", []byte("b")))
		for _, name := range []string{"a", "b"} { // another kernel knows them
			at := w.found(thread(2, 10), name)
			defer w.forget(at.ID)
		}
		k.take()
		want := func(what string, do error, want ...string) {
			t.Helper()
			if got := k.take(); do != nil || several && !slices.Equal(got, want) || !several && len(got) > 0 {
				t.Errorf("several %v, %s: %v, told %q, want %q", several, what, do, got, want)
			}
		}
		want("chmod", w.chmod("a", 0o600), "attrs")
		_, err := w.get(20, "a")
		want("a read", err)
		f, err = w.openWrite(context.Background(), thread(1, 10), "a", false)
		want("open", err, "attrs")
		want("a size", f.h.Truncate(context.Background(), 2), "attrs")
		want("close", f.close(), "attrs")
		want("rename over", w.rename(thread(1, 10), "a", "b", false), "b@1", "a@1")
		want("unlink", w.unlink(thread(1, 10), "b"), "b@1")
		w.close(false)
	}
}

// TestKernelsRenameFails: a kernel whose rename fails when it has been done is told, too.
func TestKernelsRenameFails(t *testing.T) {
	var k told
	plan := tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Err: block.ErrUnavailable}})
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Faults: plan})
	w := openLower(t, shmDir(t), state.Options{
		Kernels: true, Invalidate: k.invalidate, Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeOff}},
	}, disk)
	defer w.close(false)
	must(t, w.put(10, "a", []byte("old")))
	f := w.write(10, "a.tmp", "new")
	must(t, w.e.Fsync(until(t), f.id), f.close())
	a := w.found(thread(2, 10), "a")
	defer w.forget(a.ID)
	k.take()
	if err := w.rename(thread(1, 10), "a.tmp", "a", false); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("rename: %v", err)
	}
	if got, want := k.take(), []string{"a@1", "a"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
