package openfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
	"github.com/kvfs/kvfs/tiers/transfer"
)

const page = catalog.PageBytes

// world is files in memory, with no tier below it.
type world struct {
	*Files
	nm    *names.Names
	files *tiertest.Files
	dir   index.ID // in which all names are
}

func newWorld(o state.Options) *world {
	w := &world{files: new(tiertest.Files)}
	o.Primary = w.files
	if err := o.Fill(); err != nil {
		panic(err)
	}
	st := state.New(o)
	w.nm = names.New(st)
	mem := memory.New(st, w.nm)
	tr := transfer.New(st, w.nm, mem)
	w.Files = New(st, w.nm, mem, tr)
	w.nm.Copies, mem.Clean, st.Recorder, st.Ctx = tr, tr.CleanLocked, w.Files, context.Background()
	if err := mem.OpenRoom(); err != nil {
		panic(err)
	}
	st.MeterReuse()
	w.dir = w.ApplyLocked(&catalog.CreatedDir{Attrs: catalog.Attrs{Mode: state.ModeDir | 0o755}, Parent: index.Root, Name: "g"}).ID
	return w
}

func by(proc uint32) state.Caller { return state.Caller{Thread: 10 * proc, Process: proc} }

// again looks a name up and calls fn, as often as that needs another look-up. The caller has one reference.
func (w *world) again(proc uint32, name string, fn func(id index.ID) error) (id index.ID, err error) {
	for range 5 {
		var a state.Attr
		if a, _, err = w.nm.Lookup(w.dir, name, by(proc)); err != nil {
			return 0, err
		}
		if err = fn(a.ID); err == nil {
			return a.ID, nil
		}
		if w.nm.Forget(a.ID, 1); !errors.Is(err, state.ErrStale) {
			break
		}
	}
	return 0, err
}

// openWrite opens a file for writing, and makes it if create is set.
func (w *world) openWrite(proc uint32, name string, create, truncate bool) (id index.ID, h *Handle, err error) {
	for range 5 {
		id, err = w.again(proc, name, func(id index.ID) (err error) {
			h, err = w.OpenWrite(context.Background(), id, by(proc), WriteOptions{Truncate: truncate})
			return err
		})
		if !create || !errors.Is(err, block.ErrNotFound) {
			return id, h, err
		}
		var a state.Attr
		a, h, err = w.Create(context.Background(), CreateOptions{Parent: w.dir, Name: name, Mode: 0o644, By: by(proc), Truncate: truncate})
		if !errors.Is(err, state.ErrStale) {
			return a.ID, h, err
		}
	}
	return 0, nil, err
}

// read returns the bytes that a process finds under a name.
func (w *world) read(proc uint32, name string) (data []byte, err error) {
	var o Opened
	id, err := w.again(proc, name, func(id index.ID) (err error) {
		o, err = w.OpenRead(context.Background(), id, by(proc), false)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer w.nm.Forget(id, 1)
	defer w.nm.CloseRead(id)
	file, err := w.OpenBlob(o.Blob)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

// content is a file of the model, with or without a name.
type content struct {
	data   []byte
	kind   draft.Kind
	name   string // "": it has none any more
	hidden bool   // only its own process finds it under the name
	moved  bool   // hidden, and not even that: another process renamed it
	owner  uint32
	failed bool // a write has failed
	opens  []*opening
}

// opening is a file open for writing.
type opening struct {
	of   *content
	id   index.ID
	proc uint32
	h    *Handle
}

// model is what the rules of writing (package draft) make of names.
type model struct {
	*world
	names  map[string]*content
	opens  []*opening
	killed uint64 // writers, before they had committed
	errs   []error
}

var modelNames = []string{"a", "b", "t.tmp", "x.lock"}

func kindOf(name string) draft.Kind {
	switch {
	case strings.HasSuffix(name, ".tmp"):
		return draft.Temp
	case strings.HasSuffix(name, ".lock"):
		return draft.Plain
	}
	return draft.Block
}

const procs = 3

func procOf(n uint32) uint32 { return 1 + n%procs }
func nameOf(n uint32) string { return modelNames[int(n)%len(modelNames)] }

func (m *model) fail(format string, a ...any) { m.errs = append(m.errs, fmt.Errorf(format, a...)) }

func (m *model) want(what string, got, want error) {
	if (got == nil) != (want == nil) || !errors.Is(got, want) {
		m.fail("%s: %v, want %v", what, got, want)
	}
}

// writtenBy reports whether a process has a file open for writing; other: one that is not this.
func (c *content) writtenBy(proc uint32, other bool) bool {
	return slices.ContainsFunc(c.opens, func(o *opening) bool { return (o.proc == proc) != other })
}

// means returns what a name means to a process, nil: nothing.
func (m *model) means(proc uint32, name string) *content {
	c := m.names[name]
	if c == nil || c.hidden && (c.moved || c.owner != proc && !c.writtenBy(proc, false)) {
		return nil
	}
	return c
}

func (m *model) lose(c *content) {
	if m.names[c.name] == c {
		delete(m.names, c.name)
	}
	c.name = ""
}

// take makes a new file, which takes the name from the file that has it.
func (m *model) take(proc uint32, name string) *content {
	if c := m.names[name]; c != nil {
		m.lose(c)
	}
	c := &content{kind: kindOf(name), owner: proc, name: name}
	c.hidden = c.kind == draft.Block
	m.names[name] = c
	return c
}

// began follows an open for writing of c.
func (m *model) began(proc uint32, c *content, truncate bool) *content {
	switch {
	case !truncate:
		return c
	case c.kind == draft.Block && !c.hidden, c.kind == draft.Temp && c.writtenBy(proc, true):
		return m.take(proc, c.name)
	}
	c.data, c.failed = nil, false
	if c.kind == draft.Temp {
		c.owner = proc
	}
	return c
}

var kinds = []struct {
	name string
	do   func(m *model, s tiertest.Step)
}{
	{"open", (*model).begin}, {"open", (*model).begin}, {"open", (*model).begin},
	{"write", (*model).write}, {"write", (*model).write}, {"write", (*model).write}, {"truncate", (*model).truncate},
	{"close", (*model).end}, {"close", (*model).end}, {"close", (*model).end},
	{"rename", (*model).rename},
	{"fail", func(m *model, s tiertest.Step) {
		if o := m.pick(s.A); o != nil && s.N%2 == 0 {
			_, err := o.h.WriteAt(context.Background(), []byte("x"), m.Opts.CapacityBytes)
			m.want("write beyond the capacity", err, block.ErrTooLarge)
			o.of.failed = true
		}
	}},
	{"sync", func(m *model, s tiertest.Step) {
		o := m.pick(s.A)
		if o == nil {
			return
		}
		want := error(nil)
		if o.of.kind != draft.Plain {
			want = o.of.poison()
		}
		m.want("fsync", m.Fsync(context.Background(), o.id), want)
		if c := o.of; want == nil && c.name != "" && c.kind == draft.Block {
			c.hidden, c.moved = false, false
		}
	}},
	{"unlink", func(m *model, s tiertest.Step) {
		name, proc := nameOf(s.A), procOf(s.B)
		c := m.means(proc, name)
		want := error(nil)
		if c == nil {
			want = block.ErrNotFound
		}
		m.want("unlink "+name, m.Unlink(m.dir, name, by(proc)), want)
		if c != nil {
			m.lose(c)
		}
	}},
}

// poison is what a close of a file hears.
func (c *content) poison() error {
	if c.failed {
		return block.ErrPoisoned
	}
	return nil
}

// closer answers the questions of Flush.
type closer struct{ killed bool }

func (c closer) Killed() bool          { return c.killed }
func (closer) StillOpen(index.ID) bool { return false }

func (m *model) pick(n uint32) *opening {
	if len(m.opens) == 0 {
		return nil
	}
	return m.opens[int(n)%len(m.opens)]
}

// begin opens a file for writing.
func (m *model) begin(s tiertest.Step) {
	name, proc, create, truncate := nameOf(s.A), procOf(s.B), s.N%5 > 1, s.N%2 == 0
	if len(m.opens) > 4 {
		return
	}
	c, held := m.means(proc, name), m.names[name]
	id, h, err := m.openWrite(proc, name, create, truncate)
	if c == nil && !create {
		m.want("open of "+name, err, block.ErrNotFound)
		return
	}
	if m.want("open of "+name, err, nil); err != nil {
		return
	}
	switch {
	case c != nil:
		c = m.began(proc, c, truncate)
	case held == nil, truncate:
		c = m.take(proc, name)
	default:
		c = held // it joins the process that hides it
	}
	o := &opening{c, id, proc, h}
	c.opens, m.opens = append(c.opens, o), append(m.opens, o)
}

// write writes into a file, or appends. A kernel that may writes by itself.
func (m *model) write(s tiertest.Step) {
	o := m.pick(s.A)
	if o == nil {
		return
	}
	c, p := o.of, bytes.Repeat([]byte{byte(s.A), byte(s.N)}, 1+int(s.N%3000))
	off := int(s.B) % (len(c.data) + 1)
	if off+len(p) > 4*page {
		off = 0
	}
	end := AtEnd
	switch room := o.h.File.Charge(); {
	case o.h.Direct() && int64(off+len(p)) <= room:
		m.want("write by the kernel", o.h.WithFile(func(file *os.File) error { _, err := file.WriteAt(p, int64(off)); return err }), nil)
	case off != len(c.data) || s.N%2 == 0:
		end = off
		fallthrough
	default:
		n, err := o.h.WriteAt(context.Background(), p, int64(end))
		if m.want("write", err, nil); n != len(p) {
			m.fail("%d bytes written, want %d", n, len(p))
		}
	}
	c.data = append(append(bytes.Clone(c.data[:off]), p...), c.data[min(off+len(p), len(c.data)):]...)
}

// truncate gives a file another size, in one of four ways.
func (m *model) truncate(s tiertest.Step) {
	o := m.pick(s.A)
	if o == nil {
		return
	}
	c, n := o.of, int(s.B%9000)
	cut := func() {
		c.data = append(bytes.Clone(c.data[:min(n, len(c.data))]), make([]byte, max(0, n-len(c.data)))...)
	}
	switch s.N % 4 {
	case 0:
		m.want("truncate", o.h.Truncate(context.Background(), int64(n)), nil)
		cut()
	case 1:
		m.want("allocate", o.h.Allocate(context.Background(), 0, int64(n)+1, false), nil)
		if n++; n > len(c.data) {
			cut()
		}
	case 2:
		m.want("allocate", o.h.Allocate(context.Background(), 0, int64(n)+1, true), nil)
	default:
		m.want("punch", o.h.PunchHole(context.Background(), 0, int64(n)+1), nil)
		c.data = bytes.Clone(c.data)
		clear(c.data[:min(n+1, len(c.data))])
	}
}

// end closes a file, or has its process killed.
func (m *model) end(s tiertest.Step) {
	o := m.pick(s.A)
	if o == nil {
		return
	}
	killed := s.N%4 == 0
	if m.opens = slices.DeleteFunc(m.opens, func(x *opening) bool { return x == o }); s.N%8 == 0 {
		m.Abandon(o.h)
	} else {
		m.want("close", m.Flush(context.Background(), o.h, by(o.proc), closer{killed: killed}), o.of.poison())
		m.Release(o.h)
	}
	m.nm.Forget(o.id, 1)
	m.closed(o, killed)
}

// closed follows the end of a handle.
func (m *model) closed(o *opening, killed bool) {
	c := o.of
	c.opens = slices.DeleteFunc(c.opens, func(x *opening) bool { return x == o })
	last := len(c.opens) == 0
	switch {
	case c.name == "":
	case c.kind == draft.Temp && c.failed && last:
		c.data = nil // its process is going to unlink it
	case c.kind != draft.Block || !c.hidden:
		c.failed = c.failed && (!last || c.kind == draft.Temp)
	case c.failed && last:
		m.lose(c)
	case c.failed, o.proc != c.owner && !last, c.writtenBy(c.owner, false):
		if killed && !last && !c.writtenBy(c.owner, false) {
			c.owner = c.opens[0].proc
		}
		return
	case killed && !last:
		c.owner = c.opens[0].proc
	case killed:
		m.lose(c)
		m.killed++
	default:
		c.hidden, c.moved = false, false
	}
	if last && c.kind != draft.Temp {
		c.owner = 0 // it is nobody's any more
	}
}

// rename moves what a name means to a process.
func (m *model) rename(s tiertest.Step) {
	from, to, proc := nameOf(s.A), nameOf(s.B), procOf(s.N)
	c := m.means(proc, from)
	for _, name := range []string{from, to} {
		if id, err := m.again(proc, name, func(index.ID) error { return nil }); err == nil {
			defer m.nm.Forget(id, 1)
		}
	}
	err := m.Rename(context.Background(), RenameOptions{Parent: m.dir, NewParent: m.dir, Name: from, NewName: to, By: by(proc)})
	want := error(nil)
	switch {
	case c == nil:
		want = block.ErrNotFound
	case from != to && c.failed && c.kind != draft.Plain:
		want = block.ErrPoisoned
	}
	if m.want("rename of "+from+" to "+to, err, want); want != nil || from == to {
		return
	}
	was := c.kind
	m.lose(c)
	if held := m.names[to]; held != nil {
		m.lose(held)
	}
	c.name, c.kind, m.names[to] = to, kindOf(to), c
	if i := slices.IndexFunc(c.opens, func(o *opening) bool { return o.proc != proc }); c.kind == draft.Block && i >= 0 && (was != draft.Block || c.hidden) {
		c.hidden, c.moved, c.owner = true, true, c.opens[i].proc // its close commits it
		return
	}
	if c.kind == draft.Plain && len(c.opens) == 0 {
		c.owner = 0
	}
	c.hidden, c.moved = false, false
}

// check reads all names as all processes, and compares the records that a later daemon would find.
func (m *model) check() error {
	for _, name := range modelNames {
		for proc := uint32(1); proc <= procs; proc++ {
			got, err := m.read(proc, name)
			switch c := m.means(proc, name); {
			case c == nil && errors.Is(err, block.ErrNotFound):
			case c == nil:
				return fmt.Errorf("process %d reads %d bytes of %s, %v; there is nothing", proc, len(got), name, err)
			case err != nil || !bytes.Equal(got, c.data):
				return fmt.Errorf("process %d reads %d bytes of %s, %v; want %d", proc, len(got), name, err, len(c.data))
			}
		}
	}
	records := map[string]int64{}
	for b, r := range m.files.Records() {
		if _, twice := records[r.Path]; twice {
			return fmt.Errorf("two records of %s", r.Path)
		}
		if file, err := m.OpenBlob(b); err == nil {
			fi, _ := file.Stat()
			records[r.Path] = fi.Size()
			file.Close()
		}
	}
	for name, c := range m.names {
		size, ok := records["g/"+name]
		if ok == c.hidden || ok && size != int64(len(c.data)) {
			return fmt.Errorf("record of %s: %v, of %d bytes; hidden: %v, %d bytes", name, ok, size, c.hidden, len(c.data))
		}
		delete(records, "g/"+name)
	}
	for name := range records {
		return fmt.Errorf("there is a record of %s, which is gone", name)
	}
	return errors.Join(append(m.errs, m.charged())...)
}

// charged checks that files have room for all their bytes, and what is reserved by guess.
func (m *model) charged() error {
	var guessed int64
	for id, f := range m.Mu.Files {
		f := f.(*File)
		guessed += f.guessed
		if got := m.Mu.Charge(id, m.Mu.Ix.At(id)); got != f.Charge() {
			return fmt.Errorf("file %d: %d bytes are charged, want %d", id, got, f.Charge())
		}
	}
	for _, o := range m.opens {
		if c := o.h.File.Charge(); c < catalog.ChargeOf(int64(len(o.of.data))) {
			return fmt.Errorf("%s: %d bytes, with room for %d", o.of.name, len(o.of.data), c)
		}
	}
	if got := m.Mu.Counters.KilledWriters; got != m.killed {
		return fmt.Errorf("%d writers were killed, want %d", got, m.killed)
	}
	if got := m.guessed.Taken(); got != guessed {
		return fmt.Errorf("%d bytes are guessed, files say %d", got, guessed)
	}
	return nil
}

// over ends everything, and checks that nothing is left.
func (m *model) over() error {
	for len(m.opens) > 0 {
		m.end(tiertest.Step{N: 1})
	}
	for name, c := range maps.Clone(m.names) {
		m.want("unlink "+name, m.Unlink(m.dir, name, by(max(c.owner, 1))), nil)
	}
	m.ExpireFiles()
	if used, n := m.Mu.Room.Used(), m.files.Len(); used != 0 || n != 0 || len(m.Mu.Files) != 0 {
		return fmt.Errorf("left: %d bytes, %d files, %d write sides", used, n, len(m.Mu.Files))
	}
	return errors.Join(m.errs...)
}

// TestModel: three processes open, write, close, sync, rename and remove files of all kinds in random ways, are killed, and
// fail. What each finds under a name is what the rules of writing say; so are the records, which tell a later daemon what
// is there.
func TestModel(t *testing.T) {
	var list []string
	for _, k := range kinds {
		list = append(list, k.name)
	}
	for _, size := range []int64{0, 3 * page} { // of the blocks; 0: it is learned
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			tiertest.RunSteps(t, 10, 100, list, func(steps []tiertest.Step) (int, error) {
				m := &model{names: map[string]*content{}, world: newWorld(state.Options{
					CapacityBytes: 1 << 30, HeadroomBytes: 1 << 20, LookupLease: time.Hour,
					Groups: map[block.GroupID]state.GroupOptions{"g": {BlockBytes: size}},
				})}
				defer m.files.Close(false)
				for i, s := range steps {
					kinds[s.Kind].do(m, s)
					if err := m.check(); err != nil {
						return i + 1, err
					}
				}
				return len(steps), m.over()
			})
		})
	}
}
